// text/call_parser.h: calls as V3.2 writes them and as it should not, whole and in pieces. Among the faults
// are those that other parsers had: vLLM 36654, 45877 and 56642, SGLang 25233, 28684, 39435 and 40236, ds4
// 192 and 489.
#include <boost/test/unit_test.hpp>

#include <ctime>
#include <random>

#include <nlohmann/json.hpp>

#include "tests/support/contains.h"
#include "tests/support/sanitized.h"
#include "text/call_parser.h"
#include "text/dsml.h"
#include "text/json.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(call_parser)

namespace {

#define DSML "｜DSML｜"
#define BLOCK "\n\n<" DSML "function_calls>\n"
#define END "\n</" DSML "function_calls>"
#define INVOKE(name) "<" DSML "invoke name=\"" name "\">\n"
#define INVOKE_END "\n</" DSML "invoke>"
#define STRING(name, value) \
  "<" DSML "parameter name=\"" name "\" string=\"true\">" value "</" DSML "parameter>"
#define VALUE(name, value) \
  "<" DSML "parameter name=\"" name "\" string=\"false\">" value "</" DSML "parameter>"
#define PARIS INVOKE("get_weather") STRING("city", "Paris") INVOKE_END

struct Parsed {
  std::string content;
  FoundCalls found;

