// Which step comes next, and of which sequences: a pure function from what each sequence waits for and holds
// to a plan.
//
// Admission, suspension and the choice of a step are one decision over one budget. A sequence is admitted
// when all admitted sequences, at their expected lengths and with the smallest buffers, stay within the room.
// Where room is lacking, buffers shrink first; then the youngest sequence gives way: it is suspended (its
// keys go to host memory, its slots are freed, its rows stay), or, where rows are lacking, it loses its rows
// and begins anew later. A sequence that gave way goes on before a new one begins.
//
// Steps are of one role. Prompts are read one at a time; while one is read, every second step is a decode
// step of all that decode, so that neither starves. Sequences are admitted in the order of arrival, but a
// sequence that shares pages with an admitted one may overtake some that find no room.
//
// Invariants of a plan: its step fits into the room; the oldest sequence never gives way, so that some
// sequence always ends; no sequence is overtaken more than kMostOvertaken times.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace dsv32 {

constexpr int64_t kMostOvertaken = 8;

// What a sequence waits for: that its constraint is compiled, its admission, pages from the disk, the next
// chunk of its prompt, its next token, nothing.
enum class Phase { waits_for_constraint, waits_for_room, waits_for_disk, reads_prompt, decodes, is_done };

// Pages of the pools, and shares: each sequence that is not suspended takes one share of the tables, the
// logits and the state of buffers. Describes the whole room, or the part that is taken.
struct Room {
  int64_t n_row_pages = 0, n_key_pages = 0, n_slot_pages = 0;
  int64_t n_shares = 0;

  bool holds(const Room& taken) const {
    return taken.n_row_pages <= n_row_pages && taken.n_key_pages <= n_key_pages &&
           taken.n_slot_pages <= n_slot_pages && taken.n_shares <= n_shares;
  }
};

// What the scheduler knows of a sequence. `n_prompt`, `n_most`: tokens; n_most: of prompt and answer
// together.
struct SequenceState {
  Phase phase = Phase::waits_for_room;
  bool is_suspended = false;  // its keys lie in host memory, it has no slots
  bool is_fixed = false;      // not opened by the loop: it never gives way
  int64_t n_held = 0;         // tokens with rows
  int64_t n_prompt = 0;
  int64_t n_most = 0;
  bool is_shrunk = false;  // its buffer has the fewest slots
  // The earlier sequence with which it shares, or is expected to share, leading pages, which count only
  // there. The donor is admitted before it, and gives way after it.
  std::optional<size_t> donor = {};
  int64_t n_shared_rows = 0, n_shared_keys = 0;
  int64_t n_overtaken = 0;  // later sequences that were admitted before it

  bool is_admitted() const {
    return phase != Phase::waits_for_constraint && phase != Phase::waits_for_room && phase != Phase::is_done;
  }
};

struct StepPlan {
  enum class What {
    nothing,  // there is no sequence
    wait,     // all wait for the disk, or for a constraint
    prompt,   // a chunk of the prompt of requests[0]
    decode,   // a token of each of `requests`
  };
  What what = What::nothing;
  std::vector<size_t> requests;
  // Before the step, in this order: sequences to suspend; to begin anew when there is room; to begin; whose
  // buffers shrink; to resume; whose buffers become whole again.
  std::vector<size_t> suspended, restarted, admitted, shrunk, resumed, grown;
  bool operator==(const StepPlan&) const = default;
};

struct SchedulerInput {
  std::span<const SequenceState> requests;  // in the order of their arrival
  Room room;
  int64_t mean_answer = 0;  // tokens, mean of the answers that have ended; 0: none has
  int64_t chunk = 1;        // most tokens of a prefill step
  bool was_prompt = false;  // the last step read a prompt
  // Pages of a whole buffer, and of a shrunk one; 0: there are no buffers, slots take no room.
  int64_t buffer_pages = 0, least_buffer_pages = 0;
};

// The room that a sequence takes when it holds n_tokens.
Room room_of(const SchedulerInput& input, const SequenceState& sequence, int64_t n_tokens);

StepPlan next_step(const SchedulerInput& input);

}  // namespace dsv32
