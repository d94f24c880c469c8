// Calls of tools through the engine's loop: arguments are what a strict tool's schema accepts, a cut block is
// told as cut, what is shown and what is kept of the calls are what the model wrote, and all is the same
// alone and in company. By models that were never trained to call anything.
#include <boost/test/unit_test.hpp>

#include <nlohmann/json.hpp>

#include "tests/support/constrained_answers.h"
#include "tests/support/constrained_vocabulary.h"
#include "tests/support/contains.h"
#include "tests/support/demo_answers.h"
#include "tests/support/unwilling_model.h"
#include "text/call_parser.h"

namespace dsv32 {

BOOST_AUTO_TEST_SUITE(constrained_calls)

namespace {

using nlohmann::ordered_json;

constexpr const char* kTools = R"([
  {"name": "get_weather", "strict": true, "parameters": {"type": "object", "properties": {
    "city": {"type": "string", "minLength": 1, "maxLength": 12}, "days": {"type": "integer", "minimum": 1, "maximum": 9},
    "unit": {"enum": ["C", "F"]}, "at": {"type": ["string", "null"], "maxLength": 3}},
    "required": ["city", "days"], "additionalProperties": false}},
  {"name": "note", "strict": true, "parameters": {"type": "object", "properties": {
    "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
    "on": {"type": "string", "format": "date"}, "place": {"type": "object", "properties": {"x": {"type": "null"}},
    "required": ["x"], "additionalProperties": false}}, "required": ["on"], "additionalProperties": false}}])";

std::string constraint_of(const std::string& choice, bool parallel) {
  return ordered_json{{"tools", ordered_json::parse(kTools)}, {"choice", choice}, {"parallel", parallel}}
      .dump();
}

bool is_accepted(const ToolCall& call) {
  for (const ordered_json& tool : ordered_json::parse(kTools)) {
    if (tool["name"] != call.name) continue;
    Constraint arguments(compile_constraint(ordered_json{{"schema", tool["parameters"]}}.dump()),
                         demo_vocabulary().trie());
    return arguments.take(call.arguments) && arguments.is_complete() &&
           nlohmann::json::accept(call.arguments);
  }
  return false;
}

EngineOptions options_of(int64_t max_seqs) {
  EngineOptions options;
  options.backend = "cpu", options.n_threads = 1;
  options.context = 768, options.chunk = 64;
  options.max_seqs = max_seqs, options.pool = 768 * max_seqs;
  return options;
}

// By turns of i all kinds of choice.
constexpr const char* kChoices[] = {"required", "get_weather", "note", "required"};
std::string choice_of(size_t i) { return kChoices[i % std::size(kChoices)]; }
Request call_request(const UnwillingModel& model, size_t i, int64_t n_most) {
  const bool parallel = i % std::size(kChoices) == 0;
  const float temperature = parallel ? 5 : i % 3 == 2 ? 0 : 1;  // so that a list of calls ends
  Request request = model.request(constraint_of(choice_of(i), parallel), temperature, i, n_most);
  request.options.tools = true;
  return request;
}

// What is true of every answer that has to call.
void check_calls(const Request& request, const HeardAnswer& answer, const std::string& choice) {
  const Completion& completion = answer.result.completion;
  BOOST_TEST(answer.text == completion.content);
  BOOST_TEST(completion.content + completion.calls_text == answer.bytes(*request.tokenizer));
  BOOST_TEST(completion.call_fault == "");
  BOOST_TEST((completion.content == "" || completion.content == "\n" || completion.content == "\n\n"));
  for (const ToolCall& call : completion.calls) {
    BOOST_TEST(is_accepted(call), call.name << call.arguments);
    if (choice != "required") BOOST_TEST(call.name == choice);
  }
  if (answer.is_whole()) {
    BOOST_TEST(completion.calls.size() >= 1u);
    BOOST_TEST(!completion.is_call_cut);
    BOOST_TEST(completion.content == "");
  } else {
    BOOST_TEST((answer.result.finish_reason == FinishReason::length));
    BOOST_TEST(answer.result.n_completion_tokens == request.options.n_most());
    BOOST_TEST((completion.calls.empty() || !completion.is_call_cut));
  }
}

}  // namespace

