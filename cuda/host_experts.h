// What a device leaves to the host in decode: it posts a step's tokens to the lane (backend/host_lane.h),
// computes the link's share of them itself (backend/link_share.h) and later takes the sums. Both are kernels
// that may be recorded: the posts are counted on the device. One post at a time is under way.
#pragma once

#include <memory>

#include "backend/host_lane.h"
#include "cuda/kernels.h"

namespace dsv32::cuda {

class HostExperts {
 public:
  // On the device, zeroed.
  struct State {
    uint32_t n_posts;
    uint32_t n_blocks_done;  // of the kernel that posts
  };

  // mail: kMailboxBytes that both sides see, zeroed.
  HostExperts(std::shared_ptr<HostLane> lane, uint8_t* mail, State* state)
      : box_(std::move(lane), mail), state_(state) {}

  // Leaves the operation to the host, which is done with it when join() has been enqueued.
  void run(const RunExperts& op, const Launch& launch);
  // Whether y is what the host has under way.
  bool makes(const float* y) const { return pending_.y && y == y_; }
  // Puts the sums where the operation wants them; nothing when none is under way.
  void join(const Launch& launch);
  // What was enqueued will not be done.
  void abandon() { pending_ = {}, n_enqueued_ = 0; }

  // The posts enqueued since the last call: whoever has the device do that work tells expect() of them.
  int64_t take_posts() { return std::exchange(n_enqueued_, 0); }
  void expect(int64_t n_posts) { box_.expect(n_posts); }
  // Throws Error{device} when the host did not compute what it should have.
  void check() { box_.check(); }

 private:
  void post(const RunExperts& op, const Launch& launch);

  Mailbox box_;
  State* state_;
  RunExperts pending_;        // the tokens of the post under way; with y null: none is
  const float* y_ = nullptr;  // of the operation that these are of
  bool has_share_ = false;    // y has what the device computed of them
  int64_t n_enqueued_ = 0;
};

}  // namespace dsv32::cuda
