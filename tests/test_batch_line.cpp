// cli/batch_request and cli/batch_line: what a line asks for, what is refused, and what it is known by.
#include <boost/test/unit_test.hpp>

#include <nlohmann/json.hpp>

#include "cli/batch_line.h"
#include "cli/batch_output.h"
#include "tests/support/contains.h"

using namespace dsv32;

namespace {

BatchRequest defaults() {
  BatchRequest request;
  request.options.max_tokens = 99;
  request.options.sampling.seed = 5;
  request.prompt.system = "be brief";
  return request;
}

std::vector<std::string> told;

LineMaker maker(const BatchRequest& request = defaults(), uint8_t model = 1) {
  told.clear();
  return {Hash256{model}, request, UnknownFields([](const std::string& name) { told.push_back(name); })};
}

BatchLine line_of(const std::string& json, int64_t number = 7) { return maker().from_json(number, json); }

BatchRequest request_of(const std::string& json) {
  const BatchLine line = line_of(json);
  BOOST_REQUIRE_EQUAL(line.refusal() ? line.refusal()->what() : "", "");
  return std::get<BatchRequest>(line.content);
}

std::string why_refused(const std::string& json) {
  const BatchLine line = line_of(json);
  if (!line.refusal()) return {};
  BOOST_TEST(status_of(*line.refusal()) == 400);
  BOOST_TEST(contains(line.refusal()->what(), "line 7: "));
  return line.refusal()->what();
}

std::string chat(const std::string& fields) {
  return R"({"custom_id":"x","method":"POST","url":"/v1/chat/completions","body":{"messages":)"
         R"([{"role":"user","content":"hi"}])" +
         fields + "}}";
}

}  // namespace

BOOST_AUTO_TEST_SUITE(batch_line)

BOOST_AUTO_TEST_CASE(a_line_in_openais_form) {
  const std::string json =
      R"({"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{"model":"any","messages":[
        {"role":"developer","content":"S"},{"role":"user","content":[{"type":"text","text":"o"},
        {"type":"text","text":"ne"}]},{"role":"assistant","content":"two","reasoning_content":"r"},
        {"role":"user","content":"three"}],"max_tokens":3,"max_completion_tokens":4,"temperature":0.5,
        "top_p":0.25,"top_k":6,"min_p":0.125,"seed":18446744073709551615,"stop":["x","yz"],"logprobs":true,
        "top_logprobs":2,"thinking":{"type":"disabled"},"n":1,"stream":false,"tools":[],"logit_bias":{},
        "presence_penalty":0.0,"response_format":{"type":"text"},"frequency_penalty":null}})";
  const BatchLine line = line_of(json);
  BOOST_REQUIRE(!line.refusal());
  BOOST_TEST(line.id.value() == "a");
  const BatchRequest request = std::get<BatchRequest>(line.content);
  BOOST_REQUIRE(request.messages.size() == 4u);
  BOOST_TEST((request.messages[0].role == Message::Role::system));
  BOOST_TEST(request.messages[1].content == "one");
  BOOST_TEST(request.messages[2].reasoning == "r");
  BOOST_TEST(request.options.max_tokens == 4);
  BOOST_TEST(request.options.sampling.temperature == 0.5f);
  BOOST_TEST(request.options.sampling.top_p == 0.25f);
  BOOST_TEST(request.options.sampling.top_k == 6);
  BOOST_TEST(request.options.sampling.min_p == 0.125f);
  BOOST_TEST(request.options.sampling.seed == UINT64_MAX);
  BOOST_TEST(request.options.stops == (std::vector<std::string>{"x", "yz"}),
             boost::test_tools::per_element());
  BOOST_TEST(request.options.n_top_logprobs == 2);
  BOOST_TEST(!request.options.thinking);
  BOOST_TEST(told.empty());
}

BOOST_AUTO_TEST_CASE(short_forms_and_what_is_left_to_the_command) {
  const BatchLine line = line_of(R"({"prompt":"why?","stop":"."})");
  BOOST_TEST(line.id.value() == "7");
  const BatchRequest request = std::get<BatchRequest>(line.content);
  BOOST_TEST(request.prompt.user == "why?");
  BOOST_TEST(request.prompt.system == "be brief");
  BOOST_TEST(request.options.max_tokens == 99);
  BOOST_TEST(request.options.stops.size() == 1u);
  BOOST_TEST((!request.is_raw && !request.is_completion && request.options.thinking));
  // A line's limit is of thinking and answer together, and takes the place of the command's for the answer.
  BatchRequest limited = defaults();
  limited.options.max_answer = 5;
  UnknownFields unknown([](const std::string&) {});
  BOOST_TEST(parse_request(R"({"prompt":"x"})", limited, unknown).request->options.max_answer == 5);
  BOOST_TEST(
      parse_request(R"({"prompt":"x","max_tokens":8})", limited, unknown).request->options.max_answer == -1);
  BOOST_TEST(request_of(R"({"messages":[{"role":"user","content":"hi"}]})").messages.size() == 1u);
  BOOST_TEST(line_of(R"({"custom_id":"own","prompt":"why?"})").id.value() == "own");
  const BatchRequest raw = request_of(R"({"url":"/v1/completions","body":{"prompt":"p","logprobs":3}})");
  BOOST_TEST((raw.is_raw && raw.is_completion && raw.prompt.system.empty()));
  BOOST_TEST(raw.options.n_top_logprobs == 3);
}