  // All of it in a line, to compare.
  std::string line() const {
    std::string text = content + " |";
    for (const ToolCall& call : found.calls) text += " " + call.name + call.arguments;
    return text + " | " + found.calls_text + (found.is_call_cut ? " | cut" : "") +
           (found.call_fault.empty() ? "" : " | " + found.call_fault);
  }
  std::string calls() const {
    std::string text;
    for (const ToolCall& call : found.calls) text += (text.empty() ? "" : "; ") + call.name + call.arguments;
    return text;
  }
};

// What was shown at any time begins the content, and content and the rest are what was pushed.
Parsed parse_pieces(const std::vector<std::string>& pieces, bool is_cut) {
  CallParser parser;
  std::string content, pushed;
  for (const std::string& piece : pieces) {
    content += parser.push(piece);
    pushed += piece;
    BOOST_REQUIRE(pushed.starts_with(content + parser.found().calls_text));
  }
  content += parser.finish(is_cut);
  BOOST_REQUIRE(content + parser.found().calls_text == pushed);
  for (const ToolCall& call : parser.found().calls)
    BOOST_REQUIRE(nlohmann::json::parse(call.arguments).is_object());
  return {content, parser.found()};
}

Parsed parse(const std::string& text, bool is_cut = false) { return parse_pieces({text}, is_cut); }

std::vector<std::string> bytes_of_text(const std::string& text) {
  std::vector<std::string> pieces;
  for (const char c : text) pieces.emplace_back(1, c);
  return pieces;
}

std::vector<std::string> random_pieces(const std::string& text, std::mt19937& random) {
  std::vector<std::string> pieces;
  for (size_t at = 0, n = 0; at < text.size(); at += n)
    pieces.push_back(text.substr(at, n = 1 + random() % (1 + random() % 40)));
  return pieces;
}

struct Accepted {
  std::string text, content, calls;
};

const std::vector<Accepted>& accepted() {
  static const std::vector<Accepted> all = {
      {BLOCK PARIS END, "", R"(get_weather{"city": "Paris"})"},
      {"I look." BLOCK PARIS END, "I look.", R"(get_weather{"city": "Paris"})"},
      // What V3.2 wrote in SGLang 16122.
      {"工具：" BLOCK INVOKE("select_name") STRING("name", "李华") "\n" VALUE("age", "20") INVOKE_END END,
       "工具：", R"(select_name{"name": "李华", "age": 20})"},
      // Line ends before the block: none, one, many.
      {"I look.<" DSML "function_calls>\n" PARIS END, "I look.", R"(get_weather{"city": "Paris"})"},
      {"a \n<" DSML "function_calls>\n" PARIS END, "a ", R"(get_weather{"city": "Paris"})"},
      {"a\n\n" BLOCK PARIS END "\n", "a", R"(get_weather{"city": "Paris"})"},
      // Several invokes, with one line end between them, two, or none.
      {BLOCK PARIS "\n" INVOKE("b") VALUE("n", "3") INVOKE_END END, "",
       R"(get_weather{"city": "Paris"}; b{"n": 3})"},
      {BLOCK PARIS "\n\n" PARIS END, "", R"(get_weather{"city": "Paris"}; get_weather{"city": "Paris"})"},
      {BLOCK PARIS PARIS END, "", R"(get_weather{"city": "Paris"}; get_weather{"city": "Paris"})"},
      // White space between and in tags, and its absence.
      {"<" DSML "function_calls><" DSML "invoke name=\"f\"><" DSML
       "parameter name=\"a\" string=\"true\">x</" DSML "parameter></" DSML "invoke></" DSML "function_calls>",
       "", R"(f{"a": "x"})"},
      {"<" DSML "function_calls>\r\n  <" DSML "invoke\n name = \"f\" >\t<" DSML
       "parameter  name=\"a\"   string = \"true\" > x </" DSML "parameter >\n\n</" DSML "invoke\n>\n </" DSML
       "function_calls >",
       "", R"(f{"a": " x "})"},
      // No arguments: DeepSeek writes an empty line.
      {BLOCK INVOKE("f") INVOKE_END END, "", "f{}"},
      {BLOCK "<" DSML "invoke name=\"f\"></" DSML "invoke>" END, "", "f{}"},
      // One JSON object in place of parameters.
      {BLOCK INVOKE("f") R"({"city": "Paris", "days": [1, {"a": null}]})" INVOKE_END END, "",
       R"(f{"city": "Paris", "days": [1, {"a": null}]})"},
      {BLOCK INVOKE("f") "\n  {\n}\n  " INVOKE_END END, "", "f{\n}"},
      // Values stand as they are: signs of markup, line ends, quotes, what looks like an end.
      {BLOCK INVOKE("bash") STRING("cmd", "a >x 2>&1") INVOKE_END END, "", R"(bash{"cmd": "a >x 2>&1"})"},
      {BLOCK INVOKE("f") STRING("a", "\n  \"q\" </ </" DSML " </" DSML "parameterx> </b>\n") INVOKE_END END,
       "", "f{\"a\": \"\\n  \\\"q\\\" </ </" DSML " </" DSML "parameterx> </b>\\n\"}"},
      {BLOCK INVOKE("f") STRING("a", "<" DSML "function_calls></" DSML "function_calls></" DSML "invoke>")
           INVOKE_END END,
       "", "f{\"a\": \"<" DSML "function_calls></" DSML "function_calls></" DSML "invoke>\"}"},
      {BLOCK INVOKE("f") STRING("a", "") VALUE("b", " -1.50 ") VALUE("c", "[1,\n2]") VALUE("d", "null")
           VALUE("e", "\"s\"") INVOKE_END END,
       "", "f{\"a\": \"\", \"b\": -1.50, \"c\": [1,\n2], \"d\": null, \"e\": \"s\"}"},
      {BLOCK INVOKE("天気\"s\"") STRING("城\"市", "北京👍") INVOKE_END END, "",
       R"(天気"s"{"城\"市": "北京👍"})"},
      {BLOCK INVOKE("f") STRING("a", "\xff") INVOKE_END END, "", "f{\"a\": \"\uFFFD\"}"},
      // Names that DeepSeek's own parser reads: none, signs of tags, what looks like a tag's end.
      {BLOCK INVOKE("f") STRING("", "x") VALUE(">", "1") VALUE(">=", "2") VALUE("a\">b", "3") VALUE("\"", "4")
           VALUE("</b>", "5") VALUE("a\nb", "6") INVOKE_END END,
       "", R"(f{"": "x", ">": 1, ">=": 2, "a\">b": 3, "\"": 4, "</b>": 5, "a\nb": 6})"},
      // An end tag within a JSON string ends nothing.
      {BLOCK INVOKE("f") VALUE("a", "[\"</" DSML "parameter>\\\"\", 1]") VALUE("b", "\"\\\\\"")
           INVOKE_END END,
       "", "f{\"a\": [\"</" DSML "parameter>\\\"\", 1], \"b\": \"\\\\\"}"},
      // Text after a block is not shown; a further block counts.
      {"a" BLOCK PARIS END "\n\n<function_results>made up", "a", R"(get_weather{"city": "Paris"})"},
      {"a" BLOCK PARIS END " b" BLOCK INVOKE("f") INVOKE_END END "\n", "a",
       R"(get_weather{"city": "Paris"}; f{})"},
      // A call's end tag is missing.
      {BLOCK INVOKE("f") STRING("a", "x") "\n" PARIS END, "", R"(f{"a": "x"}; get_weather{"city": "Paris"})"},
      {BLOCK INVOKE("f") STRING("a", "x") END, "", R"(f{"a": "x"})"},
      // The block's end tag is missing at the answer's end.
      {"a" BLOCK PARIS, "a", R"(get_weather{"city": "Paris"})"},
      {"a" BLOCK PARIS "\n", "a", R"(get_weather{"city": "Paris"})"},
  };
  return all;
}

