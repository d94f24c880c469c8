// A request to the model, its listener, its result, and the interface of what answers it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "context/timeline.h"
#include "engine/generation_options.h"
#include "engine/sampler.h"
#include "model/forward.h"
#include "text/completion_parser.h"
#include "text/tokenizer.h"

namespace dsv32 {

class Sequence;

// A prompt to be answered. Tokenizer and sequence must outlive the request.
struct Request {
  // To answer on, which has its place already, keeps what it has of the prompt's beginning, and holds prompt
  // and answer afterwards, the last token perhaps without its row. Null: a sequence of the loop's own.
  Sequence* sequence = nullptr;
  const Tokenizer* tokenizer = nullptr;
  std::vector<int32_t> prompt;
  GenerationOptions options;
  std::vector<TokenRun> decoded = {};  // of the prompt, as an earlier sequence has it (Sequence::decoded)
  bool is_held = false;  // `sequence` holds the prompt but for its last token: decode goes on from there
  // Requests of one number, not 0, are a talk: if no other request comes in between, a later one goes on with
  // the place of the one before.
  int64_t talk = 0;
};

// Throws Error{context_full} with the counts when the tokens are more than a context holds, Error{usage} when
// there is none and for ids outside the vocabulary.
void check_prompt(int64_t vocab_size, int64_t context, std::span<const int32_t> tokens);

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
  // Of a sequence of the loop's, at the end: what a later request says of the same tokens (Request::decoded),
  // how many it holds, and what was looked up in top-k buffers in the steps since its beginning.
  std::vector<TokenRun> decoded;
  int64_t n_held_tokens = 0;
  Forward::BufferTally buffer_tally;

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
  // What a person should know of a delay.
  virtual void on_notice(const std::string& /*line*/) {}
  // Asked between steps, and on a CPU often within those of a prompt.
  virtual bool is_interrupted() { return false; }
};

// Answers requests, several at once: the engine's loop, or that of another process.
class Answerer {
 public:
  virtual ~Answerer() = default;
  // Adds a request. Its listener is called in turn(), and must outlive it. Returns the request's number.
  // Throws Error, and nothing else, for one that cannot join: {usage} for options out of range.
  virtual int64_t add(Request request, Listener& listener) = 0;
  // Goes a step further. False: every request is done.
  virtual bool turn() = 0;
  virtual bool is_done(int64_t request) const = 0;
  // What came of it, once. Throws the Error that ended it.
  virtual GenerationResult take(int64_t request) = 0;
  // Forgets it, done or not. Its sequence and its listener may go.
  virtual void drop(int64_t request) = 0;
};

// Answers one request, while the others go on. Throws what ended it.
GenerationResult generate(Answerer& answerer, Request request, Listener& listener);

}  // namespace dsv32
