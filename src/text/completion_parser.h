// Turns the token ids that the model generates into text as they arrive, and separates reasoning from answer.
//
// A parser is for one sequence and one thread; its tokenizer must outlive it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/text.h"
#include "text/call_parser.h"
#include "text/marks.h"
#include "text/tokenizer.h"

namespace dsv32 {

// With the calls of an answer to a prompt with tools.
struct Completion : FoundCalls {
  std::string reasoning;
  std::string content;
  bool thinking_closed = false;  // </think> came

  // Whether anything but thinking came.
  bool has_begun() const { return !content.empty() || !calls.empty() || is_call_cut; }
};

// In thinking mode the prompt has ended with <think>: everything up to </think> is reasoning, the rest the
// answer. In the other mode everything is answer, unless the first token is a <think>. Only the tags are
// dropped; line ends around them stay. A further </think> is dropped too: when the first one came by a limit,
// the model still writes its own. Only the special tokens count as tags: a model may spell "</think>" in a
// text about itself.
//
// Never emits half a character. A token may end within a UTF-8 character; such bytes, at most three, wait for
// the next token. Bytes that are not UTF-8 pass through: everything pushed comes out again, in order.
class CompletionParser {
 public:
  struct Delta {
    std::string reasoning;  // comes before `content`
    std::string content;
  };

  CompletionParser(const Tokenizer& tokenizer, bool thinking)
      : tokenizer_(tokenizer),
        think_(tokenizer.find(marks::kThink)),
        end_think_(tokenizer.find(marks::kEndThink)),
        state_(thinking ? State::reasoning : State::start) {}

  // Returns the text that this token adds, in whole characters. Throws Error{usage} for an id outside the
  // vocabulary.
  Delta push(int32_t id) {
    const State before = state_;
    if (state_ == State::start) state_ = id == think_ ? State::reasoning : State::answer;
    if (before == State::start && state_ == State::reasoning) return {};
    if (completion_.thinking_closed && id == end_think_) return {};
    if (state_ != State::reasoning || id != end_think_) return add(tokenizer_.bytes_of(id));
    const Delta delta = finish();
    state_ = State::answer;
    completion_.thinking_closed = true;
    return delta;
  }
  // Returns the bytes held back as the beginning of a character.
  Delta finish() { return record(std::exchange(waiting_, {})); }

  bool is_thinking() const { return state_ == State::reasoning; }
  // Everything returned so far.
  const Completion& completion() const { return completion_; }

 private:
  enum class State { start, reasoning, answer };  // start: the first token may be <think>

  Delta add(std::string_view bytes) {
    waiting_ += bytes;
    std::string text =
        std::exchange(waiting_, waiting_.substr(waiting_.size() - incomplete_utf8_tail(waiting_)));
    text.resize(text.size() - waiting_.size());
    return record(std::move(text));
  }
  Delta record(std::string text) {
    (is_thinking() ? completion_.reasoning : completion_.content) += text;
    return is_thinking() ? Delta{std::move(text), {}} : Delta{{}, std::move(text)};
  }

  const Tokenizer& tokenizer_;
  std::optional<int32_t> think_, end_think_;
  State state_;
  std::string waiting_;  // the beginning of a character
  Completion completion_;
};

}  // namespace dsv32
