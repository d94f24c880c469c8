#include "engine/loop.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/stopwatch.h"
#include "base/worker_pool.h"

namespace dsv32 {
namespace {

// Whether the next step may verify one more guess of the sequence: its row stays in the reserved pages, and
// nothing is guessed behind the end of an answer.
bool may_guess(const Sequence& sequence) {
  const std::vector<int32_t>& guesses = sequence.guesses();
  const int64_t n = std::ssize(guesses), n_tokens = sequence.cached().n_tokens() + n + 1;
  if (n >= sequence.n_possible_guesses() || n_tokens >= std::ssize(sequence.cached().pages()) * kPageTokens)
    return false;
  return guesses.empty() || !sequence.request().tokenizer->is_end_of_generation(guesses.back());
}

}  // namespace

Loop::Sequences::const_iterator Loop::find(int64_t request) const {
  const auto number_of = [](const auto& sequence) { return sequence->number; };
  const auto found = std::ranges::lower_bound(sequences_, request, {}, number_of);
  return found != sequences_.end() && (*found)->number == request ? found : sequences_.end();
}

int64_t Loop::add(Request request, Listener& listener) try {
  if (request.talk != kept_talk_) kept_.reset();  // the new request needs its room
  const auto sequence = std::make_shared<Sequence>(engine_, std::move(request), listener, n_added_);
  sequences_.push_back(sequence);
  find_donor(sequences_.size() - 1);
  if (!sequence->is_fixed()) attempt(*sequence, [&] { engine_.check_prompt(sequence->request().prompt); });
  return n_added_++;
} catch (...) {
  throw current_error();
}

GenerationResult Loop::take(int64_t request) {
  const auto found = find(request);
  const std::shared_ptr<Sequence> sequence = *found;
  sequences_.erase(found);
  return sequence->take_result();
}

void Loop::drop(int64_t request) {
  const auto found = find(request);
  if (found == sequences_.end()) return;
  try {
    end_steps();
  } catch (...) {  // without the tokens that are lost their answers would be others
    under_way_.clear();
    for (const auto& sequence : sequences_)
      if (sequence->phase == Phase::decodes) fail(*sequence);
  }
  stop_waiting(**found);
  sequences_.erase(found);
}

void Loop::end_talk(int64_t talk) {
  if (talk == kept_talk_) kept_.reset();
}

// Acts for one request: an exception ends that request, and the others go on.
template <typename Act>
void Loop::attempt(Sequence& sequence, const Act& act) try {
  act();
} catch (...) {
  fail(sequence);
}

// In a catch block: the caught exception ends the request.
void Loop::fail(Sequence& sequence) {
  const Error error = current_error();
  stop_waiting(sequence);
  sequence.fail(error);
}

// Frees the disk for the next request; not while it reads for another one.
void Loop::stop_waiting(const Sequence& sequence) {
  if (sequence.held().uses_disk() && engine_.prefix_cache()) engine_.prefix_cache()->end_reading();
}

bool Loop::advance() try {
  end_interrupted();
  begin_constraints();
  if (under_way_.empty()) begin_ready(false);
  close_done();  // frees room for requests that wait
  const NextStep next = schedule();
  carry_out(next);
  was_prompt_ = next.what == NextStep::What::prompt;
  switch (next.what) {
    case NextStep::What::nothing: return false;
    case NextStep::What::wait: wait(next.admitted.empty()); break;  // an admitted one may be ready
    case NextStep::What::prompt: read_prompt(*sequences_[next.sequences.front()], next.n_tokens); break;
    case NextStep::What::decode: decode(next); break;
    case NextStep::What::take_one: end_step(); break;
    case NextStep::What::take_all: end_steps(); break;
  }
  engine_.check_file();  // before requests end: no answer may come from a file that has changed
  close_done();
  return true;
} catch (...) {
  under_way_.clear();
  throw;
}

void Loop::wait(bool for_disk) {
  const auto phase_of = [](const auto& sequence) { return sequence->phase; };
  if (std::ranges::count(sequences_, Phase::waits_for_constraint, phase_of) > 0)
    engine_.constraints().wait();
  else
    begin_ready(for_disk);
}

void Loop::read_prompt(Sequence& sequence, int64_t n) try {
  if (sequence.phase == Phase::is_done) return;
  try {
    sequence.read_prompt(n);
  } catch (const Interrupted&) {
    sequence.interrupt();
  }
  if (sequence.phase == Phase::decodes) end_interrupted();
  Sequence* const drawn = &sequence;
  if (sequence.phase == Phase::decodes) take_tokens(draw({&drawn, 1}, 0));
  save_if_done(sequence);
} catch (...) {
  fail(sequence);
}

// Before a sequence ends, the tokens of steps under way are taken: its own may be among them.
void Loop::end_interrupted() {
  for (const auto& sequence : sequences_) {
    if (sequence->phase == Phase::is_done) continue;
    std::exception_ptr error;
    try {
      if (!sequence->is_interrupted()) continue;
    } catch (...) {
      error = std::current_exception();
    }
    end_steps();
    attempt(*sequence, [&] {
      if (error) std::rethrow_exception(error);
      if (sequence->phase == Phase::is_done) return;
      if (sequence->held().is_cached()) sequence->held().save_prefix();
      stop_waiting(*sequence);
      sequence->interrupt();
    });
  }
}

// Lets those go on whose constraints are compiled.
void Loop::begin_constraints() {
  for (const auto& sequence : sequences_)
    if (sequence->phase == Phase::waits_for_constraint)
      attempt(*sequence, [&] { sequence->begin_constraint(); });
}

// Closes the sequences of requests that are done, and counts their answers' lengths, from which the next
// ones' are expected. Keeps that of a talk that is alone, if it is not shrunk; not after an error, as its
// rows may be damaged.
void Loop::close_done() {
  for (const auto& sequence : sequences_) {
    if (sequence->phase != Phase::is_done || sequence->is_fixed() || !sequence->held().is_cached()) continue;
    attempt(*sequence, [&] { sequence->note_held(); });
    const int64_t talk = sequence->request().talk;
    const bool is_whole = !sequence->has_failed() && !sequence->held().is_shrunk();
    OpenSequence left = sequence->held().leave();
    if (talk != 0 && sequences_.size() == 1 && is_whole) kept_ = std::move(left), kept_talk_ = talk;
    ++n_answers_;
    n_answer_tokens_ += sequence->n_drawn();
  }
}

// Begins the first request whose pages are there, when no other one reads a prompt, so that it finds the
// pages that the one before it computed. `waits`: begins the first request that waits for the disk; it waits
// until its pages are there, or are no longer worth waiting for.
void Loop::begin_ready(bool waits) {
  const auto phase_of = [](const auto& sequence) { return sequence->phase; };
  const bool is_reading = std::ranges::find(sequences_, Phase::reads_prompt, phase_of) != sequences_.end();
  for (const auto& sequence : sequences_) {
    if (sequence->phase != Phase::waits_for_disk) continue;
    bool is_ready = waits;
    attempt(*sequence, [&] { is_ready = waits || sequence->is_ready(); });
    if (is_reading) return;  // is_ready() has asked the disk
    if (is_ready) return attempt(*sequence, [&] { sequence->begin_prompt(); });
  }
}

// Makes the prefix of a finished request reusable.
void Loop::save_if_done(Sequence& sequence) {
  if (sequence.phase == Phase::is_done) attempt(sequence, [&] { sequence.held().save_prefix(); });
}

// Reserves room for each sequence's token: a sequence without room ends. Returns the others, sorted by their
// pages in the pool, so that rows are fetched by rising addresses.
std::vector<Sequence*> Loop::make_room(std::vector<Sequence*> sequences) {
  std::ranges::sort(sequences, {}, [](const Sequence* sequence) -> const std::vector<int32_t>& {
    return sequence->cached().pages();
  });
  std::vector<Sequence*> stepping;
  for (Sequence* sequence : sequences) {
    CachedSequence& cached = sequence->cached();
    attempt(*sequence, [&] { engine_.cache().reserve(cached, cached.n_tokens() + 1); });
    save_if_done(*sequence);
    if (sequence->phase != Phase::is_done) stepping.push_back(sequence);
  }
  return stepping;
}

// Computes each sequence's next token and its guesses.
void Loop::run_step(std::span<Sequence* const> sequences) {
  Step step{Role::decode, {}, {}};
  for (Sequence* sequence : sequences) {
    step.tokens.push_back(sequence->next_token());
    step.tokens.insert(step.tokens.end(), sequence->guesses().begin(), sequence->guesses().end());
    step.sequences.resize(step.tokens.size(), &sequence->cached());
  }
  engine_.forward().run(std::move(step));
}

void Loop::decode(const NextStep& next) {
  std::vector<Sequence*> sequences;
  for (const size_t i : next.sequences)
    if (sequences_[i]->phase != Phase::is_done) sequences.push_back(sequences_[i].get());
  sequences = make_room(std::move(sequences));
  if (sequences.empty()) return;
  const auto start = std::chrono::steady_clock::now();
  const int64_t n_guesses = guess(sequences, next.n_guesses);
  run_step(sequences);
  RunningStep step = draw(sequences, free_rows());
  if (next.is_group) return under_way_.push_back(std::move(step));
  take_tokens(std::move(step));
  pace_.note(std::ssize(sequences), n_guesses, seconds_since(start));
}

// The sampler's first row that no step under way uses.
int64_t Loop::free_rows() const {
  int64_t first = 0;
  const auto is_taken = [&](const RunningStep& step) { return step.drawing.first_row == first; };
  while (std::ranges::any_of(under_way_, is_taken)) first += engine_.n_group_rows();
  return first;
}

void Loop::end_step() {
  RunningStep step = std::move(under_way_.front());
  under_way_.pop_front();
  take_tokens(std::move(step));
}

void Loop::end_steps() {
  while (!under_way_.empty()) end_step();
}

// Reserves room for guesses too, where that leaves a free page to each sequence: so guesses take no room that
// an answer needs.
void Loop::reserve_for_guesses(std::span<Sequence* const> sequences, int64_t n_guesses) {
  for (Sequence* sequence : sequences) {
    CachedSequence& cached = sequence->cached();
    const int64_t n_tokens = cached.n_tokens() + 1 + n_guesses;
    if (engine_.cache().has_spare(cached, n_tokens, std::ssize(sequences)))
      engine_.cache().reserve(cached, n_tokens);
  }
}

// Lets the block for drafts guess up to n_wanted tokens of each sequence. Returns how many at most it did.
int64_t Loop::guess(std::span<Sequence* const> sequences, int64_t n_wanted) {
  for (Sequence* sequence : sequences) sequence->begin_guesses();
  if (n_wanted > 0) reserve_for_guesses(sequences, n_wanted);
  for (int64_t nth = 0; nth < n_wanted; ++nth) {
    std::vector<Sequence*> guessing;
    for (Sequence* sequence : sequences)
      if (std::ssize(sequence->guesses()) == nth && may_guess(*sequence)) guessing.push_back(sequence);
    if (guessing.empty()) return nth;
    guess_next(guessing, nth);
  }
  return n_wanted;
}

// Draws the nth guess of each sequence as its token will be drawn: so they agree as often as their logits do.
// A sequence whose guess cannot be drawn has no more guesses in this step.
void Loop::guess_next(std::span<Sequence* const> sequences, int64_t nth) {
  std::vector<CachedSequence*> cached;
  std::vector<int32_t> tokens;
  std::vector<DrawnToken> guesses;
  for (Sequence* sequence : sequences) {
    cached.push_back(&sequence->cached());
    tokens.push_back(nth == 0 ? sequence->next_token() : sequence->guesses().back());
    guesses.push_back({sequence, nth});
  }
  engine_.forward().guess(std::move(cached), std::move(tokens), nth);
  for (const DrawnToken& guess : take_drawing(begin_drawing(std::move(guesses), -1, 0))) {
    const int32_t token = guess.record.chosen.id;
    if (!guess.error && guess.record.is_finite)
      guess.sequence->guess(guesser_ ? guesser_(*guess.sequence, nth, token) : token);
  }
}

// How the tokens are to be drawn, from the sampler's rows from `first` on. Masks are made here, while a GPU
// still computes the step.
std::vector<SampleRule> Loop::rules_of(std::span<DrawnToken> tokens, int64_t first) {
  std::vector<SampleRule> rules;
  std::vector<WantedMask> masks;
  for (DrawnToken& token : tokens) {
    rules.push_back(token.sequence->rule(token.nth));
    if (token.sequence->has_constraint())
      masks.push_back(token.sequence->wanted_mask(
          engine_.sampler().mask_of(first + std::ssize(rules) - 1, engine_.args().vocab_size), token.nth,
          token.error));
  }
  if (!masks.empty()) engine_.constraints().write(masks);
  for (size_t i = 0; i < rules.size(); ++i)
    rules[i].is_masked = tokens[i].sequence->has_constraint() && !tokens[i].error;
  return rules;
}

// Begins to draw the tokens from the last step's logits.
Loop::RunningStep Loop::begin_drawing(std::vector<DrawnToken> tokens, int64_t n_top, int64_t first) {
  const std::vector<SampleRule> rules = rules_of(tokens, first);
  return {std::move(tokens), engine_.sampler().begin(engine_.forward().logits_row(0),
                                                     engine_.args().vocab_size, rules, n_top, first)};
}

std::vector<Loop::DrawnToken> Loop::take_drawing(RunningStep step) {
  std::vector<TokenRecord> drawn = engine_.sampler().take(step.drawing);
  for (size_t i = 0; i < drawn.size(); ++i) step.tokens[i].record = std::move(drawn[i]);
  return std::move(step.tokens);
}

// Begins to draw each sequence's next token, and those that its guesses stand for.
Loop::RunningStep Loop::draw(std::span<Sequence* const> sequences, int64_t first) {
  int64_t n_top = -1;
  std::vector<DrawnToken> tokens;
  for (Sequence* sequence : sequences) {
    n_top = std::max(n_top, sequence->request().options.n_top_logprobs);
    for (int64_t nth = 0; nth <= std::ssize(sequence->guesses()); ++nth) tokens.push_back({sequence, nth});
  }
  return begin_drawing(std::move(tokens), n_top, first);
}

// Takes each sequence's next token, and as many more as its guesses are right. The rows of the guesses behind
// the last token that was taken are cut off.
void Loop::take_tokens(RunningStep step) {
  std::vector<DrawnToken> tokens = take_drawing(std::move(step));
  std::vector<Sequence*> sequences;
  std::vector<Stage::Cut> cuts;
  for (size_t first = 0, n = 0; first < tokens.size(); first += n) {
    Sequence& sequence = *sequences.emplace_back(tokens[first].sequence);
    n = sequence.guesses().size() + 1;
    const Taken taken = take_tokens_of(std::span(tokens).subspan(first, n));
    const int64_t n_cut = static_cast<int64_t>(n) - taken.n_tokens;
    if (n_cut > 0) cuts.push_back({&sequence.cached(), sequence.cached().n_tokens() - n_cut});
    pace_.note_guesses(std::ssize(sequence.guesses()), taken.n_right);
    sequence.end_guesses(taken.n_right);
  }
  engine_.forward().cut(cuts);
  for (Sequence* sequence : sequences) save_if_done(*sequence);
}

// Takes the tokens drawn for one sequence, up to the first that was not guessed or that ends the answer.
// Logits that are not finite come from damaged weights, or from a damaged prefix.
Loop::Taken Loop::take_tokens_of(std::span<DrawnToken> tokens) {
  Sequence& sequence = *tokens.front().sequence;
  const std::vector<int32_t>& guesses = sequence.guesses();
  const int64_t n_wanted = std::max<int64_t>(sequence.request().options.n_top_logprobs, 0);
  Taken taken;
  for (DrawnToken& token : tokens) {
    TokenRecord& record = token.record;
    record.top.resize(std::min(record.top.size(), static_cast<size_t>(n_wanted)));
    try {
      if (token.error) std::rethrow_exception(token.error);
      if (!record.is_finite) sequence.held().discard_prefix();
      record.check();
      if (drawer_) record.chosen.id = drawer_(sequence, token.nth, record.chosen.id);
      sequence.push(record, token.nth);
    } catch (...) {
      fail(sequence);
    }
    ++taken.n_tokens;
    const bool is_right = !sequence.has_failed() && token.nth < std::ssize(guesses) &&
                          guesses[static_cast<size_t>(token.nth)] == sequence.next_token();
    if (is_right) ++taken.n_right;
    if (!is_right || sequence.phase == Phase::is_done) break;
  }
  return taken;
}

// --- The scheduler's view of the sequences, and what it decides

NextStep Loop::schedule() {
  const MemoryPlan& plan = engine_.plan();
  const CachePlan& cache = plan.cache;
  std::vector<SequenceState> states;
  for (const auto& sequence : sequences_) {
    states.push_back(sequence->state());
    for (const RunningStep& step : under_way_)
      if (std::ranges::count(step.tokens, sequence.get(), &DrawnToken::sequence) > 0)
        states.back().is_under_way = true;
  }
  for (size_t i = 0; i < states.size(); ++i) count_shared_pages(i, states);
  SchedulerInput input{states,
                       {cache.n_pages(), cache.n_slot_pages(), cache.max_seqs},
                       n_answers_ ? n_answer_tokens_ / n_answers_ : 0,
                       plan.chunk,
                       was_prompt_,
                       cache.buffer_pages(),
                       std::min(cache.buffer_pages(), least_buffer_pages(engine_.args()))};
  // With experts in host memory the processors are the bound, whatever the stages do.
  if (plan.n_host_expert_layers() == 0) input.n_stages = plan.n_stages();
  input.n_under_way = std::ssize(under_way_), input.n_guesses = cache.n_guesses;
  if (may_guess_less_) input.pace = &pace_;
  return next_step(input);
}

// Finds, among earlier sequences that are not done, the one with the longest common prefix; of several the
// last, which stays longest.
void Loop::find_donor(size_t i) {
  Sequence& own = *sequences_[i];
  own.donor_number.reset(), own.n_common = 0;
  if (!engine_.prefix_cache()) return;  // no prompt finds another's pages
  const std::vector<int32_t>& prompt = own.request().prompt;
  for (size_t j = 0; j < i; ++j) {
    const Sequence& other = *sequences_[j];
    if (other.phase == Phase::is_done) continue;
    const int64_t n = std::ranges::mismatch(prompt, other.request().prompt).in1 - prompt.begin();
    if (n >= std::max(own.n_common, kPageTokens)) own.donor_number = other.number, own.n_common = n;
  }
}

// How many pages sequence i shares with its donor: counted once it holds some, before that estimated from the
// common prefix of their prompts.
void Loop::count_shared_pages(size_t i, std::span<SequenceState> states) {
  const Sequence& own = *sequences_[i];
  if (!own.donor_number || own.phase == Phase::is_done) return;
  auto donor = find(*own.donor_number);
  if (donor == sequences_.end() || (*donor)->phase == Phase::is_done) {
    find_donor(i);
    if (!own.donor_number) return;
    donor = find(*own.donor_number);
  }
  states[i].donor = static_cast<size_t>(donor - sequences_.begin());
  states[i].n_shared_pages = own.n_common / kPageTokens;
  if (!states[i].is_admitted() || own.phase == Phase::waits_for_disk ||
      !states[*states[i].donor].is_admitted())
    return;
  const std::vector<int32_t>& pages = own.cached().pages();
  const int64_t n_same = std::ranges::mismatch(pages, (*donor)->cached().pages()).in1 - pages.begin();
  states[i].n_shared_pages = std::min(n_same, own.cached().n_tokens() / kPageTokens);
}

void Loop::carry_out(const NextStep& next) {
  n_restarted_ += std::ssize(next.restarted), n_shrunk_ += std::ssize(next.shrunk);
  const auto each = [&](const std::vector<size_t>& changed, const auto& act) {
    for (const size_t i : changed) {
      if (sequences_[i]->phase != Phase::is_done) attempt(*sequences_[i], [&] { act(i); });
      close_done();  // frees what a failed one held for the next
    }
  };
  each(next.restarted, [&](size_t i) { begin_anew(i); });
  each(next.admitted, [&](size_t i) { admit(i); });
  each(next.shrunk, [&](size_t i) { sequences_[i]->held().set_shrunk(true); });
  each(next.grown, [&](size_t i) { sequences_[i]->held().set_shrunk(false); });
}

// As if the request had just been added: the same seed gives the same tokens.
void Loop::begin_anew(size_t i) {
  const Sequence& old = *sequences_[i];
  stop_waiting(old);
  const auto fresh = std::make_shared<Sequence>(engine_, old.request(), old.listener(), old.number);
  fresh->n_overtaken = old.n_overtaken;
  fresh->donor_number = old.donor_number, fresh->n_common = old.n_common;
  sequences_[i] = fresh;
}

void Loop::admit(size_t i) {
  const bool goes_on = kept_ && sequences_[i]->request().talk == kept_talk_;
  sequences_[i]->admit(goes_on ? std::move(kept_) : OpenSequence());
  for (size_t j = 0; j < i; ++j)
    if (sequences_[j]->phase == Phase::waits_for_room) ++sequences_[j]->n_overtaken;
}

}  // namespace dsv32
