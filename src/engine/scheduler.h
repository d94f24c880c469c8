// Which step comes next, of which sequences, and with how many guesses: a pure function of what each sequence
// waits for and holds.
//
// Admission, giving way and the choice of a step are one decision over one budget. A sequence is admitted
// when all admitted sequences, at their expected lengths and with the smallest buffers, stay within the room.
// Where room is lacking, buffers shrink first; then the youngest sequence gives way: it loses its pages, and
// begins anew when there is room.
//
// Steps are of one role. Prompts are read one at a time; while one is read, every second step is a decode
// step of all that decode, so that neither starves. Sequences are admitted in the order of arrival, but a
// sequence that shares pages with an admitted one may overtake some that find no room.
//
// On several stages, when nothing else is to be done, a decode step has the sequences of one group, an equal
// part of all: as many groups are under way as there are stages, so that all devices work. All their tokens
// are taken before anything else is done to sequences. Guesses are verified in steps of all sequences alone.
//
// Invariants: a step fits into the room; the oldest sequence never gives way, so that some sequence always
// ends; no sequence is overtaken more than kMostOvertaken times; a sequence is in one step at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/draft_pace.h"

namespace dsv32 {

constexpr int64_t kMostOvertaken = 8;

// What a sequence waits for: that its constraint is compiled, its admission, pages from the disk, the next
// chunk of its prompt, its next token, nothing.
enum class Phase { waits_for_constraint, waits_for_room, waits_for_disk, reads_prompt, decodes, is_done };

// Pages of the pools, and sequences, each of which takes a part of the tables, the logits and the state of
// buffers. Describes the whole room, or what is taken of it.
struct Room {
  int64_t n_pages = 0, n_slot_pages = 0, n_sequences = 0;

  bool holds(const Room& taken) const {
    return taken.n_pages <= n_pages && taken.n_slot_pages <= n_slot_pages && taken.n_sequences <= n_sequences;
  }
};

// What the scheduler knows of a sequence. `n_prompt`, `n_most`: tokens; n_most: of prompt and answer
// together.
struct SequenceState {
  Phase phase = Phase::waits_for_room;
  bool is_fixed = false;  // not opened by the loop: it never gives way
  int64_t n_held = 0;     // tokens with rows
  int64_t n_prompt = 0;
  int64_t n_most = 0;
  bool is_shrunk = false;  // its buffer has the fewest slots
  // The earlier sequence with which it shares, or is expected to share, leading pages, which count only
  // there. The donor is admitted before it, and gives way after it.
  std::optional<size_t> donor = {};
  int64_t n_shared_pages = 0;
  int64_t n_overtaken = 0;         // later sequences that were admitted before it
  bool is_under_way = false;       // in a decode step whose tokens are not taken yet
  int64_t n_possible_guesses = 0;  // that it has room for, and that its answer may still use

  bool is_admitted() const {
    return phase != Phase::waits_for_constraint && phase != Phase::waits_for_room && phase != Phase::is_done;
  }
};

struct NextStep {
  enum class What {
    nothing,   // there is no sequence
    wait,      // all wait for the disk, or for a constraint
    prompt,    // the next n_tokens of the prompt of sequences[0]
    decode,    // a token of each of `sequences`, and n_guesses guesses of each at most
    take_one,  // no step begins: the tokens of the oldest one under way are taken
    take_all,  // the same of all that are under way; then it is asked again
  };
  What what = What::nothing;
  std::vector<size_t> sequences;
  bool is_group = false;  // other steps may begin before the tokens of this decode step are taken
  int64_t n_tokens = 0;   // of a prompt
  int64_t n_guesses = 0;
  // Before the step, in this order: sequences to begin anew when there is room; to begin; whose buffers
  // shrink; whose buffers become whole again.
  std::vector<size_t> restarted, admitted, shrunk, grown;
  bool operator==(const NextStep&) const = default;
};

struct SchedulerInput {
  std::span<const SequenceState> sequences;  // in the order of their arrival
  Room room;
  int64_t mean_answer = 0;  // tokens, mean of the answers that have ended; 0: none has
  int64_t chunk = 1;        // most tokens of a prefill step
  bool was_prompt = false;  // the last step read a prompt
  // Pages of a whole buffer, and of a shrunk one; 0: there are no buffers, slots take no room.
  int64_t buffer_pages = 0, least_buffer_pages = 0;
  int64_t n_stages = 1;             // that decode steps go through at the same time
  int64_t n_under_way = 0;          // decode steps whose tokens are not taken yet
  int64_t n_guesses = 0;            // the most of a sequence
  const DraftPace* pace = nullptr;  // how many of them pay; null: all
};

NextStep next_step(const SchedulerInput& input);

}  // namespace dsv32
