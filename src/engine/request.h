// What is asked of the loop, what is heard of it meanwhile, and what comes of it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "context/timeline.h"
#include "engine/sampler.h"
#include "text/completion_parser.h"
#include "text/tokenizer.h"

namespace dsv32 {

class Session;

struct GenerationOptions {
  SamplingOptions sampling;
  // Most tokens; -1: until the context is full. Thinking that has had its own is closed, and the answer
  // begins; with max_answer or max_tokens 0 the prompt is read and no more.
  int64_t max_answer = -1, max_thinking = -1;
  int64_t max_tokens = -1;         // of both together
  std::vector<std::string> stops;  // end the answer; reasoning is not searched
  bool thinking = true;            // the prompt ended with <think>
  int64_t n_top_logprobs = -1;     // alternatives to record for each token; -1: no log-probabilities at all

  // What these limits allow, thinking, its end and answer; -1: there is no limit.
  int64_t n_most() const;
};

// A prompt to be answered on a session, which keeps what it has of the prompt's beginning, and holds prompt
// and answer afterwards, the last token perhaps without its row; or on one that the loop opens when there is
// room and closes at the end. Session and tokenizer must outlive the request.
struct Request {
  Session* session = nullptr;  // null: one of the loop's
  const Tokenizer* tokenizer = nullptr;
  std::vector<int32_t> prompt;
  GenerationOptions options;
  std::vector<TokenRun> decoded = {};  // of the prompt: what a former session says of it (Session::decoded)
  bool is_held = false;  // the session holds the prompt but for its last token: decode goes on from there
};

// What a request waits for: its admission, pages from the disk, its prompt's next chunk, its next token,
// nothing.
enum class Phase { waits_for_room, waits_for_disk, reads_prompt, decodes, is_done };

enum class FinishReason { stop, length, interrupted };
const char* finish_reason_name(FinishReason reason);  // "stop", "length", "interrupted"

struct GenerationResult {
  Completion completion;
  FinishReason finish_reason = FinishReason::stop;
  int64_t n_prompt_tokens = 0, n_cached_tokens = 0, n_completion_tokens = 0;
  int64_t n_thinking_tokens = 0;  // of those of the completion, with the mark at their end
  std::string why_none_cached;    // half a sentence; empty when some were
  double prefill_seconds = 0, decode_seconds = 0;
  std::vector<TokenRecord> logprobs;  // of all that were drawn: the end of thinking may have been set

  int64_t n_answer_tokens() const { return n_completion_tokens - n_thinking_tokens; }
};

// Called from the loop, on its thread.
class Listener {
 public:
  virtual ~Listener() = default;
  // Within a chunk `n_done` grows with the layers that are done.
  virtual void on_prefill(int64_t /*n_done*/, int64_t /*n_total*/, int64_t /*n_cached*/) {}
  virtual void on_reasoning(const std::string& /*text*/) {}
  virtual void on_answer(const std::string& /*text*/) {}
  // Asked between steps, and on a CPU often within those of a prompt.
  virtual bool is_interrupted() { return false; }
};

}  // namespace dsv32
