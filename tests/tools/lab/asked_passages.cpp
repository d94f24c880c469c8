#include "tests/tools/lab/asked_passages.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "text/chat_format.h"

namespace dsv32 {
namespace {

constexpr size_t kMostFileBytes = size_t{1} << 30;

AskedPassage parse_passage(const std::string& line) {
  const nlohmann::json object = nlohmann::json::parse(line);
  AskedPassage passage{object.at("passage"), {}};
  for (const nlohmann::json& question : object.at("questions"))
    passage.questions.push_back({question.at("ask"), question.value("answer", "")});
  if (passage.questions.empty()) fail(ErrorKind::usage, "it asks nothing");
  return passage;
}

}  // namespace

std::vector<AskedPassage> read_passages(const std::string& path, int64_t n_most) {
  const std::string text = read_text(path, kMostFileBytes);
  std::vector<AskedPassage> passages;
  size_t number = 1;
  for (size_t at = 0; at < text.size() && (n_most == 0 || std::ssize(passages) < n_most); ++number) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    at = end + 1;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    try {
      passages.push_back(parse_passage(line));
    } catch (const std::exception& error) {
      fail(ErrorKind::usage,
           format("line %zu of %s is no passage: %s", number, visible(path).c_str(),
                  visible(error.what()).c_str()),
           "a line is {\"passage\": \"...\", \"questions\": [{\"ask\": \"...\"}, ...]}");
    }
  }
  if (passages.empty()) fail(ErrorKind::usage, format("%s holds no passage", visible(path).c_str()));
  return passages;
}

std::vector<int32_t> first_turn(const Tokenizer& tokenizer, const std::string& text, bool thinks) {
  const Message ask{Message::Role::user, text, {}};
  return ChatFormat(tokenizer).encode(std::span(&ask, 1), thinks);
}

std::vector<int32_t> first_turn(const Tokenizer& tokenizer, const AskedPassage& passage,
                                const AskedPassage::Question& question, bool thinks) {
  const std::string text = passage.text.empty() ? question.ask : passage.text + "\n" + question.ask;
  return first_turn(tokenizer, text, thinks);
}

}  // namespace dsv32
