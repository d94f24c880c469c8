// cli/batch/batch_item: what a line asks for, what is refused, and what it is known by.
#include <algorithm>
#include <boost/test/unit_test.hpp>

#include <nlohmann/json.hpp>

#include "cli/batch/batch.h"
#include "tests/support/contains.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(batch_line)

namespace {

ChatRequest defaults() {
  ChatRequest request;
  request.options.max_tokens = 99;
  request.options.sampling.seed = 5;
  request.prompt.system = "be brief";
  return request;
}

LineMaker maker(const ChatRequest& request = defaults(), uint8_t model = 1) {
  return {Hash256{model}, request};
}

BatchItem line_of(const std::string& json, int64_t number = 7) { return maker().from_json(number, json); }

ChatRequest request_of(const std::string& json) {
  const BatchItem line = line_of(json);
  BOOST_REQUIRE_EQUAL(line.error ? line.error->what() : "", "");
  return line.request;
}

std::string why_refused(const std::string& json) {
  const BatchItem line = line_of(json);
  if (!line.error) return {};
  BOOST_TEST(status_of(*line.error) == 400);
  BOOST_TEST(contains(line.error->what(), "line 7: "));
  return line.error->what();
}

std::string chat(const std::string& fields) {
  return R"({"custom_id":"x","method":"POST","url":"/v1/chat/completions","body":{"messages":)"
         R"([{"role":"user","content":"hi"}])" +
         fields + "}}";
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_line_in_openais_form) {
  const std::string json =
      R"({"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{"model":"any","messages":[
        {"role":"developer","content":"S"},{"role":"user","content":[{"type":"text","text":"o"},
        {"type":"text","text":"ne"}]},{"role":"assistant","content":"two","reasoning_content":"r"},
        {"role":"user","content":"three"}],"max_tokens":3,"max_completion_tokens":4,"temperature":0.5,
        "top_p":0.25,"top_k":6,"min_p":0.125,"seed":18446744073709551615,"stop":["x","yz"],"logprobs":true,
        "top_logprobs":2,"thinking":{"type":"disabled"},"n":1,"stream":false,"tools":[],"logit_bias":{},
        "presence_penalty":0.0,"response_format":{"type":"text"},"frequency_penalty":null}})";
  const BatchItem line = line_of(json);
  BOOST_REQUIRE(!line.error);
  BOOST_TEST(line.id.value() == "a");
  const ChatRequest request = line.request;
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
}

