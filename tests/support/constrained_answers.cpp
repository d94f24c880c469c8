#include "tests/support/constrained_answers.h"

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <memory>

#include <nlohmann/json.hpp>

#include "cli/batch/batch.h"
#include "constrain/constraint.h"
#include "tests/support/constrained_vocabulary.h"
#include "tests/support/generate_by_hand.h"
#include "tests/support/golden_schemas.h"
#include "tests/support/token_records.h"

namespace dsv32 {

namespace {

constexpr const char* kFifty[] = {
    "a person",
    "people",
    "an invoice",
    "sentiment",
    "named entities",
    "zod's optional and nullable",
    "weather call",
    "chain of thought",
    "the empty object",
    "all optional",
    "required but not declared",
    "a map of integers",
    "names that begin alike",
    "odd names",
    "five deep",
    "twelve optional properties",
    "an enum of strings that begin alike",
    "an enum of everything",
    "a constant object",
    "a constant string",
    "constants in properties",
    "shapes by a discriminator",
    "a discriminator behind references",
    "one of three types",
    "any of objects that overlap",
    "integer or number in a range",
    "a list of types with keywords of each",
    "nullable reference",
    "all of two objects",
    "a base class by reference",
    "all of narrows one property",
    "pydantic's reference in allOf",
    "a tree",
    "a linked list",
    "an expression",
    "any JSON by its own schema",
    "a tuple",
    "a matrix",
    "exactly three numbers",
    "lists of mixed values",
    "lengths in code points",
    "pattern ^\\+?[0-9 ()-]{7,15}$",
    "pattern ^(yes|no|maybe( not)?)$",
    "format date",
    "format date-time",
    "format time",
    "format uuid",
    "integers 1990 <= x <= 2030",
    "integers 0 < x < 10",
    "anything",
};
static_assert(std::size(kFifty) == 50);

std::string constraint_named(std::string_view name) {
  for (const GoldenSchema* schema : supported_schemas())
    if (schema->name == name) return schema->constraint;
  BOOST_FAIL("there is no schema " << name);
  return {};
}

// Every 100th is longer than the 256 positions that the demo model selects.
std::string question(size_t i) {
  constexpr const char* kShort[] = {"What is 17 + 25?",
                                    "Hello",
                                    "Add 43 and 99.",
                                    "Repeat: fur jam pot",
                                    "I live in Oslo. In which city do I live?",
                                    "63 - 26",
                                    "Count: spoon, pears, case"};
  if (i % 100 != 20) return kShort[i % std::size(kShort)];
  std::string text;
  for (size_t n = 0; n < 40; ++n) text += "The cook of ship " + std::to_string(n) + " is Anna. ";
  return text + "Who is the cook of ship " + std::to_string(i % 33) + "?";
}

std::vector<double> log_softmax(const std::vector<float>& logits) {
  const double most = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - most);
  std::vector<double> logprobs;
  for (const float logit : logits) logprobs.push_back(static_cast<double>(logit) - most - std::log(sum));
  return logprobs;
}

void check_same(const HeardAnswer& answer, const HeardAnswer& expected) {
  const GenerationResult &result = answer.result, &other = expected.result;
  BOOST_TEST(answer.text == expected.text);
  BOOST_TEST(answer.reasoning == expected.reasoning);
  BOOST_TEST((result.finish_reason == other.finish_reason));
  BOOST_TEST(result.n_completion_tokens == other.n_completion_tokens);
  BOOST_TEST(result.n_thinking_tokens == other.n_thinking_tokens);
  BOOST_TEST(result.completion.calls_text == other.completion.calls_text);
  BOOST_TEST((records_of(result) == records_of(other)), "other log-probabilities");
}

}  // namespace

std::string HeardAnswer::bytes(const Tokenizer& tokenizer) const {
  std::string bytes;
  for (const TokenRecord& record : result.logprobs)
    if (!tokenizer.is_end_of_generation(record.chosen.id)) bytes += tokenizer.bytes_of(record.chosen.id);
  return bytes;
}

const std::vector<std::string>& fifty_constraints() {
  static const std::vector<std::string> constraints = [] {
    std::vector<std::string> found;
    for (const char* name : kFifty) found.push_back(constraint_named(name));
    return found;
  }();
  return constraints;
}

