#include "engine/answer.h"

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

Answer::Answer(Request request, Listener& listener)
    : request_(std::move(request)),
      listener_(listener),
      sampler_(request_.options.sampling),
      parser_(*request_.tokenizer, request_.options.thinking),
      stops_(request_.options.stops) {
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
}

void Answer::prompt_reached(int64_t n_done) {
  result_.prefill_seconds = seconds_since(begun_);
  listener_.on_prefill(n_done, result_.n_prompt_tokens, result_.n_cached_tokens);
  if (n_done < result_.n_prompt_tokens) return;
  phase_ = Phase::decodes;
  begun_ = Clock::now();
  if (request_.options.max_tokens == 0) finish(FinishReason::length);
}

void Answer::push(const TokenRecord& drawn) {
  ++result_.n_completion_tokens;
  if (request_.options.n_top_logprobs >= 0) result_.logprobs.push_back(drawn);
  next_token_ = drawn.chosen.id;
  if (request_.tokenizer->is_end_of_generation(next_token_)) return finish(FinishReason::stop);
  tell(parser_.push(next_token_));
  if (stops_.found()) return finish(FinishReason::stop);
  if (session().context_left() == 0 || result_.n_completion_tokens == request_.options.max_tokens)
    finish(FinishReason::length);
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

void Answer::fail(std::exception_ptr error) {
  error_ = std::move(error);
  phase_ = Phase::is_done;
}

GenerationResult Answer::take_result() {
  if (error_) std::rethrow_exception(error_);
  return std::move(result_);
}

}  // namespace dsv32
