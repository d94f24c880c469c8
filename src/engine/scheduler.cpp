#include "engine/scheduler.h"

#include <algorithm>
#include <utility>

#include "context/cache_plan.h"

namespace dsv32 {
namespace {

using What = NextStep::What;

// Decides on a copy of the sequences' states, and counts the room that they take.
class Scheduler {
 public:
  explicit Scheduler(const SchedulerInput& input)
      : input_(input), states_(input.sequences.begin(), input.sequences.end()) {}

  NextStep decide() {
    give_way();
    grow();
    admit();
    shrink();  // admitted sequences need slots at once
    choose();
    return std::move(next_);
  }

 private:
  // Tokens after the next step in which the sequence can take part; the disk may bring a whole prompt.
  int64_t next_tokens(const SequenceState& state) const {
    if (state.phase == Phase::decodes) return state.n_held + 1;
    if (state.phase == Phase::waits_for_disk) return state.n_prompt;
    return std::min(state.n_prompt, state.n_held + input_.chunk);
  }
  // The length of a prompt with a mean answer; at least a page more than the sequence holds, or it would give
  // way at each page.
  int64_t expected_tokens(const SequenceState& state) const {
    const int64_t n_least = std::max(state.n_prompt, state.n_held) + kPageTokens;
    return std::min(state.n_most, std::max(n_least, state.n_prompt + input_.mean_answer));
  }
  // The room that a sequence takes when it holds n_tokens.
  Room room_of(const SequenceState& state, int64_t n_tokens) const {
    const int64_t n_pages = pages_for(n_tokens);
    return {n_pages - std::min(n_pages, state.n_shared_pages),
            std::min(n_pages, state.is_shrunk ? input_.least_buffer_pages : input_.buffer_pages), 1};
  }
  // The room that admitted sequences take at the lengths above. `shrinks`: with the smallest buffers.
  Room taken(int64_t (Scheduler::*n_tokens)(const SequenceState&) const, bool shrinks = false) const {
    Room sum;
    for (SequenceState state : states_) {
      if (!state.is_admitted()) continue;
      state.is_shrunk = state.is_shrunk || (shrinks && !state.is_fixed);
      const Room room = room_of(state, (this->*n_tokens)(state));
      sum.n_pages += room.n_pages, sum.n_slot_pages += room.n_slot_pages, sum.n_sequences += room.n_sequences;
    }
    return sum;
  }
  Room taken_next() const { return taken(&Scheduler::next_tokens); }
  bool fits_as_expected(bool shrinks) const {
    return input_.room.holds(taken(&Scheduler::expected_tokens, shrinks));
  }

  // The youngest admitted sequence; never the oldest.
  std::optional<size_t> youngest() const {
    std::optional<size_t> found;
    int64_t n = 0;
    for (size_t i = 0; i < states_.size(); ++i)
      if (states_[i].is_admitted() && ++n > 1 && !states_[i].is_fixed) found = i;
    return found;
  }
  // The youngest sequence whose next step would need fewer slots if its buffer shrank.
  std::optional<size_t> youngest_to_shrink() const {
    for (size_t i = states_.size(); i-- > 0;) {
      const SequenceState& state = states_[i];
      if (!state.is_admitted() || state.is_shrunk || state.is_fixed) continue;
      if (room_of(state, next_tokens(state)).n_slot_pages > input_.least_buffer_pages) return i;
    }
    return std::nullopt;
  }

  // Shrinks buffers while slots are lacking for the next step.
  void shrink() {
    while (taken_next().n_slot_pages > input_.room.n_slot_pages) {
      const std::optional<size_t> shrinks = youngest_to_shrink();
      if (!shrinks) return;
      states_[*shrinks].is_shrunk = true;
      next_.shrunk.push_back(*shrinks);
    }
  }

  void give_way() {
    shrink();
    while (!input_.room.holds(taken_next())) {
      const std::optional<size_t> leaves = youngest();
      if (!leaves) return;
      SequenceState& state = states_[*leaves];
      state.phase = Phase::waits_for_room, state.n_held = 0, state.is_shrunk = false;
      next_.restarted.push_back(*leaves);
      std::erase(next_.shrunk, *leaves);
    }
  }

  bool is_pressed() const { return !next_.shrunk.empty() || !next_.restarted.empty(); }