BOOST_AUTO_TEST_CASE(short_forms_and_what_is_left_to_the_command) {
  const BatchItem line = line_of(R"({"prompt":"why?","stop":"."})");
  BOOST_TEST(line.id.value() == "7");
  const ChatRequest request = line.request;
  BOOST_TEST(request.prompt.user == "why?");
  BOOST_TEST(request.prompt.system == "be brief");
  BOOST_TEST(request.options.max_tokens == 99);
  BOOST_TEST(request.options.stops.size() == 1u);
  BOOST_TEST((!request.is_raw && !request.is_completion && request.options.thinking));
  // A line's limit is of thinking and answer together, and takes the place of the command's for the answer.
  ChatRequest limited = defaults();
  limited.options.max_answer = 5;
  const auto max_answer = [&](const char* json) {
    return maker(limited).from_json(1, json).request.options.max_answer;
  };
  BOOST_TEST(max_answer(R"({"prompt":"x"})") == 5);
  BOOST_TEST(max_answer(R"({"prompt":"x","max_tokens":8})") == -1);
  BOOST_TEST(request_of(R"({"messages":[{"role":"user","content":"hi"}]})").messages.size() == 1u);
  BOOST_TEST(line_of(R"({"custom_id":"own","prompt":"why?"})").id.value() == "own");
  const ChatRequest raw = request_of(R"({"url":"/v1/completions","body":{"prompt":"p","logprobs":3}})");
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
           {R"("response_format":{"type":"json_schema"})", "response_format.json_schema is missing"},
           {R"("functions":[{}])", "functions"},
           {R"("temperature":-0.1)", "temperature"},
           {R"("temperature":"0")", "temperature"},
           {R"("top_p":1.5)", "top_p"},
           {R"("min_p":2)", "min_p"},
           {R"("top_k":1.5)", "top_k"},
           {R"("top_k":-2)", "top_k"},
           {R"("top_k":3000000000)", "top_k is 3000000000, expected an integer from -1 to 2147483647"},
           {R"("max_tokens":-2)", "max_tokens"},
           {R"("max_tokens":2.5)", "max_tokens"},
           {R"("max_tokens":9223372036854775808)", "max_tokens"},
           {R"("seed":-2)", "seed"},
           {R"("seed":1.5)", "seed"},
           {R"("seed":1e300)", "seed"},
           {R"("seed":18446744073709551616)", "seed is 18446744073709551616,"},
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

// Each is an error that names it, wherever it stands; but for a short list, and for what asks for nothing.
BOOST_AUTO_TEST_CASE(fields_that_are_not_known_are_refused) {
  for (const char* field :
       {R"("min_tokens":30)", R"("ignore_eos":false)", R"("guided_choice":["a"])", R"("think":false)",
        R"("options":{"temperature":0})", R"("temprature":0)", R"("echo":true)"}) {
    const std::string name = std::string(field).substr(1, std::string(field).find('"', 1) - 1);
    for (const std::string& line :
         {chat(std::string(",") + field), R"({"prompt":"p",)" + std::string(field) + "}"})
      BOOST_TEST(contains(why_refused(line), name + " is not supported"), line);
  }
  for (const auto& [json, name] : std::vector<std::pair<std::string, std::string>>{
           {R"("messages":[{"role":"user","content":[{"type":"text","text":"a","cache_control":{"a":1}}]}])",
            "messages[0].content.cache_control"},
           {R"("messages":[{"role":"user","content":"a","images":["x"]}])", "messages[0].images"},
           {R"("prompt":"a","thinking":{"type":"enabled","keep":1})", "thinking.keep"},
           {R"("prompt":"a","chat_template_kwargs":{"other":1})", "chat_template_kwargs.other"},
           {R"("prompt":"a","stream_options":{"others":1})", "stream_options.others"}})
    BOOST_TEST(contains(why_refused("{" + json + "}"), name + " is not supported"), json);
  request_of(chat(R"(,"model":"m","user":"me","metadata":{"k":1},"store":true,"n":1.0,"stream":false,
    "presence_penalty":0,"frequency_penalty":0.0,"repetition_penalty":1,"repeat_penalty":1.0,
    "stream_options":{"include_usage":true},"stop_token_ids":[],"grammar":"","logit_bias":{},"x":null)"));
  const std::string beside = chat("");
  BOOST_TEST(contains(why_refused(beside.substr(0, beside.size() - 1) + R"(,"temperature":0})"),
                      "temperature must be inside body"));
  BOOST_TEST(contains(why_refused(beside.substr(0, beside.size() - 1) + R"(,"context":"of ours"})"),
                      "context is not supported"));
  BOOST_TEST(why_refused(beside.substr(0, beside.size() - 1) + R"(,"metadata":"of ours"})").empty());
}

// The body that asks for tokens, as a warm process is asked.
BOOST_AUTO_TEST_CASE(a_request_is_written_and_read) {
  Request asked;
  asked.prompt = {0, 7, 300}, asked.decoded = {{1, 2}};
  asked.options.stops = {"x", "\u00e4"}, asked.options.n_top_logprobs = 3, asked.options.max_tokens = 9;
  asked.options.max_answer = 5, asked.options.sampling.seed = UINT64_MAX, asked.options.tools = true;
  const ChatRequest read = request_of(json_text(request_json(asked)));
  BOOST_TEST(read.ids == asked.prompt, boost::test_tools::per_element());
  BOOST_TEST((read.decoded == asked.decoded));
  BOOST_TEST(request_json({nullptr, nullptr, read.ids, read.options, read.decoded}) == request_json(asked));
  const std::string schema = R"({"schema":{"enum":["a",18446744073709551616]}})";
  asked.options = {}, asked.options.constraint = schema;
  BOOST_TEST(request_of(json_text(request_json(asked))).options.constraint == schema);
  for (const char* list : {"[1.5]", "[\"a\"]", "[1,4294967296]", "[[1]]"})
    BOOST_TEST(
        contains(why_refused(R"({"prompt":)" + std::string(list) + "}"), "something else than tokens"));
}

// The schema's keys keep the order of the line, since it is that of the answer's properties.
BOOST_AUTO_TEST_CASE(the_document_that_a_line_asks_for) {
  const std::string schema = R"({"type":"object","properties":{"b":{"type":"integer"},"a":{}}})";
  const std::string constraint = R"({"schema":)" + schema + "}", object = R"({"schema":{"type":"object"}})";
  const auto asked = [](const std::string& field) {
    return request_of(chat("," + field)).options.constraint;
  };
  for (
      const std::string& field :
      {R"("response_format":{"type":"json_schema","json_schema":{"name":"n","description":"d","strict":true,"schema": )" +
           schema + "}}",
       R"("response_format":{"type":"json_object","schema":)" + schema + "}", R"("format":)" + schema,
       R"("json_schema":)" + schema, R"("guided_json":)" + schema, R"("guided_json":)" + Json(schema).dump(),
       R"("structured_outputs":{"json":)" + schema + R"(,"regex":null})"}) {
    BOOST_TEST(asked(field) == constraint, field);
    BOOST_TEST(request_of(R"({"prompt":"p",)" + field + "}").options.constraint == constraint, field);
  }
  BOOST_TEST(asked(R"("response_format":{"type":"json_object"})") == object);
  BOOST_TEST(asked(R"("format":"json")") == object);
  BOOST_TEST(asked(R"("guided_json":true,"response_format":null)") == R"({"schema":true})");
  // Lines differ by their schemas, and one asks for any text where the command asks for a document.
  BOOST_TEST((line_of(chat(R"(,"guided_json":true)")).digest != line_of(chat("")).digest));
  ChatRequest document = defaults();
  document.options.constraint = object;
  const auto under = [&](const std::string& fields) {
    return maker(document).from_json(1, chat(fields)).request.options.constraint;
  };
  BOOST_TEST(under("") == object);
  BOOST_TEST(under(R"(,"response_format":{"type":"text"})").empty());
  BOOST_TEST(under(R"(,"guided_json":true)") == R"({"schema":true})");
}

BOOST_AUTO_TEST_CASE(documents_that_cannot_be_had) {
  const std::string deep = std::string(60, '[') + "1" + std::string(60, ']');
  BOOST_TEST(request_of(R"({"url":"/v1/chat/completions","body":{"messages":[{"role":"user","content":"x"}],)"
                        R"("response_format":{"type":"json_schema","json_schema":{"schema":{"const":)" +
                        deep + "}}}}}")
                 .options.constraint.size() > deep.size());
  for (const auto& [field, why] : std::vector<std::pair<std::string, std::string>>{
           {R"("response_format":"json")", "response_format is no JSON object"},
           {R"("response_format":{})", "response_format.type is '', expected text"},
           {R"("response_format":{"type":"json"})", "response_format.type is 'json'"},
           {R"("response_format":{"type":"json_object","value":1})",
            "response_format.value is not supported"},
           {R"("response_format":{"type":"text","schema":true})", "response_format.schema is not supported"},
           {R"("response_format":{"type":"json_schema","json_schema":{"name":"n"}})",
            "response_format.json_schema.schema is missing"},
           {R"("response_format":{"type":"json_schema","json_schema":{"schema":{},"grammar":"x"}})",
            "response_format.json_schema.grammar is not supported"},
           {R"("response_format":{"type":"json_schema","json_schema":{"schema":{},"strict":1}})",
            "response_format.json_schema.strict is 1"},
           {R"("response_format":{"type":"json_schema","json_schema":{"schema":3}})", "response_format: "},
           {R"("guided_json":{"type":"array","uniqueItems":true})", "uniqueItems"},
           {R"("guided_json":"{")", "guided_json: invalid JSON"},
           {R"("guided_json":{},"format":"json")", "format and guided_json are both given"},
           {R"("structured_outputs":{"choice":["a"]})", "structured_outputs.choice is not supported"},
           {R"("response_format":{"type":"json_object"},"stop":"}")", "stop would cut"}})
    BOOST_TEST(contains(why_refused(chat("," + field)), why),
               field << ": " << why_refused(chat("," + field)));
}

constexpr const char* kWeather =
    R"({"type":"function","function":{"name":"get_weather","description":"d","parameters":{"type":"object",)"
    R"("properties":{"city":{"type":"string"},"at":{"type":"integer"}},"required":["city"]}}})";

std::string strict(std::string tool) { return tool.insert(tool.find("\"description\""), "\"strict\":true,"); }

// In the prompt as given; a constraint only where something has to hold.
BOOST_AUTO_TEST_CASE(tools_and_which_of_them_may_be_called) {
  const std::string weather = kWeather, tools = R"(,"tools":[)" + weather + "]";
  const std::string parameters = R"({"type":"object","properties":{"city":{"type":"string"},)"
                                 R"("at":{"type":"integer"}},"required":["city"]})";
  const auto constraint = [&](const std::string& fields) {
    return request_of(chat(fields)).options.constraint;
  };
  const auto expected = [&](bool is_strict, const std::string& choice, bool is_parallel) {
    return R"({"tools":[{"name":"get_weather","parameters":)" + parameters + R"(,"strict":)" +
           (is_strict ? "true" : "false") + R"(}],"choice":")" + choice + R"(","parallel":)" +
           (is_parallel ? "true" : "false") + "}";
  };
  const ChatRequest request = request_of(chat(tools));
  BOOST_REQUIRE(request.messages.size() == 2u);  // a system message for them
  BOOST_TEST(request.messages[0].tools == "[" + weather + "]");
  BOOST_TEST((request.options.tools && request.options.constraint.empty()));
  const ChatRequest prompt = request_of(R"({"prompt":"p")" + tools + "}");
  BOOST_TEST((prompt.options.tools && prompt.prompt.tools == request.messages[0].tools));
  for (const std::string& fields :
       {tools + R"(,"tool_choice":"none")", std::string(R"(,"tool_choice":"auto","tools":[])")}) {
    const ChatRequest without = request_of(chat(fields));
    BOOST_TEST(
        (without.messages.size() == 1u && !without.options.tools && without.options.constraint.empty()));
  }
  BOOST_TEST(constraint(tools + R"(,"tool_choice":"auto","parallel_tool_calls":true)").empty());
  BOOST_TEST(constraint(tools + R"(,"parallel_tool_calls":false)") == expected(false, "auto", false));
  BOOST_TEST(constraint(tools + R"(,"tool_choice":"required")") == expected(false, "required", true));
  BOOST_TEST(constraint(tools + R"(,"tool_choice":{"type":"function","function":{"name":"get_weather"}})") ==
             expected(false, "get_weather", true));
  BOOST_TEST(constraint(R"(,"tools":[)" + strict(weather) + "]") == expected(true, "auto", true));
  // Numbers keep their digits, in the prompt and in what an answer may be.
  const std::string large =
      R"({"type":"object","properties":{"a":{"const":18446744073709551616,"minimum":-9223372036854775809}},"additionalProperties":false})";
  const ChatRequest large_numbers =
      request_of(chat(R"(,"tools":[)" + replaced(strict(weather), parameters, large) + "]"));
  BOOST_TEST(contains(large_numbers.messages[0].tools, large));
  BOOST_TEST(contains(large_numbers.options.constraint, large));
  BOOST_TEST((line_of(chat(tools)).digest != line_of(chat("")).digest));
  BOOST_TEST((line_of(chat(tools)).digest != line_of(chat(R"(,"tools":[)" + strict(weather) + "]")).digest));
  BOOST_TEST((line_of(chat(tools + R"(,"tool_choice":"none")")).digest == line_of(chat("")).digest));
  const auto tool = [](const std::string& function) {
    return R"("tools":[{"type":"function","function":)" + function + "}]";
  };
  for (const auto& [field, why] : std::vector<std::pair<std::string, std::string>>{
           {R"("tools":{})", "tools is no list"},
           {R"("tools":[{"function":{"name":"a"}}])", "tools.type is ''"},
           {R"("tools":[{"type":"function"}])", "tools.function is missing"},
           {tool(R"({"name":"a b"})"), "tools.function.name is 'a b'"},
           {tool(R"({})"), "tools.function.name is ''"},
           {tool(R"({"name":")" + std::string(65, 'a') + "\"}"), "expected 1 to 64"},
           {tool(R"({"name":"a","parameters":{"type":"array"}})"), "are no schema of an object"},
           {tool(R"({"name":"a","strict":1})"), "tools.function.strict is 1"},
           {R"("tools":[)" + weather + "," + weather + "]", "two tools have the name 'get_weather'"},
           {tool(R"({"name":"a","strict":true,"parameters":{"type":"object","properties":)"
                 R"({"b":{"type":"array","uniqueItems":true}}}})"),
            "uniqueItems"},
           {R"("tool_choice":"required")", "there are no tools"},
           {R"("tool_choice":"any")", R"(tool_choice is "any", expected "auto", "required", "none" or)"},
           {R"("tool_choice":1)", "tool_choice is 1, expected"},
           {R"("tool_choice":{"type":"function","function":{"name":"b"}},)" + tools.substr(1),
            "tool_choice is 'b', which is no tool"},
           {R"("parallel_tool_calls":1)", "parallel_tool_calls is 1"},
           {R"("response_format":{"type":"json_object"})" + tools, "is no document"},
           {R"("stop":"x","tool_choice":"required")" + tools, "stop would cut"}})
    BOOST_TEST(contains(why_refused(chat("," + field)), why),
               field << ": " << why_refused(chat("," + field)));
  BOOST_TEST(contains(why_refused(R"({"url":"/v1/completions","body":{"prompt":"p")" + tools + "}}"),
                      "rendered already"));
}

std::string talk_of(const std::string& messages) {
  return R"({"messages":[{"role":"user","content":"q"},)" + messages + "]}";
}
std::string call(const std::string& id, const std::string& arguments = "{}") {
  return R"({"id":")" + id + R"(","type":"function","function":{"name":"f_)" + id + R"(","arguments":)" +
         Json(arguments).dump() + "}}";
}
std::string result(const std::string& id) {
  return R"({"role":"tool","tool_call_id":")" + id + R"(","content":"of )" + id + "\"}";
}

