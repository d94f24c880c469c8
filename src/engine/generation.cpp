#include "engine/generation.h"

#include <chrono>
#include <limits>
#include <optional>

#include "base/error.h"
#include "base/stopwatch.h"
#include "engine/stop_strings.h"
#include "text/chat_format.h"

namespace dsv32 {
namespace {

// One completion on its way: text is parsed, searched for stop strings, told to the listener and kept.
class Answer {
 public:
  Answer(const Tokenizer& tokenizer, const GenerationOptions& options, Listener& listener)
      : parser_(tokenizer, options.thinking), stops_(options.stops), listener_(listener) {}

  void push(int32_t id) { tell(parser_.push(id)); }
  void finish() {
    tell(parser_.finish());
    tell_answer(stops_.finish());
  }
  bool is_stopped() const { return stops_.found(); }
  Completion completion() const {
    return {parser_.completion().reasoning, content_, parser_.completion().thinking_closed};
  }

 private:
  void tell(const CompletionParser::Delta& delta) {
    if (!delta.reasoning.empty()) listener_.on_reasoning(delta.reasoning);
    tell_answer(stops_.push(delta.content));
  }
  void tell_answer(const std::string& text) {
    if (text.empty()) return;
    content_ += text;
    listener_.on_answer(text);
  }

  CompletionParser parser_;
  StopStrings stops_;
  Listener& listener_;
  std::string content_;
};

// In thinking mode the next turn's prompt drops what was thought: it leaves this one before the last
// <｜Assistant｜>.
int64_t reusable_tokens(const Tokenizer& tokenizer, std::span<const int32_t> prompt, bool thinking) {
  const std::optional<int32_t> mark = tokenizer.find(kAssistantMark);
  if (thinking && mark)
    for (size_t i = prompt.size(); i-- > 0;)
      if (prompt[i] == *mark) return static_cast<int64_t>(i);
  return std::numeric_limits<int64_t>::max();
}

// Logits that are no numbers come from damaged weights, or from a damaged prefix.
TokenRecord sample(Sampler& sampler, Session& session, int64_t n_top_logprobs) {
  try {
    return sampler.sample(session.device_logits(), n_top_logprobs);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::model) session.distrust();
    throw;
  }
}

// Samples until something ends the answer, and says what did.
FinishReason decode(Session& session, const Tokenizer& tokenizer, const GenerationOptions& options,
                    Listener& listener, Answer& answer, GenerationResult& result) {
  Sampler sampler(options.sampling, session.backend());
  while (result.n_completion_tokens != options.max_tokens) {
    if (listener.is_interrupted()) return FinishReason::interrupted;
    const TokenRecord drawn = sample(sampler, session, options.n_top_logprobs);
    const int32_t id = drawn.chosen.id;
    ++result.n_completion_tokens;
    if (options.n_top_logprobs >= 0) result.logprobs.push_back(drawn);
    if (tokenizer.is_end_of_generation(id)) return FinishReason::stop;
    answer.push(id);
    if (answer.is_stopped()) return FinishReason::stop;
    if (session.context_left() == 0) return FinishReason::length;
    if (result.n_completion_tokens != options.max_tokens) session.step(id);
  }
  return FinishReason::length;
}

}  // namespace

const char* finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::stop: return "stop";
    case FinishReason::length: return "length";
    case FinishReason::interrupted: return "interrupted";
  }
  return "";
}

GenerationResult generate(Session& session, const Tokenizer& tokenizer, std::span<const int32_t> prompt,
                          const GenerationOptions& options, Listener& listener) {
  GenerationResult result;
  result.n_prompt_tokens = static_cast<int64_t>(prompt.size());
  const auto start = std::chrono::steady_clock::now();
  const int64_t n_held = session.sync(
      prompt,
      [&](int64_t n_done, int64_t n_total, int64_t n_cached) {
        listener.on_prefill(n_done, n_total, n_cached);
        return n_done == n_total || !listener.is_interrupted();
      },
      reusable_tokens(tokenizer, prompt, options.thinking));
  result.prefill_seconds = seconds_since(start);
  if (n_held < 0) {
    result.finish_reason = FinishReason::interrupted;
    return result;
  }
  result.n_cached_tokens = n_held;
  result.why_none_cached = session.why_none_cached();
  const auto decode_start = std::chrono::steady_clock::now();
  Answer answer(tokenizer, options, listener);
  result.finish_reason = decode(session, tokenizer, options, listener, answer, result);
  answer.finish();
  session.rest();
  result.decode_seconds = seconds_since(decode_start);
  result.completion = answer.completion();
  return result;
}

}  // namespace dsv32