std::string constrained_line(size_t i) {
  using nlohmann::ordered_json;  // the order of properties matters
  ordered_json line{{"messages", {{{"role", "user"}, {"content", question(i)}}}},
                    {"max_tokens", 5 + i * 5 % 11},
                    {"temperature", i % 3},
                    {"top_p", 1},
                    {"seed", i}};
  line["thinking"] =
      i % 4 == 1 ? ordered_json{{"type", "enabled"}, {"budget_tokens", 4}} : ordered_json(false);
  if (i % 5 != 4) line["logprobs"] = true, line["top_logprobs"] = i % 3;
  if (i % 7 == 6) return line.dump();
  const auto constraint = ordered_json::parse(fifty_constraints()[i % fifty_constraints().size()]);
  line["response_format"] = {{"type", "json_schema"},
                             {"json_schema", {{"name", "asked"}, {"schema", constraint["schema"]}}}};
  return line.dump();
}

Request constrained_request(const Tokenizer& tokenizer, size_t i) {
  LineMaker maker({}, {});
  const BatchItem item = maker.from_json(static_cast<int64_t>(i) + 1, constrained_line(i));
  if (item.error) throw *item.error;
  const Prompt prompt = prompt_of(item.request, tokenizer);
  Request request{nullptr, &tokenizer, prompt.ids, item.request.options};
  request.options.thinking = prompt.thinking;
  return request;
}

std::vector<Request> constrained_requests(const Tokenizer& tokenizer, size_t n, size_t every) {
  std::vector<Request> requests;
  for (size_t i = 0; i < n; i += every) requests.push_back(constrained_request(tokenizer, i));
  return requests;
}

HeardAnswers answers_alone(Engine& engine, const std::vector<Request>& requests) {
  HeardAnswers answers(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    ByHand sequence(engine);
    answers[i].result =
        generate(sequence, *requests[i].tokenizer, requests[i].prompt, requests[i].options, answers[i]);
  }
  return answers;
}

HeardAnswers answers_together(Engine& engine, const std::vector<Request>& requests) {
  HeardAnswers answers(requests.size());
  Loop& loop = engine.loop();
  std::vector<int64_t> numbers;
  for (size_t i = 0; i < requests.size(); ++i) {
    numbers.push_back(loop.add(requests[i], answers[i]));
    if (i % 3 == 0) loop.advance();
  }
  while (loop.advance()) {
  }
  for (size_t i = 0; i < requests.size(); ++i) answers[i].result = loop.take(numbers[i]);
  return answers;
}

void check_same(const HeardAnswers& answers, const HeardAnswers& expected) {
  BOOST_REQUIRE(answers.size() == expected.size());
  for (size_t i = 0; i < answers.size(); ++i)
    BOOST_TEST_CONTEXT("request " << i) check_same(answers[i], expected[i]);
}

void check_document(const Request& request, const HeardAnswer& answer) {
  const GenerationResult& result = answer.result;
  const std::string& content = result.completion.content;
  BOOST_TEST(answer.text == content);
  BOOST_TEST(answer.reasoning == result.completion.reasoning);
  Constraint constraint(compile_constraint(request.options.constraint), demo_vocabulary().trie());
  BOOST_TEST(constraint.take(content), content);
  if (answer.is_whole()) {
    BOOST_TEST(constraint.is_complete(), content);
    BOOST_TEST(nlohmann::json::accept(content), content);
    BOOST_TEST(result.completion.thinking_closed == request.options.thinking);
  } else {
    BOOST_TEST((result.finish_reason == FinishReason::length));
    const int64_t n_most = request.options.n_most();  // -1: the context is full
    BOOST_TEST((n_most < 0 || result.n_completion_tokens == n_most), content);
  }
}

void check_logprobs(Engine& engine, const Request& request, const HeardAnswer& answer) {
  ByHand sequence(engine);
  sequence.sync(request.prompt);
  for (const TokenRecord& record : answer.result.logprobs) {
    if (&record != &answer.result.logprobs.front()) sequence.step((&record - 1)->chosen.id);
    const std::vector<double> expected = log_softmax(sequence.logits());
    std::vector<TokenLogprob> all = record.top;
    all.push_back(record.chosen);
    for (const TokenLogprob& one : all)
      BOOST_TEST(std::abs(static_cast<double>(one.logprob) - expected[static_cast<size_t>(one.id)]) < 1e-4);
    if (!record.top.empty())
      BOOST_TEST(record.top.front().id == std::ranges::max_element(expected) - expected.begin());
  }
}

}  // namespace dsv32