// Results are put in the calls' order, as V3.2 has them.
BOOST_AUTO_TEST_CASE(calls_and_their_results) {
  const std::string asked = R"({"role":"assistant","content":null,"calls_text":"\n\n<x>","tool_calls":[)" +
                            call("a", R"({"z":1,"b":2})") + "," + call("b") + "]}";
  const ChatRequest request = request_of(talk_of(asked + "," + result("b") + "," + result("a")));
  BOOST_REQUIRE(request.messages.size() == 4u);
  const Message& answer = request.messages[1];
  BOOST_TEST((answer.content.empty() && answer.calls_text == "\n\n<x>" && answer.calls.size() == 2u));
  BOOST_TEST(answer.calls[0].name == "f_a");
  BOOST_TEST(answer.calls[0].arguments == R"({"z":1,"b":2})");
  const std::string none = R"({"role":"assistant","tool_calls":[)" + call("a", "") + "]}," + result("a");
  BOOST_TEST(request_of(talk_of(none)).messages[1].calls[0].arguments == "{}");
  BOOST_TEST((request.messages[2].role == Message::Role::tool && request.messages[2].content == "of a"));
  BOOST_TEST(request.messages[3].content == "of b");
  const std::string plain = R"({"role":"tool","content":"r"})";
  BOOST_TEST(request_of(talk_of(asked + "," + plain + "," + plain)).messages.size() == 4u);
  const std::string later = R"(,{"role":"assistant","content":"done"},{"role":"user","content":"more"})";
  const auto digest = [](const std::string& messages) { return line_of(talk_of(messages)).digest; };
  const LineDigest one = digest(asked + "," + plain + "," + plain + later);
  BOOST_TEST((one == digest(asked + "," + plain + "," + plain + later)));
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
           {"<x>", "<y>"}, {"f_a", "f_c"}, {R"(\"z\":1)", R"(\"z\":2)"}})
    BOOST_TEST((one != digest(replaced(asked, from, to) + "," + plain + "," + plain + later)), from);
  for (const auto& [messages, why] : std::vector<std::pair<std::string, std::string>>{
           {asked, "the call of f_a has no result"},
           {asked + "," + result("a"), "the call of f_b has no result"},
           {asked + "," + result("a") + "," + result("a"), "tool_call_id 'a' belongs to no call"},
           {asked + "," + result("c"), "tool_call_id 'c' belongs to no call"},
           {asked + "," + plain + "," + plain + "," + plain, "belongs to no call"},
           {asked + later, "the call of f_a has no result"},
           {result("a"), "belongs to no call"},
           {R"({"role":"assistant","content":"x"})", "there is nothing to answer"},
           {R"({"role":"assistant","tool_calls":[)" + call("a") + "," + call("a") + "]}", "have the id a"},
           {R"({"role":"assistant","tool_calls":{}})", "tool_calls is no list"},
           {R"({"role":"assistant","calls_text":"x"})", "calls_text without tool_calls"},
           {R"({"role":"user","content":"x","tool_calls":[)" + call("a") + "]}", "is not the assistant's"},
           {R"({"role":"assistant","tool_calls":[)" + call("a", "[1]") + "]}", "the text of no JSON object"},
           {R"({"role":"assistant","tool_calls":[)" + call("a", "{") + "]}", "arguments: invalid JSON"},
           {R"({"role":"assistant","tool_calls":[{"function":{"name":"a"}}]})", "arguments is missing"},
           {R"({"role":"assistant","function_call":{"name":"a"}})", "function_call"}})
    BOOST_TEST(contains(why_refused(talk_of(messages)), why),
               messages << ": " << why_refused(talk_of(messages)));
  BOOST_TEST(contains(why_refused(R"({"messages":[)" + result("a") + "]}"), "follows no message"));
}

