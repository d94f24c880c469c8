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
    admit();
    choose();
    return std::move(plan_);
  }

 private:
  // After the next step in which it can take part.
  int64_t next_tokens(const RequestState& request) const {
    if (request.phase == Phase::decodes) return request.n_held + 1;
    return std::min(request.n_prompt, request.n_held + input_.chunk);
  }
  // As long as others became; who is longer already will be longer still, or it would give way at each page.
  int64_t expected_tokens(const RequestState& request) const {
    const int64_t n_least = std::max(request.n_prompt, request.n_held) + kPageTokens;
    return std::min(request.n_most, std::max(n_least, request.n_prompt + input_.mean_answer));
  }
  template <typename Tokens>
  Room taken(Tokens tokens) const {
    Room sum;
    for (const RequestState& request : requests_) {
      if (!request.is_admitted()) continue;
      const Room room = room_of(request, tokens(request));
      sum.n_row_pages += room.n_row_pages, sum.n_key_pages += room.n_key_pages, sum.n_shares += room.n_shares;
    }
    return sum;
  }
  Room taken_next() const {
    return taken([this](const RequestState& request) { return next_tokens(request); });
  }
  bool fits_as_expected() const {
    return input_.room.holds(taken([this](const RequestState& request) { return expected_tokens(request); }));
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

  void give_way() {
    for (;;) {
      const Room next = taken_next();
      if (input_.room.holds(next)) return;
      const bool lacks_rows = next.n_row_pages > input_.room.n_row_pages;
      const std::optional<size_t> leaves = youngest(!lacks_rows);
      if (!leaves) return;
      RequestState& request = requests_[*leaves];
      (lacks_rows ? plan_.restarted : plan_.suspended).push_back(*leaves);
      if (lacks_rows)
        request.phase = Phase::waits_for_room, request.n_held = 0, request.is_suspended = false;
      else
        request.is_suspended = true;
    }
  }

  // Whoever is alone goes on whatever is expected.
  bool is_alone(size_t request) const {
    for (size_t i = 0; i < requests_.size(); ++i)
      if (i != request && requests_[i].is_admitted() && !requests_[i].is_suspended) return false;
    return true;
  }

  void resume() {
    if (!plan_.suspended.empty()) return;
    for (size_t i = 0; i < requests_.size(); ++i) {
      if (!requests_[i].is_admitted() || !requests_[i].is_suspended) continue;
      requests_[i].is_suspended = false;
      if (!fits_as_expected() && !is_alone(i)) {
        requests_[i].is_suspended = true;
        return;
      }
      plan_.resumed.push_back(i);
    }
  }

  void admit() {
    const bool is_pressed = !plan_.suspended.empty() || !plan_.restarted.empty();
    if (is_pressed || std::ranges::any_of(requests_, &RequestState::is_suspended)) return;
    for (size_t i = 0; i < requests_.size(); ++i) {
      if (requests_[i].phase != Phase::waits_for_room) continue;
      requests_[i].phase = Phase::waits_for_disk;
      if (!fits_as_expected() && !is_alone(i)) {
        requests_[i].phase = Phase::waits_for_room;
        return;
      }
      plan_.admitted.push_back(i);
    }
  }

  void choose() {
    std::vector<size_t> decoding, reading;
    bool waits = false;
    for (size_t i = 0; i < requests_.size(); ++i) {
      const RequestState& request = requests_[i];
      if (request.is_suspended) continue;
      if (request.phase == Phase::decodes && std::ssize(decoding) < input_.chunk) decoding.push_back(i);
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

Room room_of(const RequestState& request, int64_t n_tokens) {
  const int64_t n_pages = pages_for(n_tokens);
  if (request.is_suspended) return {pages_for(request.n_held), 0, 0};
  return {n_pages, n_pages, 1};
}

StepPlan next_step(const SchedulerInput& input) { return Planner(input).plan(); }

}  // namespace dsv32
