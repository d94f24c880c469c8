#include "engine/answer.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "base/stopwatch.h"
#include "engine/session.h"
#include "text/chat_format.h"

namespace dsv32 {

const char* finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::stop: return "stop";
    case FinishReason::length: return "length";
    case FinishReason::interrupted: return "interrupted";
  }
  return "";
}

void GenerationOptions::check() const {
  sampling.check();
  for (const int64_t limit : {max_answer, max_thinking, max_tokens})
    kTokenLimit.check(static_cast<double>(limit));
  kTopLogprobs.check(static_cast<double>(n_top_logprobs));
}

int64_t GenerationOptions::n_most() const {
  const int64_t thought = !thinking ? 0 : max_thinking < 0 ? -1 : max_thinking + 1;
  const int64_t apart = max_answer <= 0 ? max_answer : thought < 0 ? -1 : thought + max_answer;
  return max_tokens < 0 ? apart : apart < 0 ? max_tokens : std::min(apart, max_tokens);
}

Answer::Answer(Request request, Listener& listener)
    : request_(std::move(request)),
      listener_(listener),
      sampler_(request_.options.sampling),
      parser_(*request_.tokenizer, request_.options.thinking),
      stops_(request_.options.stops) {
  request_.options.check();
  result_.n_prompt_tokens = std::ssize(request_.prompt);
  if (request_.session) phase_ = Phase::waits_for_disk;
  if (request_.is_held) phase_ = Phase::decodes, next_token_ = request_.prompt.back();
}

int64_t Answer::n_reusable() const {
  const std::optional<int32_t> mark = request_.tokenizer->find(kAssistantMark);
  if (request_.options.thinking && mark)
    for (size_t i = request_.prompt.size(); i-- > 0;)
      if (request_.prompt[i] == *mark) return static_cast<int64_t>(i);
  return std::numeric_limits<int64_t>::max();
}

void Answer::admit(Session& session) {
  request_.session = &session;
  phase_ = Phase::waits_for_disk;
  begun_ = Clock::now();
}

void Answer::begin_prompt(int64_t n_held) {
  result_.n_cached_tokens = n_held;
  result_.why_none_cached = session().why_none_cached();
  phase_ = Phase::reads_prompt;
  prompt_nears(n_held);
}

void Answer::prompt_nears(int64_t n_done) {
  listener_.on_prefill(n_done, result_.n_prompt_tokens, result_.n_cached_tokens);
}

void Answer::prompt_reached(int64_t n_done) {
  result_.prefill_seconds = seconds_since(begun_);
  prompt_nears(n_done);
  if (n_done < result_.n_prompt_tokens) return;
  phase_ = Phase::decodes;
  begun_ = Clock::now();
  if (request_.options.n_most() == 0) finish(FinishReason::length);
}

void Answer::push(const TokenRecord& drawn) {
  ++result_.n_completion_tokens;
  const std::optional<int32_t> end = end_of_thinking();
  const bool is_drawn = !end || *end == drawn.chosen.id;
  if (is_drawn && request_.options.n_top_logprobs >= 0) result_.logprobs.push_back(drawn);
  next_token_ = end.value_or(drawn.chosen.id);
  if (request_.options.thinking && parser_.is_thinking()) ++result_.n_thinking_tokens;
  if (request_.tokenizer->is_end_of_generation(next_token_)) return finish(FinishReason::stop);
  tell(parser_.push(next_token_));
  if (stops_.found()) return finish(FinishReason::stop);
  if (is_long_enough()) finish(FinishReason::length);
}

// The mark, where thinking has had its tokens: it takes the place of what was drawn.
std::optional<int32_t> Answer::end_of_thinking() const {
  const bool is_due = request_.options.thinking && parser_.is_thinking() &&
                      result_.n_thinking_tokens == request_.options.max_thinking;
  return is_due ? request_.tokenizer->find("</think>") : std::nullopt;
}

bool Answer::is_long_enough() const {
  const GenerationOptions& options = request_.options;
  return session().context_left() == 0 || result_.n_completion_tokens == options.max_tokens ||
         result_.n_answer_tokens() == options.max_answer;
}

void Answer::tell(const CompletionParser::Delta& delta) {
  if (!delta.reasoning.empty()) listener_.on_reasoning(delta.reasoning);
  tell_answer(stops_.push(delta.content));
}

void Answer::tell_answer(const std::string& text) {
  if (text.empty()) return;
  result_.completion.content += text;
  listener_.on_answer(text);
}

void Answer::finish(FinishReason reason) {
  result_.finish_reason = reason;
  if (phase_ == Phase::decodes) {
    tell(parser_.finish());
    tell_answer(stops_.finish());
    result_.completion.reasoning = parser_.completion().reasoning;
    result_.completion.thinking_closed = parser_.completion().thinking_closed;
    result_.decode_seconds = seconds_since(begun_);
  }
  phase_ = Phase::is_done;
}

void Answer::fail(const Error& error) {
  error_ = error;
  phase_ = Phase::is_done;
}

void Answer::note_session(std::vector<TokenRun> decoded, int64_t n_held, const Forward::BufferTally& tally) {
  result_.decoded = std::move(decoded), result_.n_held_tokens = n_held, result_.buffer_tally = tally;
}

GenerationResult Answer::take_result() {
  if (error_) throw *error_;
  return std::move(result_);
}

}  // namespace dsv32
