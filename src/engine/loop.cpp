#include "engine/loop.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/stopwatch.h"
#include "base/worker_pool.h"
#include "engine/engine.h"
#include "engine/session.h"

namespace dsv32 {

Loop::Loop(Engine& engine)
    : engine_(engine), sampler_(engine.forward().last_backend(), engine.plan().cache.max_seqs) {}
Loop::~Loop() = default;

int64_t Loop::add(Request request, Listener& listener) try {
  if (request.talk != kept_talk_) kept_.reset();  // others need its room
  entries_.push_back({n_added_, std::make_unique<Answer>(std::move(request), listener), &listener, {}});
  find_donor(entries_.size() - 1);
  Answer& answer = *entries_.back().answer;
  if (answer.phase() == Phase::waits_for_room)
    attempt(answer, [&] { check_prompt(engine_, answer.request().prompt); });
  return n_added_++;
} catch (...) {
  throw current_error();
}

bool Loop::is_done(int64_t request) const {
  const auto entry = std::ranges::find(entries_, request, &Entry::number);
  return entry->answer->phase() == Phase::is_done;
}

GenerationResult Loop::take(int64_t request) {
  const auto entry = std::ranges::find(entries_, request, &Entry::number);
  const std::unique_ptr<Answer> answer = std::move(entry->answer);
  entries_.erase(entry);
  return answer->take_result();
}

// Or what is read for it would keep the disk from others.
void Loop::stop_waiting(const Answer& answer) {
  PrefixCache* prefixes = engine_.prefix_cache();
  if (prefixes && answer.phase() == Phase::waits_for_disk) prefixes->end_reading();
}

void Loop::drop(int64_t request) {
  const auto entry = std::ranges::find(entries_, request, &Entry::number);
  if (entry == entries_.end()) return;
  stop_waiting(*entry->answer);
  entries_.erase(entry);
}

void Loop::end_talk(int64_t talk) {
  if (talk == kept_talk_) kept_.reset();
}

bool Loop::turn() {
  end_interrupted();
  begin_ready(false);
  close_done();  // others may be admitted to the places
  const StepPlan plan = this->plan();
  carry_out(plan);
  std::vector<Answer*> answers;
  for (const size_t i : plan.requests)
    if (entries_[i].answer->phase() != Phase::is_done) answers.push_back(entries_[i].answer.get());
  was_prompt_ = plan.what == StepPlan::What::prompt;
  switch (plan.what) {
    case StepPlan::What::nothing: return false;
    case StepPlan::What::wait: begin_ready(plan.admitted.empty()); break;  // who just came may not have to
    case StepPlan::What::prompt:
      if (!answers.empty()) read_prompt(*answers.front());
      break;
    case StepPlan::What::decode: decode(answers); break;
  }
  engine_.check_file();  // ahead of what ends: no answer is taken from bytes that are others by now
  close_done();
  return true;
}

void Loop::end_interrupted() {
  for (const Entry& entry : entries_) {
    Answer& answer = *entry.answer;
    if (answer.phase() == Phase::is_done) continue;
    attempt(answer, [&] {
      if (!answer.is_interrupted()) return;
      if (answer.phase() != Phase::waits_for_room) answer.session().rest();
      stop_waiting(answer);
      answer.interrupt();
    });
  }
}

// What an answer became tells how long the next ones are expected to be.
void Loop::close_done() {
  for (Entry& entry : entries_) {
    if (entry.answer->phase() != Phase::is_done || !entry.session) continue;
    close(entry);
    ++n_answers_;
    n_answer_tokens_ += entry.answer->n_tokens();
  }
}

// Of a talk that is alone the session is kept, as whole as it was.
void Loop::close(Entry& entry) {
  const Session& session = *entry.session;
  const Forward::BufferTally now = engine_.forward().buffer_tally();
  attempt(*entry.answer, [&] {
    entry.answer->note_session(session.decoded(), std::ssize(session.tokens()),
                               {now.n_rows - entry.tally.n_rows, now.n_misses - entry.tally.n_misses});
  });
  const int64_t talk = entry.answer->request().talk;
  const bool is_whole = !entry.is_shrunk && !session.timeline().is_suspended();
  if (talk != 0 && entries_.size() == 1 && is_whole)
    kept_ = std::move(entry.session), kept_talk_ = talk;
  else
    entry.session.reset();
}

// A request whose pages are there begins when nobody else reads a prompt: so it finds what the one before it
// computed. With `waits` the first one does once its pages are there, or are no longer worth waiting for.
void Loop::begin_ready(bool waits) {
  const auto is_in = [](Phase phase) {
    return [phase](const Entry& entry) { return entry.answer->phase() == phase; };
  };
  const bool is_reading = std::ranges::any_of(entries_, is_in(Phase::reads_prompt));
  for (const Entry& entry : entries_) {
    Answer& answer = *entry.answer;
    if (answer.phase() != Phase::waits_for_disk) continue;
    bool is_ready = waits;
    attempt(answer, [&] {
      is_ready = waits || answer.session().is_ready(answer.request().prompt, answer.request().decoded);
    });
    if (is_reading) return;  // but the disk has been asked
    if (is_ready) return begin(answer);
  }
}

void Loop::begin(Answer& answer) {
  attempt(answer, [&] {
    answer.begin_prompt(
        answer.session().hold(answer.request().prompt, answer.n_reusable(), answer.request().decoded));
  });
}

// What others know of it is more by what it has computed.
void Loop::rest_if_done(Answer& answer) {
  if (answer.phase() == Phase::is_done) attempt(answer, [&] { answer.session().rest(); });
}

// A chunk may take seconds on a CPU: who is interrupted meanwhile is left at the border before it.
int64_t Loop::read_chunk(Answer& answer) {
  const int64_t n_held = answer.session().timeline().n_tokens();
  const int64_t n = std::min(engine_.forward().max_tokens(), std::ssize(answer.request().prompt) - n_held);
  const std::function<bool()> is_interrupted = [&] { return answer.is_interrupted(); };
  const std::function<void(double)> on_layer = [&](double share) {
    answer.prompt_nears(n_held + static_cast<int64_t>(share * static_cast<double>(n)));
  };
  struct Heard {
    Heard(Forward& forward_, const std::function<bool()>& asks, const std::function<void(double)>& tells)
        : forward(forward_) {
      forward.set_interrupt(&asks), forward.set_progress(&tells);
    }
    ~Heard() { forward.set_interrupt(nullptr), forward.set_progress(nullptr); }
    Forward& forward;
  } const heard(engine_.forward(), is_interrupted, on_layer);
  return answer.session().read_chunk(answer.request().prompt);
}

void Loop::read_prompt(Answer& answer) {
  attempt(answer, [&] {
    try {
      answer.prompt_reached(read_chunk(answer));
    } catch (const Interrupted&) {
      answer.interrupt();
    }
    if (answer.phase() == Phase::decodes) {
      Answer* const reader = &answer;
      end_interrupted();
      if (answer.phase() == Phase::decodes) draw({&reader, 1});
    }
    rest_if_done(answer);
  });
}

// Each gets its place first: who has none any more ends, and the others go on. In the order of the pool, so
// that rows are fetched by rising addresses.
void Loop::decode(std::span<Answer*> answers) {
  std::ranges::sort(answers, std::ranges::less(), [](const Answer* answer) -> const std::vector<int32_t>& {
    return answer->session().timeline().row_pages();
  });
  Step step{Role::decode, {}};
  std::vector<Answer*> stepping;
  std::vector<int32_t> tokens;
  for (Answer* answer : answers) tokens.push_back(answer->next_token());
  for (size_t i = 0; i < answers.size(); ++i) {
    Timeline& timeline = answers[i]->session().timeline();
    attempt(*answers[i], [&] { engine_.cache().reserve(timeline, timeline.n_tokens() + 1); });
    rest_if_done(*answers[i]);
    if (answers[i]->phase() == Phase::is_done) continue;
    step.parts.push_back({&timeline, std::span(tokens).subspan(i, 1), 1});
    stepping.push_back(answers[i]);
  }
  if (stepping.empty()) return;
  compute(step);
  draw(stepping);
}

// From the logits of the last step, a row of each. Logits that are no numbers come from damaged weights, or
// from a damaged prefix.
void Loop::draw(std::span<Answer* const> answers) {
  std::vector<SampleRule> rules;
  int64_t n_top = -1;
  for (Answer* answer : answers) {
    rules.push_back(answer->next_rule());
    n_top = std::max(n_top, answer->request().options.n_top_logprobs);
  }
  std::vector<TokenRecord> drawn =
      sampler_.sample(engine_.forward().logits_row(0), engine_.args().vocab_size, rules, n_top);
  for (size_t i = 0; i < answers.size(); ++i) {
    Answer& answer = *answers[i];
    const int64_t n_wanted = std::max<int64_t>(answer.request().options.n_top_logprobs, 0);
    drawn[i].top.resize(std::min(drawn[i].top.size(), static_cast<size_t>(n_wanted)));
    attempt(answer, [&] {
      if (!drawn[i].is_finite) answer.session().distrust();
      drawn[i].check();
      answer.push(drawn[i]);
    });
    rest_if_done(answer);
  }
}

void Loop::compute(const Step& step) {
  for (const StepPart& part : step.parts)
    engine_.cache().reserve(*part.timeline, part.timeline->n_tokens() + std::ssize(part.tokens));
  engine_.forward().run(step);
  for (const StepPart& part : step.parts) engine_.cache().append(*part.timeline, part.tokens, step.role);
}

GenerationResult generate(Answerer& answerer, Request request, Listener& listener) {
  const int64_t number = answerer.add(std::move(request), listener);
  try {
    while (!answerer.is_done(number)) answerer.turn();
  } catch (...) {  // no request's own fault: it is still there
    answerer.drop(number);
    throw;
  }
  return answerer.take(number);
}

GenerationResult generate(Session& session, const Tokenizer& tokenizer, std::span<const int32_t> prompt,
                          const GenerationOptions& options, Listener& listener,
                          std::span<const TokenRun> decoded) {
  return generate(
      session.loop(),
      {&session, &tokenizer, {prompt.begin(), prompt.end()}, options, {decoded.begin(), decoded.end()}},
      listener);
}

}  // namespace dsv32
