// From a prompt to a finished completion: sync, then sample and step until something ends it.
//
// The loop that `run`, `chat` and every other way of asking share. It knows tokens, text and endings; who
// shows them where is the caller's business, told through Listener.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/sampler.h"
#include "engine/session.h"
#include "text/completion_parser.h"
#include "text/tokenizer.h"

namespace dsv32 {

struct GenerationOptions {
  SamplingOptions sampling;
  int64_t max_tokens = -1;         // -1: until the context is full
  std::vector<std::string> stops;  // end the answer; reasoning is not searched
  bool thinking = true;            // the prompt ended with <think>
  int64_t n_top_logprobs = -1;     // alternatives to record for each token; -1: no log-probabilities at all
};

enum class FinishReason { stop, length, interrupted };
const char* finish_reason_name(FinishReason reason);  // "stop", "length", "interrupted"

struct GenerationResult {
  Completion completion;
  FinishReason finish_reason = FinishReason::stop;
  int64_t n_prompt_tokens = 0, n_cached_tokens = 0, n_completion_tokens = 0;
  std::string why_none_cached;  // half a sentence; empty when some were
  double prefill_seconds = 0, decode_seconds = 0;
  std::vector<TokenRecord> logprobs;
};

// Called from generate(), on its thread.
class Listener {
 public:
  virtual ~Listener() = default;
  virtual void on_prefill(int64_t /*n_done*/, int64_t /*n_total*/, int64_t /*n_cached*/) {}
  virtual void on_reasoning(const std::string& /*text*/) {}
  virtual void on_answer(const std::string& /*text*/) {}
  virtual bool is_interrupted() { return false; }  // asked between chunks and between tokens
};

// The generated tokens stay in the session, the last one perhaps without its row. Throws what Session and
// Sampler throw.
GenerationResult generate(Session& session, const Tokenizer& tokenizer, std::span<const int32_t> prompt,
                          const GenerationOptions& options, Listener& listener);

}  // namespace dsv32
