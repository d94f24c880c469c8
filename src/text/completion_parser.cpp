// The parser's three states: start, reasoning, answer; it only ever goes forward through them.
//
// tell() files text under the state of the moment, for the caller's delta and for the whole.
#include "text/completion_parser.h"

namespace dsv32 {

CompletionParser::CompletionParser(const Tokenizer& tokenizer, bool thinking)
    : decoder_(tokenizer),
      think_(tokenizer.find("<think>")),
      end_think_(tokenizer.find("</think>")),
      state_(thinking ? State::reasoning : State::start) {}

void CompletionParser::tell(std::string_view text, Delta& delta) {
  if (text.empty()) return;
  const bool is_reasoning = state_ == State::reasoning;
  (is_reasoning ? delta.reasoning : delta.content) += text;
  (is_reasoning ? completion_.reasoning : completion_.content) += text;
}

void CompletionParser::close_thinking() {
  state_ = State::answer;
  completion_.thinking_closed = true;
}

CompletionParser::Delta CompletionParser::push(int32_t id) {
  Delta delta;
  if (state_ == State::start && id == think_) {
    state_ = State::reasoning;
    return delta;
  }
  if (state_ == State::start) state_ = State::answer;
  if (state_ == State::reasoning && id == end_think_) {
    tell(decoder_.finish(), delta);
    close_thinking();
    return delta;
  }
  tell(decoder_.push(id), delta);
  return delta;
}

CompletionParser::Delta CompletionParser::finish() {
  Delta delta;
  tell(decoder_.finish(), delta);
  return delta;
}

}  // namespace dsv32