BOOST_AUTO_TEST_CASE(thinking_as_others_ask_for_it) {
  for (const char* off :
       {R"(,"chat_template_kwargs":{"thinking":false})",
        R"(,"chat_template_kwargs":{"enable_thinking":false})", R"(,"enable_thinking":false)",
        R"(,"reasoning_effort":"high","enable_thinking":false)"})
    BOOST_TEST(!request_of(chat(off)).options.thinking, off);
  ChatRequest quick = defaults();
  quick.options.thinking = false;
  for (const char* on : {R"(,"chat_template_kwargs":{"thinking":true})", R"(,"enable_thinking":true)"})
    BOOST_TEST(maker(quick).from_json(1, chat(on)).request.options.thinking, on);
  const ChatRequest limited = request_of(chat(R"(,"thinking":{"type":"enabled","budget_tokens":2.0})"));
  BOOST_TEST((limited.options.thinking && limited.options.max_thinking == 2));
  for (const auto& [field, name] : std::vector<std::pair<std::string, std::string>>{
           {R"("chat_template_kwargs":{"thinking":"no"})", R"(chat_template_kwargs.thinking is "no")"},
           {R"("chat_template_kwargs":[])", "chat_template_kwargs is no JSON object"},
           {R"("enable_thinking":1)", "enable_thinking is 1"},
           {R"("thinking":{"type":"enabled","budget_tokens":-2})", "thinking.budget_tokens is -2"},
           {R"("thinking":true,"enable_thinking":false)", "thinking is on and enable_thinking is not"}})
    BOOST_TEST(contains(why_refused(chat("," + field)), name), field);
}