BOOST_AUTO_TEST_CASE(calls_have_the_arguments_that_their_schemas_accept) {
  constexpr size_t kRequests = 8;
  UnwillingModel alone(options_of(1)), together(options_of(8));
  const auto requests = [](const UnwillingModel& model) {
    std::vector<Request> all;
    for (size_t i = 1; i <= kRequests; ++i) all.push_back(call_request(model, i, 600));
    return all;
  };
  const std::vector<Request> asked = requests(alone);
  const HeardAnswers answers = answers_alone(alone.engine, asked);
  size_t n_whole = 0, n_calls = 0;
  for (size_t i = 0; i < kRequests; ++i) BOOST_TEST_CONTEXT("request " << i) {
      check_calls(asked[i], answers[i], choice_of(i + 1));
      const std::vector<ToolCall>& calls = answers[i].result.completion.calls;
      if ((i + 1) % std::size(kChoices) != 0) BOOST_TEST(calls.size() <= 1u);
      n_whole += answers[i].is_whole(), n_calls += calls.size();
      for (const ToolCall& call : calls) BOOST_TEST_MESSAGE(i << ": " << call.name << call.arguments);
    }
  BOOST_TEST_MESSAGE(n_whole << " whole answers, " << n_calls << " calls");
  BOOST_TEST(n_whole > kRequests / 2);
  BOOST_TEST(n_calls > n_whole);
  check_same(answers_together(together.engine, requests(together)), answers);
}

// Wherever the limit is, no half of a mark is shown and no call is given before its block is whole.
BOOST_AUTO_TEST_CASE(a_cut_block_is_no_call) {
  UnwillingModel model(options_of(8));
  std::vector<Request> requests;
  for (size_t i = 0; i < 40; ++i) requests.push_back(call_request(model, i, 1 + static_cast<int64_t>(i)));
  const HeardAnswers answers = answers_together(model.engine, requests);
  size_t n_cut = 0;
  for (size_t i = 0; i < requests.size(); ++i) BOOST_TEST_CONTEXT("request " << i) {
      check_calls(requests[i], answers[i], choice_of(i));
      const Completion& completion = answers[i].result.completion;
      n_cut += completion.is_call_cut;
      if (completion.is_call_cut) BOOST_TEST(completion.calls.empty());
    }
  BOOST_TEST(n_cut > requests.size() / 2);
}

// Without calls an answer's text is all content, with a constraint that allows it and without one.
BOOST_AUTO_TEST_CASE(an_answer_without_a_block_is_its_content) {
  UnwillingModel model(options_of(8));
  std::vector<Request> requests;
  for (size_t i = 0; i < 12; ++i) {
    requests.push_back(model.request(i % 2 ? constraint_of("auto", true) : "", i % 3 ? 2 : 1, i, 40));
    requests.back().options.tools = true;
    if (i % 4 == 0) requests.back().options.stops = {"e", " th", "\n<"};
  }
  const HeardAnswers answers = answers_together(model.engine, requests);
  size_t n_stopped = 0;
  for (size_t i = 0; i < requests.size(); ++i) BOOST_TEST_CONTEXT("request " << i) {
      const Completion& completion = answers[i].result.completion;
      const std::string bytes = answers[i].bytes(*model.tokenizer);
      BOOST_TEST(answers[i].text == completion.content);
      BOOST_TEST((completion.calls.empty() && completion.calls_text.empty() && !completion.is_call_cut));
      if (requests[i].options.stops.empty()) {
        BOOST_TEST(completion.content == bytes);
        continue;
      }
      BOOST_TEST(bytes.starts_with(completion.content));
      size_t first = bytes.size();
      for (const std::string& stop : requests[i].options.stops) first = std::min(first, bytes.find(stop));
      BOOST_TEST(completion.content == bytes.substr(0, first));
      n_stopped += first < bytes.size();
    }
  BOOST_TEST(n_stopped > 0u);
}

