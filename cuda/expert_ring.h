// The ring through which experts from host memory reach a device.
//
// It is divided into places, each for a group of neighbouring experts of a layer. Groups are copied in the
// order of use, on a stream of their own, as soon as a place is free. So the link stays busy while a group is
// computed, and goes on with the next layer's experts at the end of a layer.
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
    int64_t first = 0;             // a multiple of n_together()
    std::vector<int32_t> experts;  // the experts to copy, ascending
  };

  // On the current device. pinned: owns the experts' memory.
  explicit ExpertRing(PinnedMemory& pinned) : pinned_(pinned) {}

  // Puts the ring into [memory, memory + n_bytes), aligned to kRingAlignment, divided for experts like these,
  // at least two. Keeps the contents if memory and division stay the same. Throws Error{internal} when the
  // memory is too small.
  void lie_in(uint8_t* memory, size_t n_bytes, const ExpertStacks& like, cudaStream_t stream);
  bool lies_in(const void* memory) const { return memory == memory_; }
  size_t n_bytes() const { return n_bytes_; }
  // How many experts of such a layer share a place; a group's first expert is a multiple of that.
  int64_t n_together(const ExpertStacks& stacks) const;

  // Sets the groups to copy, in the order of use. Drops all other groups in the ring or on their way.
  void want(const std::vector<Group>& groups);
  // Makes `stream` wait for the next group's copy. Matrix e of the result is expert e.
  ExpertStacks take(cudaStream_t stream);
  // Frees that group's place once `stream` gets here.
  void give_back(cudaStream_t stream);
  // Waits for all copies under way, and forgets what the ring holds.
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
  std::deque<size_t> free_;       // free places, the longest free one first
  std::deque<Group> wanted_;      // groups whose copy is not enqueued yet
  std::deque<Arrival> arrivals_;  // groups whose copy is, in the order of use; the first may be in use
  Stream stream_;                 // of the copies; its destructor waits for the last one
};

}  // namespace dsv32::cuda
