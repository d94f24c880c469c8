// A device's inbox: memory in which the members of a team lay what their products make, value by value, so
// that few tokens' gathers need no kernel, or a shorter one. A part of Exchange (gather.h). inbox.cu has how
// it works and why it is safe, inbox.cuh what kernels do with it.
#pragma once

#include <span>

#include "backend/ops.h"
#include "cuda/launch.h"

namespace dsv32::cuda {

constexpr int kMostMembers = 8;

// Whom a kernel tells that a member did not come: all members' devices and hosts. Kernels take it as it is.
struct Alarm {
  uint32_t* flags[kMostMembers] = {};  // by member: Exchange::State::is_late
  uint32_t* lates[kMostMembers] = {};
  int number = 0, n_members = 0;  // the waiting member's; of the team
  uint64_t most_nanoseconds = 0;  // that a kernel waits for a member
};

// Where a product sends its results: the value of (problem, token, row) to each `to` + problem *
// problem_stride + token * token_stride + row.
struct Mail {
  uint32_t* to[kMostMembers] = {};  // by member
  int n_members = 0;                // 0: it sends nothing
  int64_t problem_stride = 0, token_stride = 0;
};

class Inbox {
 public:
  static constexpr size_t kBytes =
      static_cast<size_t>(2 * kInboxProductWords + kInboxSumWords) * sizeof(uint32_t);

  // memory: of this device, [kBytes], all bits ones before another member may send.
  explicit Inbox(void* memory) : words_(static_cast<uint32_t*>(memory)) {}

  uint32_t* words() const { return words_; }
  // See Backend::announce(). words: of all members' inboxes.
  void announce(const Gather& op, const Alarm& alarm, std::span<uint32_t* const> words);
  bool is_announced(const Gather& op) const;
  // A gather that was announced, in two parts, between which the members meet. The first sends what the
  // products do not send; the second lets the next product wait for its x, or enqueues what waits for a sum.
  void send(const Gather& op, const Launch& launch);
  void take(const Gather& op, const Launch& launch);
  void forget() { product_ = sum_ = {}, turn_ = 0; }  // what was announced
  void wipe(cudaStream_t stream) const;

  // The part of this gathered vector, of which only its maker knows where it lies.
  void name_part(const void* whole, const void* part);
  // Where the product that makes this part, with these strides, sends its results; the caller sees to it that
  // it does. No members: the part was not announced.
  Mail send_from(const void* part, int64_t problem_stride, int64_t token_stride);
  // Where values of a gathered vector arrive; null: they lie in their place.
  const float* arrival_of(const float* x) const;
  const Alarm& alarm() const { return alarm_; }
  // Returns when all values that a product reads have arrived, for kernels that do not wait themselves.
  void await(const Launch& launch) const;

 private:
  struct Piece {
    const void *part = nullptr, *whole = nullptr;
    int64_t n_rows = 0, width = 0;
    int64_t first = 0;  // its place in every inbox
    bool is_sent = false;
    int64_t n() const { return n_rows * width; }
  };
  struct Announced {
    Piece pieces[2];
    bool is_taken = false;
  };
  const Announced& announced_as(const Gather& op) const { return op.sum ? sum_ : product_; }
  Mail mail_of(const Piece& piece) const;

  uint32_t* words_;
  uint32_t* of_members_[kMostMembers] = {};
  Alarm alarm_;
  Announced product_, sum_;  // what a product reads, until its words are wiped; and a sum
  int turn_ = 0;             // of the regions for products
};

}  // namespace dsv32::cuda