// A text ends where the parser ends it.
BOOST_AUTO_TEST_CASE(a_text_holds_no_end_tag_of_its_own) {
  const std::string constraint =
      R"({"tools":[{"name":"f","strict":true,"parameters":{"type":"object","properties":{"a":{"type":"string"}},
          "required":["a"],"additionalProperties":false}}],"choice":"required","parallel":true})";
  const std::string begin =
      "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"a\" string=\"true\">";
  const std::string end = "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>";
  const auto takes = [&](const std::string& text) {
    Constraint calls(compile_constraint(constraint), demo_vocabulary().trie());
    const bool is_taken = calls.take(begin + text + end) && calls.is_complete();
    CallParser parser;
    parser.push(begin + text + end), parser.finish(false);
    if (is_taken) BOOST_TEST(parser.found().calls.size() == 1u, text);
    return is_taken;
  };
  for (const char* text :
       {"", "<", "</", "</｜DSML｜", "</｜DSML｜param>", "a</｜DSML｜invoke>", "<<｜DSML｜"})
    BOOST_TEST(takes(text), text);
  for (const char* text : {"</｜DSML｜parameter >", "</｜DSML｜parameter", "a</｜DSML｜parameter\n>b"})
    BOOST_TEST(!takes(text), text);
}

// What a strict tool's schema says of texts changes that in nothing: each of its values can be written, whole
// and as a call that the parser reads.
BOOST_AUTO_TEST_CASE(a_text_that_a_schema_bounds_may_hold_any_sign) {
  const auto takes = [](const std::string& schema, const std::string& text, const std::string& name = "a") {
    const ordered_json parameters{{"type", "object"},
                                  {"properties", {{name, ordered_json::parse(schema)}}},
                                  {"required", {name}},
                                  {"additionalProperties", false}};
    const ordered_json constraint{{"tools", {{{"name", "f"}, {"strict", true}, {"parameters", parameters}}}},
                                  {"choice", "f"},
                                  {"parallel", false}};
    const std::string call =
        "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"" + name +
        "\" string=\"true\">" + text + "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>";
    Constraint calls(compile_constraint(constraint.dump()), demo_vocabulary().trie());
    const bool is_taken = calls.take(call) && calls.is_complete();
    CallParser parser;
    parser.push(call), parser.finish(false);
    if (is_taken)
      BOOST_TEST(parser.found().calls.at(0).arguments ==
                 (ordered_json{{name, text}}.dump().insert(ordered_json(name).dump().size() + 2, " ")));
    return is_taken;
  };
  for (const char* op : {"<", "<=", "=", ">=", ">", "<</", "</｜DSML｜invoke>"}) BOOST_TEST_CONTEXT(op) {
      BOOST_TEST(
          takes(ordered_json{{"enum", {"<", "<=", "=", ">=", ">", "<</", "</｜DSML｜invoke>"}}}.dump(), op));
      BOOST_TEST(takes(ordered_json{{"enum", {op}}}.dump(), op));
      BOOST_TEST(takes(R"({"type":"string","minLength":1,"maxLength":100000})", op));
      BOOST_TEST(takes(R"({"type":"string","pattern":"^.{1,50}$"})", op));
      BOOST_TEST(takes(R"({"type":"string"})", "x", op));
    }
  BOOST_TEST(takes(R"({"pattern":"^[<=>]{1,2}$","type":"string"})", "<>"));
  BOOST_TEST(!takes(R"({"pattern":"^[<=>]{1,2}$","type":"string"})", "<=>"));
  BOOST_TEST(!takes(R"({"type":"string","maxLength":3})", "<<<<"));
  for (const char* others :
       {R"("pattern":"^[<=>]{1,2}$")", R"("maxLength":2)", R"("minLength":1,"maxLength":2)"}) {
    const std::string schema = std::string(R"({"enum":["<","<=>",7],)") + others + "}";
    BOOST_TEST(takes(schema, "<"));
    BOOST_TEST(!takes(schema, "<=>"));
    BOOST_TEST(!takes(schema, ">"));
  }
  for (const char* schema :
       {R"({"type":"string","maxLength":90})", R"({"type":"string","pattern":"^.{0,90}$"})"})
    for (const char* text : {"</｜DSML｜parameter", "a</｜DSML｜parameter >b"})
      BOOST_TEST(!takes(schema, text));
  for (const char* name : {"", ">", "a\">b", "\"q\"", "</b>", "a\nb"})
    BOOST_TEST(takes(R"({"type":"string"})", "x", name));
  BOOST_CHECK_EXCEPTION(takes(R"({"type":"string"})", "x", "a\" string=\"true\">b"), Error,
                        [](const Error& error) { return contains(error.what(), "cannot stand in a tag"); });
}

