// How Loop and scheduler meet: what is known of each request becomes states, and a plan is carried out.
#include <algorithm>
#include <utility>

#include "engine/engine.h"
#include "engine/loop.h"
#include "engine/session.h"

namespace dsv32 {

StepPlan Loop::plan() {
  const CachePlan& cache = engine_.plan().cache;
  std::vector<RequestState> states;
  for (const Entry& entry : entries_) states.push_back(state_of(entry));
  for (size_t i = 0; i < states.size(); ++i) share(i, states);
  return next_step({states,
                    {cache.n_row_pages(), cache.n_key_pages(), cache.n_slot_pages(), cache.max_seqs},
                    n_answers_ ? n_answer_tokens_ / n_answers_ : 0,
                    engine_.plan().chunk,
                    was_prompt_,
                    cache.buffer_pages(),
                    std::min(cache.buffer_pages(), least_buffer_pages(engine_.args()))});
}

// Among those that came before and are not done. Of several the last, which stays longest.
void Loop::find_donor(size_t i) {
  Entry& entry = entries_[i];
  entry.donor.reset(), entry.n_common = 0;
  if (!engine_.prefix_cache()) return;  // nothing of a prompt would be found
  const std::vector<int32_t>& prompt = entry.answer->request().prompt;
  for (size_t j = 0; j < i; ++j) {
    if (entries_[j].answer->phase() == Phase::is_done) continue;
    const int64_t n =
        std::ranges::mismatch(prompt, entries_[j].answer->request().prompt).in1 - prompt.begin();
    if (n >= std::max(entry.n_common, kPageTokens)) entry.donor = entries_[j].number, entry.n_common = n;
  }
}

// Whose pages entry i has as well: in fact once it holds some, before that by what their prompts have in
// common.
void Loop::share(size_t i, std::span<RequestState> states) {
  Entry& entry = entries_[i];
  if (!entry.donor || states[i].phase == Phase::is_done) return;
  auto donor = std::ranges::lower_bound(entries_, *entry.donor, {}, &Entry::number);
  if (donor->number != *entry.donor || donor->answer->phase() == Phase::is_done) {
    find_donor(i);
    if (!entry.donor) return;
    donor = std::ranges::lower_bound(entries_, *entry.donor, {}, &Entry::number);
  }
  states[i].donor = static_cast<size_t>(donor - entries_.begin());
  states[i].n_shared_rows = states[i].n_shared_keys = entry.n_common / kPageTokens;
  const RequestState& other = states[*states[i].donor];
  if (!states[i].is_admitted() || states[i].phase == Phase::waits_for_disk || !other.is_admitted()) return;
  const Timeline& own = entry.answer->session().timeline();
  const Timeline& its = donor->answer->session().timeline();
  const auto n_same = [](const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
    return std::ranges::mismatch(a, b).in1 - a.begin();
  };
  states[i].n_shared_rows = std::min(n_same(own.row_pages(), its.row_pages()), own.n_tokens() / kPageTokens);
  states[i].n_shared_keys = std::min(n_same(own.key_pages(), its.key_pages()), own.n_tokens() / kPageTokens);
}

RequestState Loop::state_of(const Entry& entry) const {
  const Answer& answer = *entry.answer;
  RequestState state;
  state.phase = answer.phase();
  state.n_prompt = std::ssize(answer.request().prompt);
  const int64_t n_most = answer.request().options.n_most(), context = engine_.plan().cache.max_context;
  state.n_most = n_most < 0 ? context : std::min(context, state.n_prompt + n_most);
  state.n_overtaken = entry.n_overtaken;
  if (!state.is_admitted()) return state;
  state.is_fixed = !entry.session, state.is_shrunk = entry.is_shrunk;
  state.is_suspended = answer.session().timeline().is_suspended();
  state.n_held = answer.session().timeline().n_tokens();
  return state;
}

// Who begins anew is as if it had just been added: the same seed gives the same tokens.
void Loop::carry_out(const StepPlan& plan) {
  n_suspended_ += std::ssize(plan.suspended), n_restarted_ += std::ssize(plan.restarted);
  n_shrunk_ += std::ssize(plan.shrunk);
  const auto each = [&](const std::vector<size_t>& requests, const auto& step) {
    for (const size_t i : requests) {
      if (entries_[i].answer->phase() != Phase::is_done) attempt(*entries_[i].answer, [&] { step(i); });
      close_done();  // what one that failed held is for the others
    }
  };
  each(plan.suspended, [&](size_t i) { entries_[i].session->suspend(); });
  each(plan.restarted, [&](size_t i) { begin_anew(entries_[i]); });
  each(plan.admitted, [&](size_t i) {
    admit(entries_[i]);
    for (size_t j = 0; j < i; ++j)
      if (entries_[j].answer->phase() == Phase::waits_for_room) ++entries_[j].n_overtaken;
  });
  each(plan.shrunk, [&](size_t i) { set_shrunk(entries_[i], true); });
  each(plan.resumed, [&](size_t i) { entries_[i].session->resume(); });
  each(plan.grown, [&](size_t i) { set_shrunk(entries_[i], false); });
}

void Loop::admit(Entry& entry) {
  const bool goes_on = kept_ && entry.answer->request().talk == kept_talk_;
  entry.session = goes_on ? std::move(kept_) : std::make_unique<Session>(engine_);
  entry.tally = engine_.forward().buffer_tally();
  entry.answer->admit(*entry.session);
}

void Loop::begin_anew(Entry& entry) {
  stop_waiting(*entry.answer);
  Request request = entry.answer->request();
  request.session = nullptr;
  entry.answer = std::make_unique<Answer>(std::move(request), *entry.listener);
  entry.session.reset();
  entry.is_shrunk = false;
}

void Loop::set_shrunk(Entry& entry, bool is_shrunk) {
  entry.is_shrunk = is_shrunk;
  engine_.cache().set_most_slots(
      entry.answer->session().timeline(),
      is_shrunk ? least_buffer_pages(engine_.args()) : engine_.plan().cache.buffer_pages());
}

}  // namespace dsv32
