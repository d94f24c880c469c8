// Answers that have to be documents, through the engine's loop: each is whole or told as cut, and the same
// alone and in company.
#include <boost/test/unit_test.hpp>
#include <set>

#include <nlohmann/json.hpp>

#include "cli/batch/batch.h"
#include "cli/warm/model.h"
#include "tests/support/constrained_answers.h"
#include "tests/support/demo_answers.h"
#include "tests/support/sanitized.h"
#include "tests/support/unwilling_model.h"

namespace dsv32 {

BOOST_AUTO_TEST_SUITE(constrained_answers)

namespace {

constexpr size_t kLines = kIsSanitized ? 50 : kConstrainedLines;
constexpr size_t kOneOf = kIsSanitized ? 10 : 8;  // of the lines, where fewer do

EngineOptions options_of(int64_t max_seqs) {
  EngineOptions options;
  options.backend = "cpu", options.n_threads = 2;
  options.context = 512, options.chunk = 64;
  options.max_seqs = max_seqs, options.pool = 512 * max_seqs;
  return options;
}

const Tokenizer& demo_tokenizer() {
  static const std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(demo_file());
  return *tokenizer;
}

const std::vector<Request>& lines() {
  static const std::vector<Request> requests = constrained_requests(demo_tokenizer(), kLines);
  return requests;
}

template <typename T>
std::vector<T> some(const std::vector<T>& all) {
  std::vector<T> chosen;
  for (size_t i = 0; i < all.size(); i += kOneOf) chosen.push_back(all[i]);
  return chosen;
}

// Those without a constraint by an engine that never had one.
const HeardAnswers& demo_alone() {
  static const HeardAnswers answers = [] {
    Engine with(demo_file(), options_of(1)), without(demo_file(), options_of(1));
    HeardAnswers all;
    for (const Request& request : lines())
      all.push_back(answers_alone(request.options.constraint.empty() ? without : with, {request}).front());
    return all;
  }();
  return answers;
}

void add_keywords(const nlohmann::json& schema, std::set<std::string>& keywords) {
  if (!schema.is_structured()) return;
  for (const auto& [key, value] : schema.items()) {
    if (schema.is_object()) keywords.insert(key == "format" ? "format " + value.get<std::string>() : key);
    add_keywords(value, keywords);
  }
}

}  // namespace

BOOST_AUTO_TEST_CASE(the_schemas_have_every_keyword) {
  std::set<std::string> keywords;
  for (const std::string& constraint : fifty_constraints())
    add_keywords(nlohmann::json::parse(constraint)["schema"], keywords);
  for (const char* keyword : {"type",
                              "properties",
                              "required",
                              "additionalProperties",
                              "enum",
                              "const",
                              "items",
                              "prefixItems",
                              "minItems",
                              "maxItems",
                              "minLength",
                              "maxLength",
                              "pattern",
                              "format date",
                              "format date-time",
                              "format time",
                              "format uuid",
                              "minimum",
                              "maximum",
                              "exclusiveMinimum",
                              "exclusiveMaximum",
                              "anyOf",
                              "oneOf",
                              "allOf",
                              "$ref",
                              "$defs"})
    BOOST_TEST(keywords.contains(keyword), keyword);
}

BOOST_AUTO_TEST_CASE(each_is_a_document_or_told_as_cut) {
  int64_t n_whole = 0, n_cut = 0;
  for (size_t i = 0; i < kLines; ++i)
    if (!lines()[i].options.constraint.empty()) BOOST_TEST_CONTEXT(constrained_line(i)) {
        check_document(lines()[i], demo_alone()[i]);
        (demo_alone()[i].is_whole() ? n_whole : n_cut) += 1;
        BOOST_TEST_MESSAGE((demo_alone()[i].is_whole() ? "whole: " : "cut: ") << demo_alone()[i].text);
      }
  BOOST_TEST_MESSAGE(n_whole << " whole, " << n_cut << " cut");
  BOOST_TEST(n_whole > std::ssize(lines()) / 6);
  BOOST_TEST(n_cut > 0);
}

BOOST_AUTO_TEST_CASE(logprobs_are_those_without_a_mask) {
  Engine engine(demo_file(), options_of(1));
  int64_t n_forced = 0;
  for (size_t i = 9; i < kLines; i += 11) {
    const HeardAnswer& answer = demo_alone()[i];
    if (lines()[i].options.thinking) continue;
    BOOST_TEST_CONTEXT(constrained_line(i)) check_logprobs(engine, lines()[i], answer);
    for (const TokenRecord& record : answer.result.logprobs)
      n_forced += !record.top.empty() && record.chosen.logprob < record.top.front().logprob;
  }
  BOOST_TEST(n_forced > 0);
}

BOOST_AUTO_TEST_CASE(they_are_the_same_in_company) {
  Engine engine(demo_file(), options_of(16));
  check_same(answers_together(engine, lines()), demo_alone());
}

// The last chunk of a prompt has one token, or all.
BOOST_AUTO_TEST_CASE(they_are_the_same_with_the_least_buffers_and_another_chunk) {
  EngineOptions options = options_of(8);
  options.chunk = 13, options.topk_buffer = read_model_args(demo_file()).index_topk + 1;
  Engine engine(demo_file(), options);
  check_same(answers_together(engine, some(lines())), some(demo_alone()));
}

BOOST_AUTO_TEST_CASE(they_are_the_same_when_they_give_way) {
  const std::string schemas[] = {
      R"({"schema":{"type":"array","items":{"type":"integer"},"minItems":60}})",
      R"({"schema":{"type":"string","minLength":150,"maxLength":200}})",
      R"({"schema":{"type":"array","items":{"type":["boolean","null"]},"minItems":40}})", ""};
  const auto requests = [&](const UnwillingModel& scene) {
    std::vector<Request> all;
    for (size_t i = 0; i < 8; ++i)
      all.push_back(scene.request(schemas[i % 4], 1, i, i % 2 ? -1 : static_cast<int64_t>(i * 31 % 150)));
    return all;
  };
  EngineOptions options = options_of(1);
  options.context = 256, options.chunk = 16;
  UnwillingModel alone(options);
  const HeardAnswers expected = answers_alone(alone.engine, requests(alone));
  options.max_seqs = 3, options.topk_buffer = 40, options.slots = 192, options.pool = 256;
  UnwillingModel scene(options);
  // Compiled before, so that which answers run together does not depend on the compiler's speed.
  for (const std::string& schema : schemas) {
    if (schema.empty()) continue;
    const std::shared_ptr<Compiled> compiled = scene.engine.constraints().ask(schema);
    while (!compiled->is_done) scene.engine.constraints().wait();
  }
  check_same(answers_together(scene.engine, requests(scene)), expected);
  for (size_t i = 0; i < 8; ++i)
    if (i % 4 != 3) check_document(requests(scene)[i], expected[i]);
  BOOST_TEST(scene.engine.loop().n_restarted() > 0);
}

// Whether the line's reader finds it, or nobody before the loop.
BOOST_AUTO_TEST_CASE(a_schema_that_is_refused_is_that_lines_error_alone) {
  LineMaker maker({}, {});
  const BatchItem refused = maker.from_json(
      1, R"({"prompt":"x","response_format":{"type":"json_schema","json_schema":{"name":"n","schema":)"
         R"({"properties":{"a":{"not":{}}}}}}})");
  BOOST_REQUIRE(refused.error);
  BOOST_TEST(status_of(*refused.error) == 400);
  BOOST_TEST(std::string(refused.error->what()).find("not") != std::string::npos);

  Engine engine(demo_file(), options_of(16));
  BatchRunner runner(engine.loop(), 16, demo_tokenizer(), [](const BatchItem&) { return std::string(); });
  size_t n_done = 0;
  const auto take = [&](const BatchItem& item) {
    ++n_done;
    const auto i = static_cast<size_t>(item.number - 1);
    BOOST_TEST_CONTEXT("line " << item.number) {
      BOOST_TEST(item.error.has_value() == (i % 4 == 3));
      if (item.error)
        BOOST_TEST(status_of(*item.error) == 400);
      else
        BOOST_TEST(item.result.completion.content == demo_alone()[i].text);
    }
  };
  for (size_t i = 0; i < 12; ++i) {
    BatchItem item = maker.from_json(static_cast<int64_t>(i) + 1, constrained_line(i));
    item.prompt = prompt_of(item.request, demo_tokenizer());
    if (i % 4 == 3) item.request.options.constraint = R"({"schema":{"not":{}}})";
    runner.begin(std::move(item));
    if (i % 2)
      for (const auto& done : runner.advance()) take(*done);
  }
  while (runner.n_running() > 0)
    for (const auto& done : runner.advance()) take(*done);
  BOOST_TEST(n_done == 12u);
}

// A schema that takes long to compile delays no other request, and no interrupt.
BOOST_AUTO_TEST_CASE(others_go_on_while_a_schema_is_compiled) {
  std::string slow = R"({"schema":{"allOf":[)";
  for (int i = 0; i < 40; ++i)
    slow += (i ? "," : "") + ("{\"anyOf\":[{\"minLength\":" + std::to_string(i)) +
            R"(},{"type":"string"},{"pattern":"a"},{"type":"integer"}]})";
  slow += "]}}";
  struct Asker : HeardAnswer {
    bool is_interrupted() override { return is_cancelled; }
    bool is_cancelled = false;
  } asker;
  HeardAnswer other;
  Engine engine(demo_file(), options_of(16));
  Loop& loop = engine.loop();
  Request request = lines()[6], waiting = request;
  BOOST_REQUIRE(request.options.constraint.empty());
  waiting.options.constraint = slow;
  const int64_t first = loop.add(waiting, asker), second = loop.add(request, other);
  while (!loop.is_done(second)) BOOST_REQUIRE(loop.advance());
  BOOST_TEST(!loop.is_done(first));
  asker.is_cancelled = true;
  loop.advance();
  BOOST_TEST(loop.is_done(first));
  BOOST_TEST((loop.take(first).finish_reason == FinishReason::interrupted));
  BOOST_TEST((loop.take(second).finish_reason != FinishReason::interrupted));
}

// It ends by the schema's own bounds, or by the limit.
BOOST_AUTO_TEST_CASE(a_model_that_always_wants_something_else_ends) {
  UnwillingModel scene(options_of(8));
  std::vector<Request> requests;
  for (size_t i = 0; i < 60; ++i)
    requests.push_back(scene.request(fifty_constraints()[i % 30 * 5 % 49], i < 30 ? 1 : 2, i, 40));
  const HeardAnswers answers = answers_together(scene.engine, requests);
  int64_t n_whole = 0;
  for (size_t i = 0; i < requests.size(); ++i) BOOST_TEST_CONTEXT(requests[i].options.constraint) {
      check_document(requests[i], answers[i]);
      n_whole += answers[i].is_whole();
      BOOST_TEST_MESSAGE((answers[i].is_whole() ? "whole: " : "cut: ") << answers[i].text);
    }
  BOOST_TEST(n_whole > 0);
  BOOST_TEST(n_whole < std::ssize(requests));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace dsv32
