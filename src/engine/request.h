// A request to the model, its options, listener and result, and the interface of what answers it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "context/cached_sequence.h"
#include "engine/sampler.h"
#include "model/forward.h"
#include "text/completion_parser.h"
#include "text/tokenizer.h"

namespace dsv32 {

class HeldSequence;

struct SamplingOptions {
  float temperature = 1.0f;  // 0: greedy
  int64_t top_k = 0;         // keep the k most likely; 0 and -1: all
  float top_p = 0.95f;       // keep the fewest most likely whose probabilities reach p; 1: all
  float min_p = 0.0f;        // keep those at least min_p times as likely as the best; 0: all
  uint64_t seed = 0;

  // How a sequence's next token is drawn, after n_drawn tokens.
  SampleRule rule(int64_t n_drawn) const;
};

struct GenerationOptions {
  SamplingOptions sampling;
  // Most tokens; -1: until the context is full. After max_thinking tokens, thinking is closed and the answer
  // begins; with max_answer or max_tokens 0 only the prompt is read.
  int64_t max_answer = -1, max_thinking = -1;
  int64_t max_tokens = -1;         // of both together
  std::vector<std::string> stops;  // end the answer; reasoning is not searched
  bool thinking = true;            // the prompt ended with <think>
  int64_t n_top_logprobs = -1;     // alternatives to record for each token; -1: no log-probabilities at all
  std::string constraint;          // which answers are allowed (constrain/constraint.h); empty: all
  bool tools = false;              // the prompt has tools: calls are told apart from the answer's text

  // Whether the answer has to be one JSON document.
  bool is_document() const { return !constraint.empty() && !tools; }
  // Throws Error{usage} naming the option that is out of its range, and for stops beside a constraint. Does
  // not compile the constraint.
  void check() const;
  // The most tokens that these limits allow for thinking, its end and the answer; -1: no limit.
  int64_t n_most() const;
};

inline constexpr int64_t kMostTokenLimit = INT32_MAX;

// An option's names, bounds and help. The list defines the flags, the settings file, a batch line's fields,
// the warm process's wire, /set, and check(): a new option is a field, a row of the list, and its use.
struct GenerationOption {
  using Field = std::variant<bool*, int64_t*, uint64_t*, float*, std::string*, std::vector<std::string>*>;

  const char* name;  // of the field in a request's JSON
  Field (*field)(GenerationOptions& options);
  double least = 0, most = 0;      // of a number
  const char* setting = nullptr;   // as /set calls it; null: a chat cannot change it
  const char* flag = nullptr;      // its spellings; null: none, or rows of their own in cli/options/flags.cpp
  const char* value = nullptr;     // what stands for the flag's value in the help
  const char* help = nullptr;      // of the flag
  bool is_batch_field = false;     // false: a request's JSON has other forms for it too, or none
  const char* gguf_key = nullptr;  // under which a model's file recommends a value
};

const std::vector<GenerationOption>& generation_options();

// A prompt to be answered. Tokenizer and sequence must outlive the request.
struct Request {
  // The sequence to answer on, which is in the cache already. It keeps what it holds of the prompt's
  // beginning, and holds prompt and answer afterwards, the last token perhaps without its row. Null: the loop
  // makes one.
  HeldSequence* sequence = nullptr;
  const Tokenizer* tokenizer = nullptr;
  std::vector<int32_t> prompt;
  GenerationOptions options;
  std::vector<TokenRun> decoded = {};  // of the prompt: HeldSequence::decoded() of an earlier sequence
  bool is_held = false;  // `sequence` holds the prompt but for its last token: decode begins with it
  // Requests with the same number, not 0, are a talk: if no other request comes in between, the next one
  // continues on the sequence of the one before.
  int64_t talk = 0;
};

// How many tokens of a prompt are encoded; of a longer one check_prompt() says that it has more.
inline size_t most_encoded(int64_t context) {
  constexpr size_t kFew = 1 << 16;  // are counted to the last
  return std::max(2 * static_cast<size_t>(context), kFew);
}

// Throws Error{context_full} with the counts when there are more tokens than a context holds, Error{usage}
// when there are none and for ids outside the vocabulary.
void check_prompt(int64_t vocab_size, int64_t context, std::span<const int32_t> tokens);

enum class FinishReason { stop, length, interrupted };
const char* finish_reason_name(FinishReason reason);  // "stop", "length", "interrupted"

struct GenerationResult {
  Completion completion;
  FinishReason finish_reason = FinishReason::stop;
  int64_t n_prompt_tokens = 0, n_cached_tokens = 0, n_completion_tokens = 0;
  int64_t n_read_tokens = 0;      // of the prompt, those from the cache too; all, unless it was interrupted
  int64_t n_thinking_tokens = 0;  // of the completion's, with the mark at their end
  // Tokens that the block for drafts guessed and a step verified, and those of them that were right.
  int64_t n_guessed = 0, n_accepted = 0;
  std::string why_none_cached;  // half a sentence; empty when some were
  double prefill_seconds = 0, decode_seconds = 0;
  std::vector<TokenRecord> logprobs;  // of drawn tokens only, not of a </think> that was set
  // Of a sequence of the loop's own, at the end: the runs that a later request gives for the same tokens
  // (Request::decoded), how many tokens it holds, and the lookups in top-k buffers in all steps since its
  // admission.
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
  // Called between steps, and on a CPU often within those of a prompt; true ends the request.
  virtual bool is_interrupted() { return false; }
};

// Answers requests, several at once: the engine's loop, or that of another process.
class Answerer {
 public:
  virtual ~Answerer() = default;
  // Adds a request. Its listener is called in advance(), and must outlive it. Returns the request's number.
  // Throws Error, and nothing else, for a request that cannot be added: {usage} for options out of range.
  virtual int64_t add(Request request, Listener& listener) = 0;
  // Runs one step. False: every request is done.
  virtual bool advance() = 0;
  virtual bool is_done(int64_t request) const = 0;
  // The request's result, once. Throws the Error that ended it.
  virtual GenerationResult take(int64_t request) = 0;
  // Forgets the request, done or not. Its sequence and its listener may then be destroyed.
  virtual void drop(int64_t request) = 0;
};

// A request's result or error, once it is there.
struct Outcome {
  std::optional<GenerationResult> result;
  std::exception_ptr error;
  bool is_there() const { return result || error; }
  GenerationResult take() {
    if (error) std::rethrow_exception(error);
    return std::move(*result);
  }
};

// Answers one request, while the others go on. Throws the exception that ended it.
GenerationResult generate(Answerer& answerer, Request request, Listener& listener);

}  // namespace dsv32