struct Faulty {
  std::string text, fault;
};

// All of these are text.
const std::vector<Faulty>& faulty() {
  static const std::vector<Faulty> all = {
      {"Write <" DSML "function_calls> to call.", "something other than calls"},
      {BLOCK END, "empty"},
      {BLOCK "\n</" DSML "function_calls>", "empty"},
      {BLOCK PARIS "and" END, "something other than calls"},
      {BLOCK "<" DSML "invoked name=\"f\">" INVOKE_END END, "something other than calls"},
      {BLOCK "<" DSML "invoke>" INVOKE_END END, "something other than calls"},
      {BLOCK "<" DSML "invoke name=\"\">" INVOKE_END END, "no name"},
      {BLOCK "<" DSML "invoke tool=\"f\">" INVOKE_END END, "no name"},
      {BLOCK "<invoke name=\"f\">" INVOKE_END END, "something other than calls"},
      {BLOCK INVOKE("f") "text" INVOKE_END END, "something other than parameters"},
      {BLOCK INVOKE("f") "[1]" INVOKE_END END, "something other than parameters"},
      {BLOCK INVOKE("f") "{\"a\": 1" INVOKE_END END, "no JSON"},
      {BLOCK INVOKE("f") "{\"a\": 1} {}" INVOKE_END END, "no JSON"},
      {BLOCK INVOKE("f") STRING("a", "x") "{\"b\": 1}" INVOKE_END END, "something other than parameters"},
      {BLOCK INVOKE("f") "<parameter name=\"a\">true</" DSML "parameter>" INVOKE_END END,
       "something other than parameters"},
      {BLOCK INVOKE("f") "<" DSML "parameter name=\"a\">true</" DSML "parameter>" INVOKE_END END,
       "does not say"},
      {BLOCK INVOKE("f") "<" DSML "parameter name=\"a\" string=\"yes\">x</" DSML "parameter>" INVOKE_END END,
       "does not say"},
      {BLOCK INVOKE("f") "<" DSML "parameter string=\"true\">x</" DSML "parameter>" INVOKE_END END,
       "no name"},
      {BLOCK INVOKE("f") STRING("a", "x") "\n" STRING("a", "y") INVOKE_END END, "twice"},
      {BLOCK INVOKE("f") VALUE("a", "Paris") INVOKE_END END, "no JSON"},
      {BLOCK INVOKE("f") VALUE("a", "True") INVOKE_END END, "no JSON"},
      {BLOCK INVOKE("f") VALUE("a", "") INVOKE_END END, "no JSON"},
      {BLOCK INVOKE("f") VALUE("a", "[1, 2") INVOKE_END END, "no JSON"},
      {BLOCK INVOKE("f") VALUE("a", "\"\xff\"") INVOKE_END END, "no JSON"},
      {BLOCK INVOKE("f") END, "something other than parameters"},
      {BLOCK INVOKE("f") PARIS END, "something other than parameters"},
      {BLOCK INVOKE("f") STRING("a", "x") "<" DSML "invoked" END, "something other than calls"},
      // One fault spoils the block: half of what the model wanted is not done.
      {BLOCK PARIS "\n" INVOKE("f") VALUE("a", "x") INVOKE_END END, "no JSON"},
      // No end, though the answer has ended by itself.
      {"a" BLOCK, "does not end"},
      {"a" BLOCK PARIS "\n<" DSML "inv", "does not end"},
      {"a" BLOCK PARIS "\n</" DSML "function", "does not end"},
      {"a" BLOCK INVOKE("f") "<" DSML "parameter name=\"a\" string=\"true\">x", "does not end"},
      {"a" BLOCK INVOKE("f") STRING("a", "x"), "does not end"},
      {"a" BLOCK "<" DSML "invoke name=\"" + std::string(3000, 'n') + "\">" INVOKE_END END,
       "something other than calls"},
      // No block: bare invokes and the like.
      {PARIS, ""},
      {"a < b <<" DSML " <" DSML "function_call> <" DSML "tool_calls>\n\n\n< \n", ""},
      {"\n\n<" DSML "function_calls", ""},
      {"<", ""},
      {"\n", ""},
      {"", ""},
  };
  return all;
}

