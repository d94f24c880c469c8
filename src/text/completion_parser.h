// Tells reasoning from answer in what the model generates, while it is generated.
//
// In thinking mode the prompt has ended with <think>: everything up to </think> is reasoning, the rest the
// answer. In the other mode everything is answer, unless the first thing is a <think> of the model's own.
// Tags themselves are dropped; nothing else is, not even the line ends around them. Only the special tokens
// count as tags: a model may well spell "</think>" in a text about itself. One parser per completion, used by
// one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "text/stream_decoder.h"
#include "text/tokenizer.h"

namespace dsv32 {

struct Completion {
  std::string reasoning;
  std::string content;
  bool thinking_closed = false;  // </think> came
};

class CompletionParser {
 public:
  struct Delta {
    std::string reasoning;  // comes before `content`
    std::string content;
  };

  // `tokenizer` must outlive the parser.
  CompletionParser(const Tokenizer& tokenizer, bool thinking);

  // What is new with this token, in whole characters. Throws Error{usage} for an id outside the vocabulary.
  Delta push(int32_t id);
  // What has been held back in case it would become a character.
  Delta finish();

  bool is_thinking() const { return state_ == State::reasoning; }
  // Everything told so far.
  const Completion& completion() const { return completion_; }

 private:
  enum class State { start, reasoning, answer };  // start: the first thing may be <think>
  void tell(std::string_view text, Delta& delta);
  void close_thinking();

  StreamDecoder decoder_;
  std::optional<int32_t> think_, end_think_;
  State state_;
  Completion completion_;
};

}  // namespace dsv32
