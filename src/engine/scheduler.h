// Which step comes next, and who takes part: pure, from what every request waits for and holds to a plan.
//
// The one idea: admission, suspension and the choice of a step are one decision over one budget. A request is
// admitted when the budget of all who are admitted, at the lengths that they are expected to reach and with
// the smallest buffers, stays within the room. Where room is lacking, buffers shrink first; then the youngest
// gives way: it is suspended (its keys go to host memory, its slots are given up, its rows stay), and only
// where rows themselves are lacking it begins anew later. Whoever gave way goes on before anyone new begins.
//
// Steps are of one role. Prompts are read one at a time; while one is read, every second step is a decode
// step of all who decode, so that neither starves. Requests are admitted in the order of arrival, but one
// that shares pages with an admitted one may overtake a few who find no room.
//
// Invariants of a plan: what is needed for its step is within the room; the oldest request never gives way,
// so that something always ends; nobody is overtaken by more than kMostOvertaken.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/request.h"

namespace dsv32 {

constexpr int64_t kMostOvertaken = 8;

// Pages of the pools, and shares: of the tables, the logits and the state of buffers each timeline that is
// not suspended takes one. What there is, or what is taken of it.
struct Room {
  int64_t n_row_pages = 0, n_key_pages = 0, n_slot_pages = 0;
  int64_t n_shares = 0;

  bool holds(const Room& taken) const {
    return taken.n_row_pages <= n_row_pages && taken.n_key_pages <= n_key_pages &&
           taken.n_slot_pages <= n_slot_pages && taken.n_shares <= n_shares;
  }
};

// What is known of one request. `n_prompt` and `n_most` in tokens; n_most: of prompt and answer together.
struct RequestState {
  Phase phase = Phase::waits_for_room;
  bool is_suspended = false;  // its keys lie in host memory, it has no slots
  bool is_fixed = false;      // its session is another's: it has its place and never gives way
  int64_t n_held = 0;         // tokens with rows
  int64_t n_prompt = 0;
  int64_t n_most = 0;
  bool is_shrunk = false;  // its buffer has the fewest slots
  // Pages from the front that it shares, or is expected to share, with this earlier request: they are counted
  // there. An earlier request is admitted before it, and gives way after it.
  std::optional<size_t> donor = {};
  int64_t n_shared_rows = 0, n_shared_keys = 0;
  int64_t n_overtaken = 0;  // later ones that were admitted before it

  bool is_admitted() const { return phase != Phase::waits_for_room && phase != Phase::is_done; }
};

struct StepPlan {
  enum class What {
    nothing,  // there is no request
    wait,     // all wait for the disk
    prompt,   // a chunk of the prompt of requests[0]
    decode,   // a token of each of `requests`
  };
  What what = What::nothing;
  std::vector<size_t> requests;
  // Before the step, in this order: these are suspended, these begin anew when there is room, these begin,
  // the buffers of these shrink, these go on, the buffers of these are whole again.
  std::vector<size_t> suspended, restarted, admitted, shrunk, resumed, grown;
  bool operator==(const StepPlan&) const = default;
};

struct SchedulerInput {
  std::span<const RequestState> requests;  // in the order of their arrival
  Room room;
  int64_t mean_answer = 0;  // tokens, of the answers that have ended; 0: none has
  int64_t chunk = 1;        // most tokens of a prefill step
  bool was_prompt = false;  // the last step read a prompt
  // Pages of a whole buffer, and of one that shrank; 0: there are none, slots take no room.
  int64_t buffer_pages = 0, least_buffer_pages = 0;
};

// What a request takes once it holds so many tokens.
Room room_of(const SchedulerInput& input, const RequestState& request, int64_t n_tokens);

StepPlan next_step(const SchedulerInput& input);

}  // namespace dsv32