// A call whose values are hard, for the round trip.
std::vector<ToolCall> random_calls(std::mt19937& random) {
  static const std::vector<std::string> texts = {"",     "a",    "\n",
                                                 " b ",  "\"",   "\\",
                                                 "<",    "</",   "</" DSML,
                                                 DSML,   "{}",   "[",
                                                 "é",    "👍",    "北",
                                                 "\t",   "\x01", "string=\"true\">",
                                                 "null", "-1",   "<" DSML "invoke"};
  const auto some_text = [&] {
    std::string text;
    for (size_t n = random() % 4; n > 0; --n) text += texts[random() % texts.size()];
    return text;
  };
  std::vector<ToolCall> calls(1 + random() % 3);
  for (ToolCall& call : calls) {
    call.name = "f" + std::to_string(random() % 100);
    nlohmann::ordered_json arguments = nlohmann::ordered_json::object();
    for (size_t n = random() % 4; n > 0; --n) {
      nlohmann::ordered_json& value = arguments[some_text() + std::to_string(random() % 100)];
      if (const size_t kind = random() % 6; kind < 3)
        value = some_text();
      else if (kind == 3)
        value = static_cast<int64_t>(random()) - (1 << 30);
      else if (kind == 4)
        value = {some_text(), {{some_text(), nullptr}}, 0.5};
      else
        value = random() % 2 == 0;
    }
    call.arguments = python_text(arguments);
  }
  return calls;
}

std::string rendered(const std::vector<ToolCall>& calls) {
  std::string text;
  for (const PromptPart& part :
       dsml_parts(std::vector<Message>{{Message::Role::assistant, "", "", calls}}, 0, false))
    text += part.text;
  return text;
}

}  // namespace

BOOST_AUTO_TEST_CASE(what_the_model_writes_is_read) {
  for (const Accepted& one : accepted()) {
    BOOST_TEST_CONTEXT(one.text) {
      const Parsed parsed = parse(one.text);
      BOOST_TEST(parsed.content == one.content);
      BOOST_TEST(parsed.calls() == one.calls);
      BOOST_TEST(parsed.found.call_fault == "");
      BOOST_TEST(!parsed.found.is_call_cut);
    }
  }
}

BOOST_AUTO_TEST_CASE(a_faulty_block_is_text_and_no_call) {
  for (const Faulty& one : faulty()) BOOST_TEST_CONTEXT(one.text) {
      const Parsed parsed = parse(one.text);
      BOOST_TEST(parsed.content == one.text);
      BOOST_TEST(parsed.calls() == "");
      BOOST_TEST(contains(parsed.found.call_fault, one.fault));
      BOOST_TEST(parsed.found.call_fault.empty() == one.fault.empty());
    }
}

