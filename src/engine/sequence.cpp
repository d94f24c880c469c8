#include "engine/sequence.h"

#include <algorithm>
#include <utility>

#include "base/stopwatch.h"
#include "text/marks.h"

namespace dsv32 {
namespace {

// The length of the longest end of `text` that begins `stop` but is not all of it.
size_t held_length(std::string_view text, std::string_view stop) {
  for (size_t n = std::min(text.size(), stop.size() - 1); n > 0; --n)
    if (text.ends_with(stop.substr(0, n))) return n;
  return 0;
}

}  // namespace

Sequence::Sequence(Engine& engine, Request request, Listener& listener, int64_t number_)
    : number(number_),
      engine_(engine),
      request_(std::move(request)),
      listener_(listener),
      own_(engine),
      parser_(*request_.tokenizer, request_.options.thinking),
      stops_(request_.options.stops) {
  request_.options.check();
  if (request_.options.tools) calls_.emplace();
  if (request_.is_held) next_token_ = request_.prompt.back();
  result_.n_prompt_tokens = n_prompt();
  const std::string& constraint = request_.options.constraint;
  if (!constraint.empty()) compiled_ = engine_.constraints().ask(constraint);
  begin_constraint();
}

SequenceState Sequence::state() const {
  const int64_t n_wanted = request_.options.n_most(), context = engine_.plan().cache.max_context;
  SequenceState state;
  state.phase = phase, state.is_fixed = is_fixed(), state.n_overtaken = n_overtaken;
  state.n_prompt = n_prompt();
  state.n_most = n_wanted < 0 ? context : std::min(context, n_prompt() + n_wanted);
  if (!state.is_admitted()) return state;
  state.is_shrunk = held().is_shrunk(), state.n_held = cached().n_tokens();
  state.n_possible_guesses = n_possible_guesses();
  return state;
}

void Sequence::begin_constraint() {
  if (compiled_ && !compiled_->is_done) return;
  if (compiled_) constraint_ = engine_.constraints().begin(compiled_, *request_.tokenizer);
  phase = !is_fixed() ? Phase::waits_for_room : request_.is_held ? Phase::decodes : Phase::waits_for_disk;
}

void Sequence::admit(OpenSequence opened) {
  own_.enter(std::move(opened));
  tally_before_ = engine_.forward().buffer_tally();
  phase = Phase::waits_for_disk;
  begun_ = Clock::now();
}

// How many tokens of the prompt are remembered for others: in thinking mode the next turn's prompt drops the
// thinking, and so differs from this prompt from the last answer's mark on. With tools the next prompt may
// bring results, and keep it.
int64_t Sequence::n_reusable_prompt() const {
  const auto is_mark = [&](int32_t id) {
    return std::ranges::count(marks::kAnswers, id, [&](auto mark) { return request_.tokenizer->find(mark); });
  };
  if (request_.options.thinking && !request_.options.tools)
    for (size_t i = request_.prompt.size(); i-- > 0;)
      if (is_mark(request_.prompt[i])) return static_cast<int64_t>(i);
  return std::numeric_limits<int64_t>::max();
}

void Sequence::begin_prompt() {
  result_.n_cached_tokens = held().hold(request_.prompt, n_reusable_prompt(), request_.decoded);
  result_.n_read_tokens = result_.n_cached_tokens;
  result_.why_none_cached = held().why_none_cached();
  phase = Phase::reads_prompt;
  report_prefill(result_.n_cached_tokens);
}

void Sequence::report_prefill(int64_t n_done) {
  listener_.on_prefill(n_done, n_prompt(), result_.n_cached_tokens);
}

void Sequence::read_prompt(int64_t n) {
  const int64_t n_before = cached().n_tokens();
  const StepWatch watch{
      [this] { return is_interrupted(); },
      [&](double share) { report_prefill(n_before + static_cast<int64_t>(share * static_cast<double>(n))); }};
  const Forward::Watched watched(engine_.forward(), watch);
  const int64_t n_done = held().read_chunk(request_.prompt, n);
  result_.n_read_tokens = n_done, result_.prefill_seconds = seconds_since(begun_);
  report_prefill(n_done);
  if (n_done < n_prompt()) return;
  phase = Phase::decodes;
  begun_ = Clock::now();
  if (request_.options.n_most() == 0) finish(FinishReason::length);
}

// After max_thinking tokens of thinking, </think> takes the place of the drawn token.
void Sequence::push(const TokenRecord& drawn, int64_t n_right) {
  const GenerationOptions& options = request_.options;
  const bool thinks = options.thinking && parser_.is_thinking();
  const std::optional<int32_t> end_of_thinking = thinks && result_.n_thinking_tokens == options.max_thinking
                                                     ? request_.tokenizer->find(marks::kEndThink)
                                                     : std::nullopt;
  next_token_ = end_of_thinking.value_or(drawn.chosen.id);
  if (options.n_top_logprobs >= 0 && next_token_ == drawn.chosen.id) result_.logprobs.push_back(drawn);
  ++result_.n_completion_tokens;
  if (thinks) ++result_.n_thinking_tokens;
  if (constraint_ && !thinks) constraint_->push(next_token_);
  if (request_.tokenizer->is_end_of_generation(next_token_)) return finish(FinishReason::stop);
  const CompletionParser::Delta delta = parser_.push(next_token_);
  emit(delta);
  if (stops_.found()) return finish(FinishReason::stop);
  if (held().context_left() + std::ssize(guesses_) == n_right ||
      result_.n_completion_tokens == options.max_tokens || result_.n_answer_tokens() == options.max_answer)
    finish(FinishReason::length);
}

void Sequence::begin_guesses() { guesses_.clear(), after_guess_.clear(); }

// Each token of a step needs slots for the rows that it selects, and for its own. What follows the end of the
// answer is not guessed.
int64_t Sequence::n_possible_guesses() const {
  const int64_t topk = std::min(engine_.args().topk(), engine_.plan().cache.max_context);
  const int64_t n_wanted = request_.options.n_most();
  const int64_t n_slots = cached().is_resident() ? kMostGuesses : cached().n_slots() / (topk + 1) - 1;
  const int64_t n_context = held().context_left();
  const int64_t n_left = n_wanted < 0 ? n_context : std::min(n_context, n_wanted - n_drawn());
  return std::max<int64_t>(0, std::min(n_slots, n_left - 1));
}

void Sequence::guess(int32_t token) {
  if (constraint_) {
    after_guess_.push_back(after_guess_.empty() ? *constraint_ : after_guess_.back());
    if (!thinks(std::ssize(guesses_))) after_guess_.back().push(token);
  }
  guesses_.push_back(token);
}

bool Sequence::thinks(int64_t nth) const {
  const int32_t end = request_.tokenizer->find(marks::kEndThink).value_or(-1);
  return parser_.is_thinking() &&
         std::find(guesses_.begin(), guesses_.begin() + nth, end) == guesses_.begin() + nth;
}

void Sequence::end_guesses(int64_t n_right) {
  result_.n_guessed += std::ssize(guesses_), result_.n_accepted += n_right;
  begin_guesses();
}

void Sequence::emit(const CompletionParser::Delta& delta) {
  if (!delta.reasoning.empty()) listener_.on_reasoning(delta.reasoning);
  emit_answer(stops_.push(calls_ ? calls_->push(delta.content) : delta.content));
}

void Sequence::emit_answer(const std::string& text) {
  if (text.empty()) return;
  result_.completion.content += text;
  listener_.on_answer(text);
}

void Sequence::finish(FinishReason reason) {
  result_.finish_reason = reason;
  if (phase == Phase::decodes) {
    emit(parser_.finish());
    if (calls_) {
      emit_answer(stops_.push(calls_->finish(reason != FinishReason::stop)));
      static_cast<FoundCalls&>(result_.completion) = calls_->found();
    }
    emit_answer(stops_.finish());
    result_.completion.reasoning = parser_.completion().reasoning;
    result_.completion.thinking_closed = parser_.completion().thinking_closed;
    result_.decode_seconds = seconds_since(begun_);
  }
  phase = Phase::is_done;
}

void Sequence::fail(const Error& error) {
  error_ = error;
  phase = Phase::is_done;
}

void Sequence::note_held() {
  const Forward::BufferTally now = engine_.forward().buffer_tally();
  result_.decoded = held().decoded();
  result_.n_held_tokens = cached().n_tokens();
  result_.buffer_tally = {now.n_rows - tally_before_.n_rows, now.n_misses - tally_before_.n_misses};
}

GenerationResult Sequence::take_result() {
  if (error_) throw *error_;
  return std::move(result_);
}

StopStrings::StopStrings(std::vector<std::string> stops) : stops_(std::move(stops)) {
  std::erase(stops_, "");
}

std::string StopStrings::push(std::string_view text) {
  if (found_) return {};
  held_ += text;
  size_t first = std::string::npos, n_held = 0;
  for (const std::string& stop : stops_) {
    first = std::min(first, held_.find(stop));
    n_held = std::max(n_held, held_length(held_, stop));
  }
  if (first != std::string::npos) {
    found_ = true;
    held_.resize(first);
    return std::exchange(held_, {});
  }
  std::string shown = held_.substr(0, held_.size() - n_held);
  held_.erase(0, shown.size());
  return shown;
}

}  // namespace dsv32