BOOST_AUTO_TEST_CASE(thinking_in_its_three_spellings) {
  for (const char* off : {R"(,"thinking":false)", R"(,"thinking":{"type":"disabled"})",
                          R"(,"reasoning_effort":"none")", R"(,"reasoning_effort":"high","thinking":false)"})
    BOOST_TEST(!request_of(chat(off)).options.thinking, off);
  for (const char* on : {"", R"(,"thinking":true)", R"(,"thinking":{"type":"enabled"})",
                         R"(,"reasoning_effort":"low")", R"(,"thinking":null)"})
    BOOST_TEST(request_of(chat(on)).options.thinking, on);
}

// Everything that would change the answer and is not supported, and everything of the wrong type or range.
BOOST_AUTO_TEST_CASE(what_is_not_supported_is_refused_by_name) {
  for (const auto& [field, name] : std::vector<std::pair<std::string, std::string>>{
           {R"("stream":true)", "stream"},
           {R"("n":2)", "n is 2"},
           {R"("best_of":2)", "best_of"},
           {R"("frequency_penalty":0.1)", "frequency_penalty"},
           {R"("presence_penalty":-1)", "presence_penalty"},
           {R"("repetition_penalty":1.1)", "repetition_penalty"},
           {R"("logit_bias":{"5":1})", "logit_bias"},
           {R"("response_format":{"type":"json_object"})", "response_format"},
           {R"("tools":[{"type":"function"}])", "tools"},
           {R"("tool_choice":"required")", "tool_choice"},
           {R"("functions":[{}])", "functions"},
           {R"("temperature":-0.1)", "temperature"},
           {R"("temperature":"0")", "temperature"},
           {R"("top_p":1.5)", "top_p"},
           {R"("min_p":2)", "min_p"},
           {R"("top_k":1.5)", "top_k"},
           {R"("max_tokens":-2)", "max_tokens"},
           {R"("max_tokens":9223372036854775808)", "max_tokens"},
           {R"("seed":-1)", "seed"},
           {R"("seed":1.0)", "seed"},
           {R"("stop":"")", "stop"},
           {R"("stop":[1])", "stop"},
           {R"("logprobs":21)", "logprobs"},
           {R"("top_logprobs":3)", "top_logprobs"},
           {R"("logprobs":true,"top_logprobs":21)", "top_logprobs"},
           {R"("thinking":"yes")", "thinking"},
           {R"("thinking":{"type":"auto"})", "thinking"},
           {R"("prompt":"p")", "prompt"}})
    BOOST_TEST(contains(why_refused(chat("," + field)), name), field);
}

BOOST_AUTO_TEST_CASE(lines_that_ask_for_nothing) {
  for (const char* json :
       {R"({})", R"({"prompt":""})", R"({"prompt":["a"]})", R"({"messages":[]})", R"({"messages":"hi"})",
        R"({"messages":[{"role":"tool","content":"x"}]})", R"({"messages":[{"role":"user","content":5}]})",
        R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}]})",
        R"({"messages":[{"role":"user","content":[{"type":"image_url"}]}]})",
        R"({"messages":[{"role":"assistant","tool_calls":[{}]},{"role":"user","content":"x"}]})",
        R"({"prompt":"a","messages":[{"role":"user","content":"hi"}]})",
        R"({"custom_id":"x","method":"POST"})", R"({"url":"/v1/embeddings","body":{"input":"x"}})",
        R"({"method":"GET","url":"/v1/completions","body":{}})",
        R"({"url":"/v1/completions","body":{"messages":[]}})", R"({"url":"/v1/chat/completions","body":[]})"})
    BOOST_TEST(!why_refused(json).empty(), json);
}

BOOST_AUTO_TEST_CASE(lines_whose_id_cannot_be_told) {
  const std::string deep = std::string(100000, '[') + std::string(100000, ']');
  for (const std::string& json :
       {std::string("not json"), std::string("[1]"), std::string("\"x\""), std::string(R"({"prompt":"a"} x)"),
        std::string(R"({"prompt":"\ud800"})"), std::string("{\"prompt\":\"\xff\"}"),
        std::string(R"({"n":1e999})"), std::string(R"({"prompt":)"), deep, R"({"x":)" + deep + "}",
        std::string(R"({"custom_id":5,"prompt":"a"})"), std::string(R"({"custom_id":"","prompt":"a"})"),
        std::string(1, '\0')}) {
    const BatchLine line = line_of(json);
    BOOST_TEST((line.refusal() && !line.id), json.substr(0, 40));
    const auto answer = nlohmann::json::parse(failure_line(line, *line.refusal()));
    BOOST_TEST(answer["custom_id"].is_null());
    BOOST_TEST(contains(answer["error"]["message"].get<std::string>(), "line 7: "));
    BOOST_TEST(answer["response"]["status_code"] == 400);
  }
}

