// cli/chat/answer: an answer with tool calls as JSON, whole and in pieces, and as lines.
#include <boost/test/unit_test.hpp>

#include "base/text.h"
#include "cli/chat/answer.h"
#include "tests/support/tiny_file.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(answer_json)

namespace {

const Tokenizer& tokenizer() {
  static const TinyFile model(TinyModel{.n_layers = 2, .n_dense_layers = 1});
  static const std::unique_ptr<Tokenizer> made = Tokenizer::make(load_vocabulary(GgufFile(model.path)));
  return *made;
}

GenerationResult with_calls(const std::string& content) {
  GenerationResult result;
  result.completion.content = content;
  result.completion.calls = {{"f", R"({"big": 123456789012345678901234567890})"}, {"g", "{\n}"}};
  result.completion.calls_text = "\n\n<calls>";
  return result;
}

Json whole(const GenerationResult& result) {
  return AnswerJson({.model_name = "m", .load_seconds = {}}, tokenizer()).whole(result)["choices"][0];
}

}  // namespace

BOOST_AUTO_TEST_CASE(calls_in_a_message) {
  const Json choice = whole(with_calls("")), message = choice["message"];
  BOOST_TEST(choice["finish_reason"] == "tool_calls");
  BOOST_TEST(message["content"].is_null());
  BOOST_TEST(message["calls_text"] == "\n\n<calls>");
  BOOST_REQUIRE(message["tool_calls"].size() == 2u);
  const Json& call = message["tool_calls"][0];
  BOOST_TEST(call["type"] == "function");
  BOOST_TEST(call["function"].dump() ==
             R"({"name":"f","arguments":"{\"big\": 123456789012345678901234567890}"})");
  const std::string id = call["id"].get<std::string>();
  BOOST_TEST((id.starts_with("call_") && id.find_first_not_of("0123456789abcdef", 5) == id.npos));
  BOOST_TEST(id != message["tool_calls"][1]["id"].get<std::string>());
  BOOST_TEST(whole(with_calls("text"))["message"]["content"] == "text");
}

BOOST_AUTO_TEST_CASE(without_calls_nothing_of_them) {
  GenerationResult result;
  result.completion.is_call_cut = true, result.finish_reason = FinishReason::length;
  const Json choice = whole(result);
  BOOST_TEST(choice["finish_reason"] == "length");
  BOOST_TEST(choice["message"]["content"] == "");
  BOOST_TEST((!choice["message"].contains("tool_calls") && !choice["message"].contains("calls_text")));
}

// The limit may come behind a whole block.
BOOST_AUTO_TEST_CASE(an_answer_that_is_cut_behind_its_calls_is_cut) {
  GenerationResult result = with_calls("");
  result.finish_reason = FinishReason::length;
  BOOST_TEST(whole(result)["finish_reason"] == "length");
  BOOST_TEST(whole(result)["message"]["tool_calls"].size() == 2u);
}

// By OpenAI's names, in both forms, for a model whose block may guess; also when it did not.
BOOST_AUTO_TEST_CASE(guesses_in_the_usage) {
  GenerationResult result;
  result.n_thinking_tokens = 3, result.n_guessed = 1024, result.n_accepted = 812;
  const auto details = [&](bool has_drafts, bool in_pieces) {
    AnswerJson json({.model_name = "m", .load_seconds = {}, .has_drafts = has_drafts}, tokenizer());
    if (!in_pieces) return json.whole(result)["usage"]["completion_tokens_details"].dump();
    return Json::parse(split(json.last(result), '\n')[1])["usage"]["completion_tokens_details"].dump();
  };
  for (const bool in_pieces : {false, true}) {
    BOOST_TEST(details(true, in_pieces) ==
               R"({"reasoning_tokens":3,"accepted_prediction_tokens":812,"rejected_prediction_tokens":212})");
    BOOST_TEST(details(false, in_pieces) == R"({"reasoning_tokens":3})");
  }
  result.n_guessed = result.n_accepted = 0;
  BOOST_TEST(details(true, false) ==
             R"({"reasoning_tokens":3,"accepted_prediction_tokens":0,"rejected_prediction_tokens":0})");
}

BOOST_AUTO_TEST_CASE(guesses_in_a_line) {
  BOOST_TEST(guess_summary(1024, 812) == "guesses: 812 of 1,024 right (79 %)");
  BOOST_TEST(guess_summary(1, 0) == "guesses: 0 of 1 right (0 %)");
}

BOOST_AUTO_TEST_CASE(calls_in_pieces) {
  AnswerJson json({.model_name = "m", .load_seconds = {}}, tokenizer());
  std::vector<Json> deltas;
  std::string reason;
  std::string lines = json.piece("content", "text");
  lines += json.last(with_calls("text"));
  for (const std::string& line : split(lines, '\n')) {
    if (line.empty()) continue;
    const Json chunk = Json::parse(line);
    BOOST_TEST(chunk["object"] == "chat.completion.chunk");
    deltas.push_back(chunk["choices"][0]["delta"]);
    if (chunk["choices"][0]["finish_reason"].is_string()) reason = chunk["choices"][0]["finish_reason"];
  }
  BOOST_REQUIRE(deltas.size() == 4u);
  BOOST_TEST(deltas[0].dump() == R"({"role":"assistant"})");
  BOOST_TEST(deltas[1].dump() == R"({"content":"text"})");
  BOOST_REQUIRE(deltas[2]["tool_calls"].size() == 2u);
  BOOST_TEST(deltas[2]["tool_calls"][1]["index"] == 1);
  BOOST_TEST(deltas[2]["tool_calls"][1]["function"]["name"] == "g");
  BOOST_TEST(deltas[2]["calls_text"] == "\n\n<calls>");
  BOOST_TEST(deltas[3].dump() == "{}");
  BOOST_TEST(reason == "tool_calls");
}

BOOST_AUTO_TEST_CASE(each_call_is_a_line) {
  BOOST_TEST(call_lines(with_calls("").completion.calls) ==
             "{\"name\":\"f\",\"arguments\":{\"big\": 123456789012345678901234567890}}\n"
             "{\"name\":\"g\",\"arguments\":{ }}\n");
}

BOOST_AUTO_TEST_SUITE_END()