  // Makes buffers whole again with slots that no other sequence waits for.
  void grow() {
    const auto waits = [](const SequenceState& state) { return state.phase == Phase::waits_for_room; };
    if (is_pressed() || std::ranges::any_of(states_, waits)) return;
    for (size_t i = 0; i < states_.size(); ++i) {
      if (!states_[i].is_shrunk) continue;
      states_[i].is_shrunk = false;
      states_[i].is_shrunk = !fits_as_expected(false);
      if (states_[i].is_shrunk) return;
      next_.grown.push_back(i);
    }
  }

  bool shares(const SequenceState& state) const {
    return state.donor && states_[*state.donor].is_admitted() && state.n_shared_pages > 0;
  }

  // A sequence that is alone begins even if it is expected not to fit.
  bool may_begin(size_t i) {
    const bool is_alone = std::ranges::none_of(states_, &SequenceState::is_admitted);
    states_[i].phase = Phase::waits_for_disk;
    if (is_alone || fits_as_expected(true)) return true;
    states_[i].phase = Phase::waits_for_room;
    return false;
  }

  void admit() {
    if (is_pressed()) return;
    std::optional<int64_t> n_may_overtake;  // nothing: no sequence stays waiting yet
    for (size_t i = 0; i < states_.size(); ++i) {
      if (states_[i].phase != Phase::waits_for_room) continue;
      const bool may_try = !n_may_overtake || (*n_may_overtake > 0 && shares(states_[i]));
      if (may_try && may_begin(i)) {
        next_.admitted.push_back(i);
        if (n_may_overtake) --*n_may_overtake;
      } else {
        n_may_overtake =
            std::min(n_may_overtake.value_or(kMostOvertaken), kMostOvertaken - states_[i].n_overtaken);
      }
    }
  }

  bool changes_sequences() const { return is_pressed() || !next_.admitted.empty() || !next_.grown.empty(); }

  void choose() {
    std::vector<size_t> decoding, reading;
    bool waits_for_disk = false, waits = false;
    for (size_t i = 0; i < states_.size(); ++i) {
      if (states_[i].phase == Phase::decodes) decoding.push_back(i);
      if (states_[i].phase == Phase::reads_prompt && reading.empty()) reading.push_back(i);
      waits_for_disk = waits_for_disk || states_[i].phase == Phase::waits_for_disk;
      waits = waits || states_[i].phase == Phase::waits_for_constraint;
    }
    const bool only_decodes = reading.empty() && !waits_for_disk && !changes_sequences();
    if (input_.n_under_way > 0 && (!only_decodes || decoding.empty()))
      next_ = {}, next_.what = What::take_all;
    else if (!decoding.empty() && (input_.was_prompt || reading.empty()))
      choose_decoding(std::move(decoding), only_decodes);
    else if (!reading.empty())
      choose_chunk(reading.front());
    else if (waits || waits_for_disk)
      next_.what = What::wait;
  }

  void choose_chunk(size_t reads) {
    const SequenceState& state = states_[reads];
    next_.what = What::prompt, next_.sequences = {reads}, next_.n_tokens = next_tokens(state) - state.n_held;
  }

  void choose_decoding(std::vector<size_t> decoding, bool may_be_groups) {
    const int64_t n = std::ssize(decoding), n_groups = may_be_groups ? std::min(input_.n_stages, n) : 1;
    std::erase_if(decoding, [this](size_t i) { return states_[i].is_under_way; });
    if (decoding.empty() || input_.n_under_way >= n_groups) {
      next_.what = What::take_one;
      return;
    }
    decoding.resize(std::min(decoding.size(), static_cast<size_t>((n + n_groups - 1) / n_groups)));
    next_.what = What::decode, next_.is_group = n_groups > 1;
    if (n_groups == 1) next_.n_guesses = guesses_of(decoding);
    next_.sequences = std::move(decoding);
  }

  // Of each sequence: no more than one of them can use, and than a step has room for.
  int64_t guesses_of(const std::vector<size_t>& decoding) const {
    int64_t n_possible = 0;
    for (const size_t i : decoding) n_possible = std::max(n_possible, states_[i].n_possible_guesses);
    const int64_t n = std::ssize(decoding),
                  n_most = std::min({input_.n_guesses, CachePlan::kMostStepGuesses / n, n_possible});
    return input_.pace && n_most > 0 ? input_.pace->n_guesses(n, n_most) : n_most;
  }

  const SchedulerInput& input_;
  std::vector<SequenceState> states_;
  NextStep next_;
};

}  // namespace

NextStep next_step(const SchedulerInput& input) { return Scheduler(input).decide(); }

}  // namespace dsv32