BOOST_AUTO_TEST_CASE(numbers_as_others_write_them) {
  const auto options_of = [](const std::string& fields) { return request_of(chat("," + fields)).options; };
  BOOST_TEST(options_of(R"("max_tokens":4.0)").max_tokens == 4);
  BOOST_TEST(options_of(R"("top_k":20.0)").sampling.top_k == 20);
  BOOST_TEST(options_of(R"("top_k":1000000001)").sampling.top_k == 1000000001);
  BOOST_TEST(options_of(R"("seed":7.0)").sampling.seed == 7u);
  BOOST_TEST(options_of(R"("logprobs":true,"top_logprobs":2.0)").n_top_logprobs == 2);
  BOOST_TEST(
      (line_of(chat(R"(,"seed":7.0,"top_k":5.0)")).digest == line_of(chat(R"(,"seed":7,"top_k":5)")).digest));
  BOOST_TEST((line_of(chat(R"(,"top_k":-1)")).digest == line_of(chat(R"(,"top_k":0)")).digest));
  // Another seed each time, of one and the same line.
  const BatchItem once = line_of(chat(R"(,"seed":-1)")), again = line_of(chat(R"(,"seed":-1)"));
  BOOST_TEST((once.digest == again.digest && once.digest != line_of(chat("")).digest));
  BOOST_TEST(once.request.options.sampling.seed != again.request.options.sampling.seed);
}