BOOST_AUTO_TEST_CASE(a_fault_does_not_hide_what_follows) {
  const Parsed parsed = parse("Write <" DSML "function_calls>, then:" BLOCK PARIS END);
  BOOST_TEST(parsed.content == "Write <" DSML "function_calls>, then:");
  BOOST_TEST(parsed.calls() == R"(get_weather{"city": "Paris"})");
  // After calls nothing is shown any more.
  const Parsed later = parse("a" BLOCK PARIS END "b" BLOCK "c" END);
  BOOST_TEST(later.content == "a");
  BOOST_TEST(later.calls() == R"(get_weather{"city": "Paris"})");
  BOOST_TEST(contains(later.found.call_fault, "something other than calls"));
}

BOOST_AUTO_TEST_CASE(pieces_change_nothing) {
  std::mt19937 random(1);
  std::vector<std::string> texts;
  for (const Accepted& one : accepted()) texts.push_back(one.text);
  for (const Faulty& one : faulty()) texts.push_back(one.text);
  for (const std::string& text : texts)
    for (const bool is_cut : {false, true}) {
      const std::string whole = parse(text, is_cut).line();
      BOOST_TEST(parse_pieces(bytes_of_text(text), is_cut).line() == whole);
      for (int i = 0; i < 20; ++i)
        BOOST_TEST(parse_pieces(random_pieces(text, random), is_cut).line() == whole);
    }
}

// Content is told at once, line ends and the beginnings of a mark as soon as they are none.
BOOST_AUTO_TEST_CASE(what_is_certain_is_shown_at_once) {
  CallParser parser;
  BOOST_TEST(parser.push("a") == "a");
  BOOST_TEST(parser.push("b\n") == "b");
  BOOST_TEST(parser.push("c <") == "\nc ");
  BOOST_TEST(parser.push("｜") == "");
  BOOST_TEST(parser.push("x") == "<｜x");
  BOOST_TEST(parser.push("<<" DSML "function_calls") == "<");
  BOOST_TEST(parser.push(">\n") == "");
  BOOST_TEST(parser.push("x") == "<" DSML
                                 "function_calls>\n"
                                 "x");
  BOOST_TEST(parser.push(BLOCK PARIS "\n</" DSML "function_calls") == "");
  BOOST_TEST(parser.found().calls.empty());
  BOOST_TEST(parser.push(">") == "");
  BOOST_TEST(parser.found().calls.size() == 1u);
}

// Wherever the limit falls: the text before the block is shown, and no part of the block.
BOOST_AUTO_TEST_CASE(a_cut_block_is_told_and_not_shown) {
  const std::string before = "I look.", block = BLOCK PARIS "\n" INVOKE("f") VALUE("n", "3") INVOKE_END END;
  for (const std::string& text : {before, std::string()}) {
    for (size_t n = 3; n < block.size(); ++n) BOOST_TEST_CONTEXT(block.substr(0, n)) {
        const Parsed parsed = parse_pieces(bytes_of_text(text + block.substr(0, n)), true);
        BOOST_TEST(parsed.content == text);
        BOOST_TEST(parsed.found.calls_text == block.substr(0, n));
        BOOST_TEST(parsed.found.is_call_cut);
        BOOST_TEST(parsed.calls() == "");
      }
    for (size_t n = 0; n < 3; ++n) {
      const Parsed parsed = parse(text + block.substr(0, n), true);
      BOOST_TEST(parsed.content == text + block.substr(0, n));
      BOOST_TEST(!parsed.found.is_call_cut);
    }
    BOOST_TEST(parse(text + block, true).found.calls.size() == 2u);
    BOOST_TEST(!parse(text + block, true).found.is_call_cut);
  }
  // Only where a block may begin is a single < its beginning.
  BOOST_TEST(parse("if a <", true).content == "if a <");
  BOOST_TEST(parse("<", true).found.is_call_cut);
  BOOST_TEST(parse("x<｜", true).found.is_call_cut);
  // Calls of a whole block stay when a further one is cut.
  const Parsed second = parse("a" BLOCK PARIS END BLOCK INVOKE("f"), true);
  BOOST_TEST(second.calls() == R"(get_weather{"city": "Paris"})");
  BOOST_TEST(second.found.is_call_cut);
}

