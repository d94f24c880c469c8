// A request to the model and what may be asked of its answer, its listener, its result, and the interface of
// what answers it.
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "context/timeline.h"
#include "engine/sampler.h"
#include "model/forward.h"
#include "text/completion_parser.h"
#include "text/tokenizer.h"

namespace dsv32 {

class Sequence;

struct SamplingOptions {
  float temperature = 1.0f;  // 0: greedy
  int64_t top_k = 0;         // keep the k most likely; 0 and -1: all
  float top_p = 0.95f;       // keep the fewest most likely whose probabilities reach p; 1: all
  float min_p = 0.0f;        // keep those at least min_p times as likely as the best; 0: all
  uint64_t seed = 0;

  // Throws Error{usage} naming the option that is out of its range.
  void check() const;
  // How a sequence's next token is drawn, after so many.
  SampleRule rule(int64_t n_drawn) const;
};

struct GenerationOptions {
  SamplingOptions sampling;
  // Most tokens; -1: until the context is full. Thinking that has had its own is closed, and the answer
  // begins; with max_answer or max_tokens 0 the prompt is read and no more.
  int64_t max_answer = -1, max_thinking = -1;
  int64_t max_tokens = -1;         // of both together
  std::vector<std::string> stops;  // end the answer; reasoning is not searched
  bool thinking = true;            // the prompt ended with <think>
  int64_t n_top_logprobs = -1;     // alternatives to record for each token; -1: no log-probabilities at all

  // Throws Error{usage} naming the option that is out of its range.
  void check() const;
  // What these limits allow, thinking, its end and answer; -1: there is no limit.
  int64_t n_most() const;
};

inline constexpr int64_t kMostTokenLimit = INT32_MAX;

// Of each option its names, bounds and help. Flags, the settings file, a batch line's fields, the warm
// process's wire, /set, and check() are made of the list: a new option is a field, a row of the list, and its
// use.
struct GenerationOption {
  using Field = std::variant<bool*, int64_t*, uint64_t*, float*, std::vector<std::string>*>;

  const char* name;  // on the warm process's wire, and of a batch line's field
  Field (*field)(GenerationOptions& options);
  double least = 0, most = 0;      // of a number
  const char* setting = nullptr;   // as /set calls it; null: a chat cannot change it
  const char* flag = nullptr;      // its spellings; null: none, or rows of their own in cli/options/flags.cpp
  const char* value = nullptr;     // what stands for the flag's value in the help
  const char* help = nullptr;      // of the flag
  bool is_batch_field = false;     // false: batch lines have other forms for it, or none
  const char* gguf_key = nullptr;  // under which a model's file recommends a value
};

std::span<const GenerationOption> generation_options();

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

// What came of a request, once it is there.
struct Outcome {
  std::optional<GenerationResult> result;
  std::exception_ptr error;
  bool is_there() const { return result || error; }
  GenerationResult take() {
    if (error) std::rethrow_exception(error);
    return std::move(*result);
  }
};

// Answers one request, while the others go on. Throws what ended it.
GenerationResult generate(Answerer& answerer, Request request, Listener& listener);

}  // namespace dsv32