BOOST_AUTO_TEST_CASE(a_user_says_something) {
  for (const char* message :
       {R"({"role":"user","content":null})", R"({"role":"user"})", R"({"role":"user","contents":"Hello"})",
        R"({"role":"user","content":[]})", R"({"role":"user","content":""})",
        R"({"role":"user","content":[{"type":"text"}]})",
        R"({"role":"user","content":[{"type":"text","text":""}]})"})
    BOOST_TEST(contains(why_refused(R"({"messages":[)" + std::string(message) + "]}"), "content"), message);
  for (const char* key : {"reasoning", "reasoning_content"})
    BOOST_TEST(
        request_of(R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b",")" +
                   std::string(key) + R"(":"c"},{"role":"user","content":"d"}]})")
            .messages[1]
            .reasoning == "c");
  BOOST_TEST(!why_refused(R"({"messages":[{"role":"user","content":"a","images":["x"]}]})").empty());
}

// The id is the line's own whatever is wrong beside it, before or behind it.
BOOST_AUTO_TEST_CASE(lines_that_are_no_json_keep_their_ids) {
  for (const auto& [field, why] : std::vector<std::pair<std::string, std::string>>{
           {R"("prompt":"a \ud83d b")", "one half of a character"},
           {R"("prompt":"\udc00")", "one half of a character"},
           {R"("temperature":NaN)", "NaN is no number of JSON"},
           {R"("temperature":-Infinity)", "-Infinity is no number of JSON"},
           {R"("temperature":1e400)", "'1e400'"},
           {"\"prompt\":\"\xff\"", "no UTF-8"},
           {"\"prompt\":\"\x01\"", "control character"},
           {R"("x":{"custom_id":"inner"},"y":tru)", "invalid JSON at byte"}})
    for (const std::string& json :
         {R"({"custom_id":"own \"1\"",)" + field + "}", "{" + field + R"( , "custom_id" : "own \"1\""})"}) {
      const BatchItem line = line_of(json);
      BOOST_REQUIRE(line.error);
      BOOST_TEST(line.id.value_or("none") == "own \"1\"", json);
      BOOST_TEST(contains(line.error->what(), why), line.error->what());
      BOOST_TEST(status_of(*line.error) == 400);
    }
  for (const char* json : {R"({"custom_id":"\ud800","prompt":"a"})", R"({"custom_id":"a","custom_id":"b",)",
                           R"({"custom_id":5,)", R"({"custom_id":"a)"})
    BOOST_TEST((line_of(json).error && !line_of(json).id), json);
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
    const BatchItem line = line_of(json);
    BOOST_TEST((line.error && !line.id), json.substr(0, 40));
    const auto answer = nlohmann::json::parse(failure_line(line, *line.error));
    BOOST_TEST(answer["custom_id"].is_null());
    BOOST_TEST(contains(answer["error"]["message"].get<std::string>(), "line 7: "));
    BOOST_TEST(answer["response"]["status_code"] == 400);
  }
}

