// Requests that ask for documents and for calls, over the demo model or a tiny one; what becomes of them
// alone and in company; and what must be true of each answer.
#pragma once

#include <string>
#include <vector>

#include "engine/loop.h"
#include "tests/support/tiny_model.h"

namespace dsv32 {

// An answer, and what its listener heard of it.
struct HeardAnswer : Listener {
  std::string reasoning, text;  // the pieces put together
  GenerationResult result;

  // Whoever begins anew tells everything once more.
  void on_prefill(int64_t, int64_t, int64_t) override { reasoning.clear(), text.clear(); }
  void on_reasoning(const std::string& piece) override { reasoning += piece; }
  void on_answer(const std::string& piece) override { text += piece; }

  bool is_whole() const { return result.finish_reason == FinishReason::stop; }
  // Of the tokens that were drawn, without the one that ends the answer. Only of a request that wants
  // log-probabilities and does not think.
  std::string bytes(const Tokenizer& tokenizer) const;
};

using HeardAnswers = std::vector<HeardAnswer>;

// Constraints by 50 of the golden schemas, which have every keyword among them.
const std::vector<std::string>& fifty_constraints();

// One line of a batch over the demo model, of which there are kLines: every seventh has no schema, the others
// ask for one of the fifty. Some think, some are greedy, some want log-probabilities, some have prompts
// longer than what the model selects.
inline constexpr size_t kConstrainedLines = 200;
std::string constrained_line(size_t i);
// Its request, as `dsv32 batch` reads it.
Request constrained_request(const Tokenizer& tokenizer, size_t i);
std::vector<Request> constrained_requests(const Tokenizer& tokenizer, size_t n, size_t every = 1);

// Each on a sequence of its own, one after the other.
HeardAnswers answers_alone(Engine& engine, const std::vector<Request>& requests);
// All on the engine's loop; later ones come while earlier ones run.
HeardAnswers answers_together(Engine& engine, const std::vector<Request>& requests);

// Text, log-probabilities and everything else that does not differ between two runs.
void check_same(const HeardAnswers& answers, const HeardAnswers& expected);

// The answer to a request for a document is one, or the beginning of one and told as cut. What the listener
// heard is the answer.
void check_document(const Request& request, const HeardAnswer& answer);
// Log-probabilities are those of the model without a mask: computed again from its logits, with the same
// tokens one by one. Only of requests that do not think.
void check_logprobs(Engine& engine, const Request& request, const HeardAnswer& answer);

}  // namespace dsv32