BOOST_AUTO_TEST_CASE(unknown_fields_are_told_once) {
  LineMaker lines = maker();
  for (int i = 0; i < 3; ++i)
    BOOST_TEST(!lines.from_json(i, R"({"prompt":"a","user":"me","metadata":{"k":1}})").refusal());
  BOOST_TEST(told == (std::vector<std::string>{"metadata", "user"}), boost::test_tools::per_element());
  for (int i = 0; i < 1000; ++i) lines.from_json(i, R"({"prompt":"a","x)" + std::to_string(i) + R"(":1})");
  BOOST_TEST(told.size() == 32u);  // what is kept of them does not grow
}

// What changes an answer changes the digest; how the line is written does not.
BOOST_AUTO_TEST_CASE(the_digest_is_over_id_request_and_model) {
  const BatchLine plain = line_of(chat(""));
  for (const char* same : {R"(,"temperature":1)", R"(,"max_tokens":99)", R"(,"thinking":true)",
                           R"(,"user":"u")", R"(,"model":"other")", R"(,"stream":false)"})
    BOOST_TEST((line_of(chat(same)).digest == plain.digest), same);
  for (const char* other :
       {R"(,"temperature":0.9)", R"(,"max_tokens":98)", R"(,"thinking":false)", R"(,"seed":5)",
        R"(,"stop":"x")", R"(,"logprobs":true)", R"(,"top_k":1)", R"(,"min_p":0.1)"})
    BOOST_TEST((line_of(chat(other)).digest != plain.digest), other);
  BOOST_TEST((line_of(chat(""), 8).digest == plain.digest));
  BOOST_TEST((maker(defaults(), 2).from_json(7, chat("")).digest != plain.digest));
  BOOST_TEST((line_of(R"({"prompt":"a"})", 1).digest != line_of(R"({"prompt":"a"})", 2).digest));
  BOOST_TEST((line_of("bad", 1).digest != line_of("bad", 2).digest));
  BOOST_TEST((parse_line_digest(plain.digest_text()) == plain.digest));
  for (const std::string& text :
       {std::string(), std::string(31, '0'), std::string(32, 'g'), std::string(34, '0')})
    BOOST_TEST(!parse_line_digest(text));
}

BOOST_AUTO_TEST_CASE(a_seed_follows_from_the_request_and_not_from_its_place) {
  const auto seed_of = [](const BatchLine& line) {
    return std::get<BatchRequest>(line.content).options.sampling.seed;
  };
  const std::string prompt = R"({"prompt":"a"})", named = R"({"custom_id":"x","prompt":"a"})";
  BOOST_TEST(seed_of(line_of(prompt, 1)) == seed_of(line_of(prompt, 900)));
  BOOST_TEST(seed_of(line_of(named, 1)) == seed_of(line_of(named, 900)));
  BOOST_TEST(seed_of(line_of(named)) != seed_of(line_of(prompt)));
  BOOST_TEST(seed_of(line_of(named)) != seed_of(line_of(R"({"custom_id":"y","prompt":"a"})")));
  BOOST_TEST(seed_of(line_of(R"({"prompt":"a","seed":3})")) == 3u);
  BatchRequest other = defaults();
  other.options.sampling.seed = 6;
  BOOST_TEST(seed_of(maker(other).from_json(7, prompt)) != seed_of(line_of(prompt)));
}

BOOST_AUTO_TEST_CASE(shards_take_every_line_once) {
  std::vector<int> n_taken(4);
  for (int i = 0; i < 4000; ++i) {
    const LineDigest digest = line_of(R"({"prompt":"a"})", i).digest;
    int n_shards = 0;
    for (uint64_t shard = 0; shard < 4; ++shard)
      if (is_in({shard, 4}, digest)) ++n_taken[shard], ++n_shards;
    BOOST_TEST(n_shards == 1);
  }
  for (const int n : n_taken) BOOST_TEST((n > 900 && n < 1100), n);
}

BOOST_AUTO_TEST_CASE(errors_have_their_status) {
  BOOST_TEST(status_of(Error(ErrorKind::usage, "")) == 400);
  BOOST_TEST(status_of(Error(ErrorKind::context_full, "")) == 413);
  BOOST_TEST(status_of(Error(ErrorKind::model, "")) == 500);
  BOOST_TEST(status_of(Error(ErrorKind::memory, "")) == 500);
}

BOOST_AUTO_TEST_SUITE_END()
