// What a device leaves to the host in decode: it posts a step's tokens to the lane (backend/host_lane.h),
// computes the link's share of them itself (backend/link_share.h) and later takes the sums. Posting and
// taking are kernels that may be recorded, so the device counts the posts. One post at a time is under way.
#pragma once

#include <memory>

#include "backend/host_lane.h"
#include "cuda/kernels.h"

namespace dsv32::cuda {

class HostExperts {
 public:
  // In device memory, zeroed.
  struct State {
    uint32_t n_posts;
    uint32_t n_blocks_done;  // of the posting kernel
  };

  // mail: kMailboxBytes that host and device both see, zeroed. A kernel waits so many seconds for an answer:
  // long enough for a host that is stopped for a while, since its user did so.
  HostExperts(std::shared_ptr<HostLane> lane, uint8_t* mail, State* state, double seconds = 600)
      : box_(std::move(lane), mail), state_(state), most_nanoseconds_(static_cast<uint64_t>(seconds * 1e9)) {}

  // Leaves the operation to the host. The sums are complete after join(). is_recorded: the work is recorded,
  // and its posts come when it is replayed. If it throws, the posts made by then are answered all the same.
  void run(const RunExperts& op, bool is_recorded, const Launch& launch);
  // Whether y is being computed by the host.
  bool makes(const float* y) const { return pending_.y && y == y_; }
  // Stores the sums where the operation wants them; does nothing if no post is under way.
  void join(const Launch& launch);
  // As join(), for sums that nobody wants any more: stores nothing.
  void drop(const Launch& launch);
  // Call when the recorded work will not run.
  void abandon() { pending_ = {}, n_recorded_ = 0; }

  // The number of posts recorded since the last call. The caller passes it to expect() with each run of that
  // work.
  int64_t take_posts() { return std::exchange(n_recorded_, 0); }
  void expect(int64_t n_posts) { box_.expect(n_posts); }
  // Throws Error{device} when the host did not compute a post, or not in time.
  void check() { box_.check(); }

 private:
  Mailbox box_;
  State* state_;
  const uint64_t most_nanoseconds_;
  RunExperts pending_;        // the tokens of the post under way; y null: none
  const float* y_ = nullptr;  // of the operation to which these tokens belong
  bool has_share_ = false;    // y has the link's share already
  int64_t n_recorded_ = 0;
};

}  // namespace dsv32::cuda
