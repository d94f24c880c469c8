// What the members of a team gather from each other (backend/team.h): each copies its part into the memory of
// all. gather.cu has the kernels and why they are safe; few tokens' gathers go by inbox (inbox.h).
#pragma once

#include <array>
#include <span>

#include "cuda/inbox.h"
#include "cuda/kernels.h"

namespace dsv32::cuda {

constexpr uint32_t kArrivals =
    kMostGatherBlocks;  // that a member's blocks together add to a counter in one gather

// One device's side of a team's gathers.
class Exchange {
 public:
  // In device memory, zero before another member may gather.
  struct State {
    uint32_t arrived[kMostMembers];  // grows by kArrivals with each gather of that member
    uint32_t n_gathers;              // of this device, but for those by inbox
    uint32_t n_blocks_done;          // of the gather under way
    uint32_t is_late;                // a member did not come: this device waits for nobody until restart()
  };

  // inbox: device memory, [Inbox::kBytes], all bits ones before another member may gather. late: pinned host
  // memory, which all devices can write. A kernel waits for a member for so many seconds.
  Exchange(int device, State* state, void* inbox, uint32_t* late, double seconds = 10);

  // All members call these, each in its own thread; op.member.team brings them together.
  void announce(const Gather& op);
  void gather(const Gather& op, const Launch& launch);
  Inbox& inbox() { return inbox_; }
  // Throws Error{device} when a member, this one or another, did not come to a gather in time. What any
  // member has computed since then is invalid.
  void check() const;
  bool is_late() const { return *static_cast<const volatile uint32_t*>(visit_.late) != 0; }
  // See Backend::restart_gathers(). stream: of all gathers; it is waited for as long as for a member.
  void restart(cudaStream_t stream);

 private:
  // What the members tell each other before a gather.
  struct Visit {
    int device = 0;
    State* state = nullptr;
    uint32_t *inbox = nullptr, *late = nullptr;
    Gather op;
  };
  void check_shapes(const Gather& op, std::span<const void* const> visits) const;
  Alarm know(const Member& member, std::span<const void* const> visits);

  const double seconds_;
  Inbox inbox_;
  Visit visit_;  // of the newest gather
  std::array<int, kMostMembers> devices_ = {};
};

// Whether the devices reach each other's memory, also to count there.
bool can_reach_each_other(int device, int other);
// Lets devices access each other's memory, where they can. May leave another device current than before.
void let_reach(std::span<const int> devices);

}  // namespace dsv32::cuda
