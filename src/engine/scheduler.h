// Which step comes next, and who takes part: pure, from what every request waits for and holds to a plan.
//
// The one idea: admission, suspension and the choice of a step are one decision over one budget. A request is
// admitted when the budget of all who are admitted, at the lengths that they are expected to reach, stays
// within the room. Where that was too hopeful, the youngest gives way: first it is suspended (its keys go to
// host memory, its slots are given up, its rows stay), and only where rows themselves are lacking it begins
// anew later. Whoever gave way goes on before anyone new begins.
//
// Steps are of one role. Prompts are read one at a time, in the order of arrival; while one is read, every
// second step is a decode step of all who decode, so that neither starves.
//
// Invariants of a plan: what is needed for its step is within the room; the oldest request never gives way,
// so that something always ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/request.h"

namespace dsv32 {

// What is known of one request. `n_prompt` and `n_most` in tokens; n_most: of prompt and answer together.
struct RequestState {
  Phase phase = Phase::waits_for_room;
  bool is_suspended = false;  // its keys lie in host memory, it has no slots
  bool is_fixed = false;      // its session is another's: it has its place and never gives way
  int64_t n_held = 0;         // tokens with rows
  int64_t n_prompt = 0;
  int64_t n_most = 0;

  bool is_admitted() const { return phase != Phase::waits_for_room && phase != Phase::is_done; }
};

// Pages and shares: what there is, or what is taken of it.
struct Room {
  int64_t n_row_pages = 0, n_key_pages = 0;
  int64_t n_shares = 0;  // of the top-k buffers

  bool holds(const Room& taken) const {
    return taken.n_row_pages <= n_row_pages && taken.n_key_pages <= n_key_pages && taken.n_shares <= n_shares;
  }
};

// What a request takes once it holds so many tokens.
Room room_of(const RequestState& request, int64_t n_tokens);

struct StepPlan {
  enum class What {
    nothing,  // there is no request
    wait,     // all wait for the disk
    prompt,   // a chunk of the prompt of requests[0]
    decode,   // a token of each of `requests`
  };
  What what = What::nothing;
  std::vector<size_t> requests;
  // Before the step, in this order: these are suspended, these begin anew when there is room, these go on,
  // these begin.
  std::vector<size_t> suspended, restarted, resumed, admitted;
  bool operator==(const StepPlan&) const = default;
};

struct SchedulerInput {
  std::span<const RequestState> requests;  // in the order of their arrival
  Room room;
  int64_t mean_answer = 0;  // tokens, of the answers that have ended; 0: none has
  int64_t chunk = 1;        // most tokens of a prefill step, and parts of a decode step
  bool was_prompt = false;  // the last step read a prompt
};
StepPlan next_step(const SchedulerInput& input);

}  // namespace dsv32
