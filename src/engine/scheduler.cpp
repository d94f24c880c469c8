#include "engine/scheduler.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "context/cache_plan.h"

namespace dsv32 {
namespace {

// The requests as they will be, and what that takes.
class Planner {
 public:
  explicit Planner(const SchedulerInput& input)
      : input_(input), requests_(input.requests.begin(), input.requests.end()) {}

  StepPlan plan() {
    give_way();
    resume();
    grow();
    admit();
    shrink();  // who was resumed or admitted needs slots at once
    choose();
    return std::move(plan_);
  }

 private:
  // After the next step in which it can take part; the disk may bring a whole prompt.
  int64_t next_tokens(const RequestState& request) const {
    if (request.phase == Phase::decodes) return request.n_held + 1;
    if (request.phase == Phase::waits_for_disk) return request.n_prompt;
    return std::min(request.n_prompt, request.n_held + input_.chunk);
  }
  // As long as others became; who is longer already will be longer still, or it would give way at each page.
  int64_t expected_tokens(const RequestState& request) const {
    const int64_t n_least = std::max(request.n_prompt, request.n_held) + kPageTokens;
    return std::min(request.n_most, std::max(n_least, request.n_prompt + input_.mean_answer));
  }
  // `shrinks`: with every buffer as small as it may become.
  template <typename Tokens>
  Room taken(Tokens tokens, bool shrinks = false) const {
    Room sum;
    for (RequestState request : requests_) {
      if (!request.is_admitted()) continue;
      request.is_shrunk = request.is_shrunk || (shrinks && !request.is_fixed);
      const Room room = room_of(input_, request, tokens(request));
      sum.n_row_pages += room.n_row_pages, sum.n_key_pages += room.n_key_pages;
      sum.n_slot_pages += room.n_slot_pages, sum.n_shares += room.n_shares;
    }
    return sum;
  }
  Room taken_next() const {
    return taken([this](const RequestState& request) { return next_tokens(request); });
  }
  bool fits_as_expected(bool shrinks) const {
    return input_.room.holds(
        taken([this](const RequestState& request) { return expected_tokens(request); }, shrinks));
  }

  // The youngest that is admitted, of those that run or of all; never the oldest.
  std::optional<size_t> youngest(bool is_running) const {
    std::optional<size_t> found;
    int64_t n = 0;
    for (size_t i = 0; i < requests_.size(); ++i) {
      if (!requests_[i].is_admitted() || (is_running && requests_[i].is_suspended)) continue;
      if (++n > 1 && !requests_[i].is_fixed) found = i;
    }
    return found;
  }
  // The youngest whose next step would need fewer slots then.
  std::optional<size_t> youngest_to_shrink() const {
    for (size_t i = requests_.size(); i-- > 0;) {
      const RequestState& request = requests_[i];
      if (!request.is_admitted() || request.is_suspended || request.is_shrunk || request.is_fixed) continue;
      if (room_of(input_, request, next_tokens(request)).n_slot_pages > input_.least_buffer_pages) return i;
    }
    return std::nullopt;
  }

  // While slots are lacking for the next step.
  void shrink() {
    while (taken_next().n_slot_pages > input_.room.n_slot_pages) {
      const std::optional<size_t> shrinks = youngest_to_shrink();
      if (!shrinks) return;
      requests_[*shrinks].is_shrunk = true;
      plan_.shrunk.push_back(*shrinks);
    }
  }

  void give_way() {
    shrink();
    for (;;) {
      const Room next = taken_next();
      if (input_.room.holds(next)) return;
      const bool lacks_rows = next.n_row_pages > input_.room.n_row_pages;
      const std::optional<size_t> leaves = youngest(!lacks_rows);
      if (!leaves) return;
      lacks_rows ? begin_anew(*leaves) : suspend(*leaves);
    }
  }
  void suspend(size_t request) {
    requests_[request].is_suspended = true;
    plan_.suspended.push_back(request);
  }
  void begin_anew(size_t request) {
    RequestState& state = requests_[request];
    state.phase = Phase::waits_for_room, state.n_held = 0, state.is_suspended = state.is_shrunk = false;
    plan_.restarted.push_back(request);
    std::erase(plan_.shrunk, request);
  }