// What changes an answer changes the digest; how the line is written does not.
BOOST_AUTO_TEST_CASE(the_digest_is_over_id_request_and_model) {
  const BatchItem plain = line_of(chat(""));
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
  const auto seed_of = [](const BatchItem& line) { return line.request.options.sampling.seed; };
  const std::string prompt = R"({"prompt":"a"})", named = R"({"custom_id":"x","prompt":"a"})";
  BOOST_TEST(seed_of(line_of(prompt, 1)) == seed_of(line_of(prompt, 900)));
  BOOST_TEST(seed_of(line_of(named, 1)) == seed_of(line_of(named, 900)));
  BOOST_TEST(seed_of(line_of(named)) != seed_of(line_of(prompt)));
  BOOST_TEST(seed_of(line_of(named)) != seed_of(line_of(R"({"custom_id":"y","prompt":"a"})")));
  BOOST_TEST(seed_of(line_of(R"({"prompt":"a","seed":3})")) == 3u);
  ChatRequest other = defaults();
  other.options.sampling.seed = 6;
  BOOST_TEST(seed_of(maker(other).from_json(7, prompt)) != seed_of(line_of(prompt)));
}

BOOST_AUTO_TEST_CASE(shards_take_every_line_once) {
  std::vector<int> n_taken(4);
  for (int i = 0; i < 4000; ++i) {
    const LineDigest digest = line_of(R"({"prompt":"a"})", i).digest;
    int n_shards = 0;
    for (uint64_t shard = 0; shard < 4; ++shard)
      if (is_in({.number = shard, .n_shards = 4, .source = {}}, digest)) ++n_taken[shard], ++n_shards;
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