BOOST_AUTO_TEST_CASE(calls_that_are_written_are_read_again) {
  std::mt19937 random(2);
  for (int i = 0; i < (kIsSanitized ? 300 : 3000); ++i) {
    const std::vector<ToolCall> calls = random_calls(random);
    const std::string text = "said" + rendered(calls);
    const Parsed parsed = parse_pieces(random_pieces(text, random), false);
    BOOST_TEST_CONTEXT(text) {
      BOOST_TEST(parsed.content == "said");
      BOOST_REQUIRE(parsed.found.calls.size() == calls.size());
      for (size_t k = 0; k < calls.size(); ++k) {
        BOOST_TEST(parsed.found.calls[k].name == calls[k].name);
        BOOST_TEST(parsed.found.calls[k].arguments == calls[k].arguments);
      }
    }
  }
}

// Heaps of fragments: content and text are always what was pushed, arguments always objects (parse_pieces).
BOOST_AUTO_TEST_CASE(nothing_is_lost_whatever_comes) {
  static const std::vector<std::string> fragments = {BLOCK,
                                                     END,
                                                     PARIS,
                                                     INVOKE_END,
                                                     INVOKE("f"),
                                                     STRING("a", "x"),
                                                     VALUE("b", "1"),
                                                     "<" DSML "invoke",
                                                     " name=\"",
                                                     "\"",
                                                     ">",
                                                     "</" DSML "parameter>",
                                                     "<" DSML "parameter name=\"c\" string=\"",
                                                     "true\">",
                                                     "false\">",
                                                     "{\"a\": [1]}",
                                                     "{",
                                                     "}",
                                                     "\n",
                                                     "text",
                                                     "<",
                                                     DSML,
                                                     "\xff",
                                                     "é"};
  std::mt19937 random(3);
  for (int i = 0; i < (kIsSanitized ? 1000 : 20'000); ++i) {
    std::string text;
    for (size_t n = random() % 12; n > 0; --n) text += fragments[random() % fragments.size()];
    const bool is_cut = random() % 2 == 0;
    BOOST_TEST(parse_pieces(random_pieces(text, random), is_cut).line() == parse(text, is_cut).line());
  }
}

// A million bytes, one at a time, of what could be looked at again and again.
BOOST_AUTO_TEST_CASE(the_time_is_linear) {
  const auto repeated = [](const std::string& unit) {
    std::string text;
    while (text.size() < 1'000'000) text += unit;
    return text;
  };
  const std::string value = BLOCK INVOKE("f") "<" DSML "parameter name=\"a\" string=\"true\">";
  for (const std::string& text :
       {repeated("\n"), repeated("<"), repeated("\n<" DSML), repeated(BLOCK), repeated(BLOCK PARIS END),
        value + repeated("x"), value + repeated("</" DSML "parameter"),
        value + "</" DSML "parameter" + repeated(" "), BLOCK + repeated("\n"), BLOCK + repeated(PARIS),
        BLOCK "<" DSML "invoke " + repeated(">"), BLOCK INVOKE("f") + repeated("{"),
        value + repeated("x</" DSML "parameter  ")}) {
    const std::clock_t begin = std::clock();
    CallParser by_byte, whole;
    for (const char c : text) by_byte.push({&c, 1});
    by_byte.finish(true);
    whole.push(text);
    whole.finish(true);
    const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
    BOOST_TEST(seconds < (kIsSanitized ? 20 : 2), text.substr(0, 80) << "... took " << seconds << " s");
  }
}

BOOST_AUTO_TEST_SUITE_END()