  bool is_pressed() const {
    return !plan_.shrunk.empty() || !plan_.suspended.empty() || !plan_.restarted.empty();
  }

  // Whoever is alone goes on whatever is expected.
  bool is_alone(size_t request) const {
    for (size_t i = 0; i < requests_.size(); ++i)
      if (i != request && requests_[i].is_admitted() && !requests_[i].is_suspended) return false;
    return true;
  }

  void resume() {
    if (is_pressed()) return;
    for (size_t i = 0; i < requests_.size(); ++i) {
      if (!requests_[i].is_admitted() || !requests_[i].is_suspended) continue;
      requests_[i].is_suspended = false;
      if (!fits_as_expected(true) && !is_alone(i)) {
        requests_[i].is_suspended = true;
        return;
      }
      plan_.resumed.push_back(i);
    }
  }

  // Slots that nobody else waits for.
  void grow() {
    const auto wants_room = [](const RequestState& request) {
      return request.is_suspended || request.phase == Phase::waits_for_room;
    };
    if (is_pressed() || std::ranges::any_of(requests_, wants_room)) return;
    for (size_t i = 0; i < requests_.size(); ++i) {
      if (!requests_[i].is_shrunk) continue;
      requests_[i].is_shrunk = false;
      if (!fits_as_expected(false)) {
        requests_[i].is_shrunk = true;
        return;
      }
      plan_.grown.push_back(i);
    }
  }

  bool shares(const RequestState& request) const {
    return request.donor && requests_[*request.donor].is_admitted() && request.n_shared_rows > 0;
  }

  bool may_begin(size_t i) {
    requests_[i].phase = Phase::waits_for_disk;
    if (fits_as_expected(true) || is_alone(i)) return true;
    requests_[i].phase = Phase::waits_for_room;
    return false;
  }

  void admit() {
    if (is_pressed() || std::ranges::any_of(requests_, &RequestState::is_suspended)) return;
    std::optional<int64_t> n_may_overtake;  // all who are left waiting, once there is one
    for (size_t i = 0; i < requests_.size(); ++i) {
      if (requests_[i].phase != Phase::waits_for_room) continue;
      const bool may_try = !n_may_overtake || (*n_may_overtake > 0 && shares(requests_[i]));
      if (may_try && may_begin(i)) {
        plan_.admitted.push_back(i);
        if (n_may_overtake) --*n_may_overtake;
      } else {
        n_may_overtake =
            std::min(n_may_overtake.value_or(kMostOvertaken), kMostOvertaken - requests_[i].n_overtaken);
      }
    }
  }

  void choose() {
    std::vector<size_t> decoding, reading;
    bool waits = false;
    for (size_t i = 0; i < requests_.size(); ++i) {
      const RequestState& request = requests_[i];
      if (request.is_suspended) continue;
      if (request.phase == Phase::decodes) decoding.push_back(i);
      if (request.phase == Phase::reads_prompt && reading.empty()) reading.push_back(i);
      waits = waits || request.phase == Phase::waits_for_disk;
    }
    if (!decoding.empty() && (input_.was_prompt || reading.empty()))
      plan_.what = StepPlan::What::decode, plan_.requests = decoding;
    else if (!reading.empty())
      plan_.what = StepPlan::What::prompt, plan_.requests = reading;
    else if (waits)
      plan_.what = StepPlan::What::wait;
  }

  const SchedulerInput& input_;
  std::vector<RequestState> requests_;
  StepPlan plan_;
};

}  // namespace

Room room_of(const SchedulerInput& input, const RequestState& request, int64_t n_tokens) {
  const int64_t n_pages = pages_for(request.is_suspended ? request.n_held : n_tokens);
  Room room;
  room.n_row_pages = n_pages - std::min(n_pages, request.n_shared_rows);
  if (request.is_suspended) return room;
  room.n_key_pages = n_pages - std::min(n_pages, request.n_shared_keys);
  room.n_slot_pages = std::min(n_pages, request.is_shrunk ? input.least_buffer_pages : input.buffer_pages);
  room.n_shares = 1;
  return room;
}

StepPlan next_step(const SchedulerInput& input) { return Planner(input).plan(); }

}  // namespace dsv32