// A value that cannot be written is refused by its place; it does not vanish from the list.
BOOST_AUTO_TEST_CASE(a_value_that_holds_the_end_tag_is_refused) {
  const std::string value = "a</｜DSML｜parameter>b";
  const ordered_json choice{{"enum", {"plain", value}}};
  const auto compile = [](const ordered_json& properties, bool is_strict = true) {
    const ordered_json parameters{
        {"type", "object"}, {"properties", properties}, {"additionalProperties", false}};
    compile_constraint(ordered_json{
        {"tools", {{{"name", "f"}, {"strict", is_strict}, {"parameters", parameters}}}},
        {"choice", "f"},
        {"parallel",
         false}}.dump());
  };
  const ordered_json as_name{{"type", "object"}, {"properties", {{value, {{"type", "string"}}}}}};
  for (const ordered_json& schema :
       {choice, ordered_json{{"const", value}}, ordered_json{{"const", {1, value}}},
        ordered_json{{"type", "array"}, {"items", choice}}, as_name})
    BOOST_CHECK_EXCEPTION(compile({{"a", schema}}), Error, [&](const Error& error) {
      return contains(error.what(), "tool f: ") && contains(error.what(), "/properties/a") &&
             contains(error.what(), "cannot be written here");
    });
  BOOST_CHECK_NO_THROW(compile({{"a", {{"type", "array"}, {"items", {{"type", "string"}}}}}}));
  BOOST_CHECK_NO_THROW(compile({{"a", choice}}, false));  // which does not bind
}

// Within JSON too a text ends where the parser ends it.
BOOST_AUTO_TEST_CASE(a_text_in_json_holds_no_end_tag) {
  for (const bool is_strict : {false, true}) {
    const ordered_json parameters{
        {"type", "object"},
        {"properties", {{"a", {{"type", "array"}, {"items", {{"type", "string"}}}}}}},
        {"required", {"a"}},
        {"additionalProperties", false}};
    const ordered_json spec{{"tools", {{{"name", "f"}, {"strict", is_strict}, {"parameters", parameters}}}},
                            {"choice", "f"},
                            {"parallel", false}};
    const auto takes = [&](const std::string& text) {
      Constraint calls(compile_constraint(spec.dump()), demo_vocabulary().trie());
      return calls.take(
                 "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"a\" "
                 "string=\"false\">[\"" +
                 text + "\"]</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>") &&
             calls.is_complete();
    };
    BOOST_TEST(takes("<"));
    BOOST_TEST(takes("</｜DSML｜invoke>"));
    BOOST_TEST(!takes("a</｜DSML｜parameter>b"));
  }
}

// The constraint begins behind the thinking, in which marks are no calls.
BOOST_AUTO_TEST_CASE(the_demo_model_calls_after_thinking) {
  const std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(demo_file());
  Engine engine(demo_file(), options_of(2));
  std::vector<Request> requests;
  for (size_t i = 0; i < 2; ++i) {
    GenerationOptions options;
    options.sampling.temperature = 0, options.max_thinking = 6, options.max_answer = 300;
    options.constraint = constraint_of(choice_of(i), false), options.tools = true;
    requests.push_back({nullptr, tokenizer.get(), first_turn(*tokenizer, "What is 17 + 25?", true), options});
  }
  const HeardAnswers answers = answers_together(engine, requests);
  for (size_t i = 0; i < requests.size(); ++i) BOOST_TEST_CONTEXT("request " << i) {
      const GenerationResult& result = answers[i].result;
      BOOST_TEST(answers[i].is_whole(), result.completion.calls_text);
      BOOST_TEST((result.completion.thinking_closed && result.n_thinking_tokens > 0));
      BOOST_TEST(result.completion.content == "");
      BOOST_REQUIRE(result.completion.calls.size() == 1u);
      const ToolCall& call = result.completion.calls.front();
      BOOST_TEST(is_accepted(call), call.name << call.arguments);
      BOOST_TEST_MESSAGE(call.name << call.arguments);
    }
  check_same(answers_alone(engine, requests), answers);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace dsv32
