// Which step comes next, and of which sequences: pure, from what each sequence waits for and holds to a plan.
//
// Admission, suspension and the choice of a step are one decision over one budget. A sequence is admitted
// when all admitted ones, at the lengths that they are expected to reach and with the smallest buffers, stay
// within the room. Where room is lacking, buffers shrink first; then the youngest gives way: it is suspended
// (its keys go to host memory, its slots are given up, its rows stay), and only where rows themselves are
// lacking it begins anew later. A sequence that gave way goes on before a new one begins.
//
// Steps are of one role. Prompts are read one at a time; while one is read, every second step is a decode
// step of all that decode, so that neither starves. Sequences are admitted in the order of arrival, but one
// that shares pages with an admitted one may overtake some that find no room.
//
// Invariants of a plan: what is needed for its step is within the room; the oldest sequence never gives way,
// so that something always ends; none is overtaken by more than kMostOvertaken.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace dsv32 {

constexpr int64_t kMostOvertaken = 8;

// What a sequence waits for: its admission, pages from the disk, its prompt's next chunk, its next token,
// nothing.
enum class Phase { waits_for_room, waits_for_disk, reads_prompt, decodes, is_done };

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

// What the scheduler goes by. `n_prompt` and `n_most` in tokens; n_most: of prompt and answer together.
struct SequenceState {
  Phase phase = Phase::waits_for_room;
  bool is_suspended = false;  // its keys lie in host memory, it has no slots
  bool is_fixed = false;      // its place is not the loop's to take: it never gives way
  int64_t n_held = 0;         // tokens with rows
  int64_t n_prompt = 0;
  int64_t n_most = 0;
  bool is_shrunk = false;  // its buffer has the fewest slots
  // Pages from the front that it shares, or is expected to share, with this earlier sequence: they are
  // counted there. An earlier sequence is admitted before it, and gives way after it.
  std::optional<size_t> donor = {};
  int64_t n_shared_rows = 0, n_shared_keys = 0;
  int64_t n_overtaken = 0;  // later ones that were admitted before it

  bool is_admitted() const { return phase != Phase::waits_for_room && phase != Phase::is_done; }
};

struct StepPlan {
  enum class What {
    nothing,  // there is no sequence
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
  std::span<const SequenceState> requests;  // in the order of their arrival
  Room room;
  int64_t mean_answer = 0;  // tokens, of the answers that have ended; 0: none has
  int64_t chunk = 1;        // most tokens of a prefill step
  bool was_prompt = false;  // the last step read a prompt
  // Pages of a whole buffer, and of one that shrank; 0: there are none, slots take no room.
  int64_t buffer_pages = 0, least_buffer_pages = 0;
};

// What a sequence takes once it holds so many tokens.
Room room_of(const SchedulerInput& input, const SequenceState& sequence, int64_t n_tokens);

StepPlan next_step(const SchedulerInput& input);

}  // namespace dsv32
