// The ring in which experts from host memory arrive on a device.
//
// It is divided into places for groups of neighbouring experts of a layer. Groups are copied in the order in
// which they are wanted, on a stream of their own, as soon as a place is free, and are used in that order. So
// the link goes on while a group is computed, and past the end of a layer with the next.
#pragma once

#include <array>
#include <deque>
#include <vector>

#include "backend/pinned_memory.h"
#include "cuda/stream.h"

namespace dsv32::cuda {

class ExpertRing {
 public:
  struct Group {
    ExpertStacks stacks;           // in host memory
    int64_t first = 0;             // of the experts that share a place
    std::vector<int32_t> experts;  // those that travel, ascending
  };

  // Of the device that is current. pinned: has the experts.
  explicit ExpertRing(PinnedMemory& pinned) : pinned_(pinned) {}

  // Lets the ring lie in [memory, memory + n_bytes), aligned to kRingAlignment and divided for experts like
  // these, at least two. What is in it stays if it lies there already, so divided. Throws Error{internal}
  // when it is too small.
  void lie_in(uint8_t* memory, size_t n_bytes, const ExpertStacks& like, cudaStream_t stream);
  bool lies_in(const void* memory) const { return memory == memory_; }
  size_t n_bytes() const { return n_bytes_; }
  // How many experts of such a layer share a place; their first is a multiple of that.
  int64_t n_together(const ExpertStacks& stacks) const;

  // These are wanted from now on, in this order, and nothing else: what is there, or on its way, of other
  // groups is dropped.
  void want(const std::vector<Group>& groups);
  // The next group, where it lies when `stream` gets here: matrix e of the result is expert e.
  ExpertStacks take(cudaStream_t stream);
  // That group has been used when `stream` gets here.
  void give_back(cudaStream_t stream);
  // When this returns no copy is under way, and nothing is known of what lies in the ring.
  void forget();

 private:
  static constexpr size_t kMostPlaces = 8;
  struct Place {
    Event arrived, left;
  };
  struct Arrival {
    Group group;
    size_t place;
  };
  void clear();
  void copy_on();
  void copy(const Group& group, size_t place);
  ExpertStacks in_place(const Group& group, size_t place) const;

  PinnedMemory& pinned_;
  uint8_t* memory_ = nullptr;
  size_t n_bytes_ = 0, n_places_ = 0, n_place_bytes_ = 0;
  std::array<Place, kMostPlaces> places_;
  std::deque<size_t> free_;       // places that hold nothing that is wanted, the longest free one first
  std::deque<Group> wanted_;      // whose copy is not enqueued yet
  std::deque<Arrival> arrivals_;  // whose copy is, in the order of use; the first may be in use
  Stream stream_;                 // of the copies; it goes when the last one is done
};

}  // namespace dsv32::cuda
