#include "engine/loop.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/stopwatch.h"

namespace dsv32 {

Loop::Sequences::const_iterator Loop::find(int64_t request) const {
  const auto number_of = [](const auto& sequence) { return sequence->number; };
  const auto found = std::ranges::lower_bound(sequences_, request, {}, number_of);
  return found != sequences_.end() && (*found)->number == request ? found : sequences_.end();
}

int64_t Loop::add(Request request, Listener& listener) try {
  if (request.talk != kept_talk_) kept_.reset();  // the new request needs its room
  const std::shared_ptr<Sequence> sequence =
      request.sequence ? std::shared_ptr<Sequence>(std::shared_ptr<void>(), request.sequence)
                       : std::make_shared<Sequence>(engine_);
  sequence->ask(std::move(request), listener, n_added_);
  sequences_.push_back(sequence);
  find_donor(sequences_.size() - 1);
  if (!sequence->is_fixed) attempt(*sequence, [&] { engine_.check_prompt(sequence->request().prompt); });
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
  } catch (...) {
    steps_.clear();  // the next step meets the error again
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

// Frees the disk for the next request.
void Loop::stop_waiting(const Sequence& sequence) {
  PrefixCache* prefixes = engine_.prefix_cache();
  if (prefixes && sequence.phase == Phase::waits_for_disk) prefixes->end_reading();
}

bool Loop::turn() try {
  if (must_end_steps()) end_steps();
  end_interrupted();
  begin_constraints();
  begin_ready(false);
  close_done();  // frees room for requests that wait
  const StepPlan plan = this->plan();
  if (!steps_.empty() && !is_steady(plan)) {
    end_steps();
    engine_.check_file();
    close_done();
    return true;
  }
  carry_out(plan);
  std::vector<Sequence*> stepping;
  for (const size_t i : plan.requests)
    if (sequences_[i]->phase != Phase::is_done) stepping.push_back(sequences_[i].get());
  was_prompt_ = plan.what == StepPlan::What::prompt;
  if (plan.what == StepPlan::What::nothing) return false;
  if (plan.what == StepPlan::What::wait) {
    const auto for_constraint = [](const auto& sequence) {
      return sequence->phase == Phase::waits_for_constraint;
    };
    if (std::ranges::any_of(sequences_, for_constraint))
      engine_.constraints().wait();
    else
      begin_ready(plan.admitted.empty());  // a new one may be ready
  }
  if (was_prompt_ && !stepping.empty()) {
    Sequence& sequence = *stepping.front();
    try {
      sequence.read_prompt();
      if (sequence.phase == Phase::decodes) end_interrupted();
      if (sequence.phase == Phase::decodes) take_tokens(draw(stepping, 0));
      rest_if_done(sequence);
    } catch (...) {
      fail(sequence);
    }
  }
  if (plan.what == StepPlan::What::decode) decode(std::move(stepping));
  engine_.check_file();  // before requests end: no answer may come from a file that has changed
  close_done();
  return true;
} catch (...) {
  steps_.clear();
  throw;
}

void Loop::end_interrupted() {
  for (const auto& sequence : sequences_) {
    if (sequence->phase == Phase::is_done) continue;
    attempt(*sequence, [&] {
      if (!sequence->is_interrupted()) return;
      if (sequence->is_cached()) sequence->rest();
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
// ones' are expected. Keeps that of a talk that is alone, if it is neither shrunk nor suspended.
void Loop::close_done() {
  for (const auto& sequence : sequences_) {
    if (sequence->phase != Phase::is_done || sequence->is_fixed || !sequence->is_cached()) continue;
    attempt(*sequence, [&] { sequence->note_held(); });
    const int64_t talk = sequence->request().talk;
    const bool is_whole = !sequence->is_shrunk && !sequence->cached().is_suspended();
    OpenSequence cached = sequence->leave();
    if (talk != 0 && sequences_.size() == 1 && is_whole) kept_ = std::move(cached), kept_talk_ = talk;
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
void Loop::rest_if_done(Sequence& sequence) {
  if (sequence.phase == Phase::is_done) attempt(sequence, [&] { sequence.rest(); });
}

// Reserves room for each sequence's token: a sequence without room ends. Returns the others, sorted by their
// pages in the pool, so that rows are fetched by rising addresses.
std::vector<Sequence*> Loop::make_room(std::vector<Sequence*> sequences) {
  std::ranges::sort(sequences, {}, [](const Sequence* sequence) -> const std::vector<int32_t>& {
    return sequence->cached().row_pages();
  });
  std::vector<Sequence*> stepping;
  for (Sequence* sequence : sequences) {
    CachedSequence& cached = sequence->cached();
    attempt(*sequence, [&] { engine_.cache().reserve(cached, cached.n_tokens() + 1); });
    rest_if_done(*sequence);
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

void Loop::decode(std::vector<Sequence*> sequences) {
  const int64_t n = n_groups(std::ssize(sequences));
  if (n > 1 || !steps_.empty()) return decode_in_groups(sequences, n);
  const std::vector<Sequence*> stepping = make_room(std::move(sequences));
  if (stepping.empty()) return;
  const auto start = std::chrono::steady_clock::now();
  const int64_t n_guesses = guess(stepping);
  run_step(stepping);
  const Verified verified = take_tokens(draw(stepping, 0));
  pace_.note(std::ssize(stepping), n_guesses, verified, seconds_since(start));
}

// Reserves room for guesses too, where that leaves a free page to each sequence: so guesses take no room that
// an answer needs.
void Loop::reserve_ahead(std::span<Sequence* const> sequences, int64_t n_guesses) {
  for (Sequence* sequence : sequences) {
    CachedSequence& cached = sequence->cached();
    const int64_t n_tokens = cached.n_tokens() + 1 + n_guesses;
    if (engine_.cache().has_spare(cached, n_tokens, std::ssize(sequences)))
      engine_.cache().reserve(cached, n_tokens);
  }
}

// Lets the block for drafts guess tokens of each sequence. Returns how many at most.
int64_t Loop::guess(std::span<Sequence* const> sequences) {
  int64_t n_possible = 0;
  for (Sequence* sequence : sequences) {
    sequence->begin_guesses();
    n_possible = std::max(n_possible, sequence->n_possible_guesses());
  }
  const int64_t n_wanted = pace_.n_guesses(std::ssize(sequences), n_possible);
  if (n_wanted > 0) reserve_ahead(sequences, n_wanted);
  for (int64_t nth = 0; nth < n_wanted; ++nth) {
    std::vector<Sequence*> guessing;
    for (Sequence* sequence : sequences)
      if (std::ssize(sequence->guesses()) == nth && sequence->may_guess()) guessing.push_back(sequence);
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
  std::vector<Row> rows;
  for (Sequence* sequence : sequences) {
    cached.push_back(&sequence->cached());
    tokens.push_back(nth == 0 ? sequence->next_token() : sequence->guesses().back());
    rows.push_back({sequence, nth});
  }
  engine_.forward().guess(std::move(cached), std::move(tokens), nth);
  for (const Row& row : take_drawing(begin_drawing(std::move(rows), -1, 0))) {
    const int32_t token = row.drawn.chosen.id;
    if (!row.error && row.drawn.is_finite)
      row.sequence->guess(guesser_ ? guesser_(*row.sequence, nth, token) : token);
  }
}

// How tokens are to be drawn from the rows, as the sampler's rows from `first` on. Masks are made here, while
// a GPU still computes the step.
std::vector<SampleRule> Loop::rules_of(std::span<Row> rows, int64_t first) {
  std::vector<SampleRule> rules;
  std::vector<WantedMask> masks;
  std::vector<size_t> masked;  // whose they are
  for (const Row& row : rows) {
    rules.push_back(row.sequence->rule(row.ahead));
    if (!row.sequence->has_constraint()) continue;
    masked.push_back(rules.size() - 1);
    masks.push_back(row.sequence->wanted_mask(
        engine_.sampler().mask_of(first + std::ssize(rules) - 1, engine_.args().vocab_size), row.ahead));
  }
  if (!masks.empty()) engine_.constraints().write(masks);
  for (size_t i = 0; i < masks.size(); ++i) {
    rules[masked[i]].is_masked = !masks[i].error;
    rows[masked[i]].error = masks[i].error;
  }
  return rules;
}

// Begins to draw a token from each row of the last step's logits.
Loop::Drawing Loop::begin_drawing(std::vector<Row> rows, int64_t n_top, int64_t first) {
  const std::vector<SampleRule> rules = rules_of(rows, first);
  return {std::move(rows), engine_.sampler().begin(engine_.forward().logits_row(0), engine_.args().vocab_size,
                                                   rules, n_top, first)};
}

std::vector<Loop::Row> Loop::take_drawing(Drawing drawing) {
  std::vector<TokenRecord> drawn = engine_.sampler().take(drawing.tokens);
  for (size_t i = 0; i < drawn.size(); ++i) drawing.rows[i].drawn = std::move(drawn[i]);
  return std::move(drawing.rows);
}

// Begins to draw each sequence's next token, and those that its guesses stand for.
Loop::Drawing Loop::draw(std::span<Sequence* const> sequences, int64_t first) {
  int64_t n_top = -1;
  std::vector<Row> rows;
  for (Sequence* sequence : sequences) {
    n_top = std::max(n_top, sequence->request().options.n_top_logprobs);
    for (int64_t ahead = 0; ahead <= std::ssize(sequence->guesses()); ++ahead)
      rows.push_back({sequence, ahead});
  }
  return begin_drawing(std::move(rows), n_top, first);
}

// Takes each sequence's next token, and as many more as its guesses are right. What follows the first wrong
// guess is cut off.
Verified Loop::take_tokens(Drawing drawing) {
  std::vector<Row> rows = take_drawing(std::move(drawing));
  std::vector<Sequence*> sequences;
  std::vector<Stage::Cut> cuts;
  Verified verified;
  for (size_t first = 0, n = 0; first < rows.size(); first += n) {
    Sequence& sequence = *sequences.emplace_back(rows[first].sequence);
    n = sequence.guesses().size() + 1;
    take_rows(std::span(rows).subspan(first, n));
    const int64_t n_kept = sequence.end_guesses(verified);
    if (n_kept < sequence.cached().n_tokens()) cuts.push_back({&sequence.cached(), n_kept});
  }
  engine_.forward().cut(cuts);
  for (Sequence* sequence : sequences) rest_if_done(*sequence);
  return verified;
}

// Takes the tokens drawn for one sequence, up to the first that was not guessed. Logits that are not finite
// come from damaged weights, or from a damaged prefix.
void Loop::take_rows(std::span<Row> rows) {
  Sequence& sequence = *rows.front().sequence;
  const int64_t n_wanted = std::max<int64_t>(sequence.request().options.n_top_logprobs, 0);
  for (Row& row : rows) {
    row.drawn.top.resize(std::min(row.drawn.top.size(), static_cast<size_t>(n_wanted)));
    try {
      if (row.error) std::rethrow_exception(row.error);
      if (!row.drawn.is_finite) sequence.discard_prefix();
      row.drawn.check();
      int32_t& token = row.drawn.chosen.id;
      if (drawer_) token = drawer_(sequence, row.ahead, token);
      sequence.push(row.drawn);
    } catch (...) {
      fail(sequence);
    }
    if (!sequence.accepts_guess()) return;
  }
}

// --- Steps of several groups of sequences, each in another stage

// Into how many groups a decode step is divided: one for each stage, so that all devices work. Not with
// experts in host memory, where the processors are the bound.
int64_t Loop::n_groups(int64_t n_sequences) const {
  if (engine_.plan().n_host_expert_layers() > 0) return 1;
  return std::min(static_cast<int64_t>(engine_.forward().n_stages()), n_sequences);
}

// Begins a step of sequences that are in no step, an equal share of all; or ends the step that began
// first.
void Loop::decode_in_groups(const std::vector<Sequence*>& sequences, int64_t n_groups) {
  std::vector<Sequence*> resting;
  for (Sequence* sequence : sequences) {
    const auto is_here = [&](const Drawing& step) {
      return std::ranges::count(step.rows, sequence, &Row::sequence) > 0;
    };
    if (std::ranges::none_of(steps_, is_here)) resting.push_back(sequence);
  }
  if (resting.empty() || std::ssize(steps_) >= n_groups) return end_step();
  const int64_t share = (std::ssize(sequences) + n_groups - 1) / n_groups;
  resting.resize(std::min(resting.size(), static_cast<size_t>(share)));
  resting = make_room(std::move(resting));
  if (resting.empty()) return;
  run_step(resting);
  int64_t first = 0;
  const auto is_taken = [&](const Drawing& step) { return step.tokens.first_row == first; };
  while (std::ranges::any_of(steps_, is_taken)) first += engine_.n_group_rows();
  steps_.push_back(draw(resting, first));
}

void Loop::end_step() {
  Drawing step = std::move(steps_.front());
  steps_.pop_front();
  take_tokens(std::move(step));
}

void Loop::end_steps() {
  while (!steps_.empty()) end_step();
}

// Whether something else than decode steps comes next.
bool Loop::must_end_steps() const {
  return !steps_.empty() && std::ranges::any_of(sequences_, [](const auto& sequence) {
    return sequence->phase == Phase::waits_for_disk || sequence->phase == Phase::reads_prompt ||
           (sequence->phase != Phase::is_done && sequence->is_interrupted());
  });
}

bool Loop::is_steady(const StepPlan& plan) {
  return plan.what == StepPlan::What::decode && plan.suspended.empty() && plan.restarted.empty() &&
         plan.admitted.empty() && plan.shrunk.empty() && plan.resumed.empty() && plan.grown.empty();
}

// --- The scheduler's view of the sequences, and its plan

StepPlan Loop::plan() {
  const CachePlan& cache = engine_.plan().cache;
  std::vector<SequenceState> states;
  for (const auto& sequence : sequences_) {
    const bool is_cached = sequence->is_admitted();
    sequence->is_suspended = is_cached && sequence->cached().is_suspended();
    sequence->n_held = is_cached ? sequence->cached().n_tokens() : 0;
    if (!is_cached) sequence->is_shrunk = false;
    states.push_back(*sequence);
  }
  for (size_t i = 0; i < states.size(); ++i) share(i, states);
  return next_step({states,
                    {cache.n_row_pages(), cache.n_key_pages(), cache.n_slot_pages(), cache.max_seqs},
                    n_answers_ ? n_answer_tokens_ / n_answers_ : 0,
                    engine_.plan().chunk,
                    was_prompt_,
                    cache.buffer_pages(),
                    std::min(cache.buffer_pages(), least_buffer_pages(engine_.args()))});
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
void Loop::share(size_t i, std::span<SequenceState> states) {
  const Sequence& own = *sequences_[i];
  if (!own.donor_number || own.phase == Phase::is_done) return;
  auto donor = find(*own.donor_number);
  if (donor == sequences_.end() || (*donor)->phase == Phase::is_done) {
    find_donor(i);
    if (!own.donor_number) return;
    donor = find(*own.donor_number);
  }
  states[i].donor = static_cast<size_t>(donor - sequences_.begin());
  states[i].n_shared_rows = states[i].n_shared_keys = own.n_common / kPageTokens;
  if (!own.is_admitted() || own.phase == Phase::waits_for_disk || !(*donor)->is_admitted()) return;
  const CachedSequence &ours = own.cached(), &its = (*donor)->cached();
  const auto n_same = [&](const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
    return std::min<int64_t>(std::ranges::mismatch(a, b).in1 - a.begin(), ours.n_tokens() / kPageTokens);
  };
  states[i].n_shared_rows = n_same(ours.row_pages(), its.row_pages());
  states[i].n_shared_keys = n_same(ours.key_pages(), its.key_pages());
}

void Loop::carry_out(const StepPlan& plan) {
  n_suspended_ += std::ssize(plan.suspended), n_restarted_ += std::ssize(plan.restarted);
  n_shrunk_ += std::ssize(plan.shrunk);
  const auto each = [&](const std::vector<size_t>& requests, const auto& act) {
    for (const size_t i : requests) {
      if (sequences_[i]->phase != Phase::is_done) attempt(*sequences_[i], [&] { act(i); });
      close_done();  // frees what a failed one held for the next
    }
  };
  each(plan.suspended, [&](size_t i) { sequences_[i]->suspend(); });
  each(plan.restarted, [&](size_t i) { stop_waiting(*sequences_[i]), sequences_[i]->begin_anew(); });
  each(plan.admitted, [&](size_t i) { admit(i); });
  each(plan.shrunk, [&](size_t i) { sequences_[i]->set_shrunk(true); });
  each(plan.resumed, [&](size_t i) { sequences_[i]->resume(); });
  each(plan.grown, [&](size_t i) { sequences_[i]->set_shrunk(false); });
}

void Loop::admit(size_t i) {
  const bool goes_on = kept_ && sequences_[i]->request().talk == kept_talk_;
  sequences_[i]->admit(goes_on ? std::move(kept_) : OpenSequence());
  for (size_t j = 0; j < i; ++j)
    if (sequences_[j]->phase == Phase::waits_for_room) ++sequences_[j]->n_overtaken;
}

}  // namespace dsv32
