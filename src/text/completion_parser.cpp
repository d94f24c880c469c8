// The parser's three states: start, reasoning, answer; it only ever goes forward through them.
//
// Both ways of feeding end in tell(), which files text under the state of the moment, for the caller's delta
// and for the whole. Text that could still become a tag is held back, never more than a tag's length.
#include "text/completion_parser.h"

#include <algorithm>
#include <utility>

namespace dsv32 {
namespace {

constexpr std::string_view kThink = "<think>", kEndThink = "</think>";

// How many bytes at the end of `text` may be the beginning of `tag`.
size_t unfinished_tag(std::string_view text, std::string_view tag) {
  size_t n_bytes = std::min(text.size(), tag.size() - 1);
  while (n_bytes > 0 && !tag.starts_with(text.substr(text.size() - n_bytes))) --n_bytes;
  return n_bytes;
}

}  // namespace

CompletionParser::CompletionParser(const Tokenizer& tokenizer, bool thinking)
    : decoder_(tokenizer),
      think_(tokenizer.find(kThink)),
      end_think_(tokenizer.find(kEndThink)),
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

CompletionParser::Delta CompletionParser::push_text(std::string_view text) {
  Delta delta;
  held_ += text;
  if (state_ == State::start) {
    if (held_.size() < kThink.size() && kThink.starts_with(held_)) return delta;
    const bool opens = held_.starts_with(kThink);
    if (opens) held_.erase(0, kThink.size());
    state_ = opens ? State::reasoning : State::answer;
  }
  if (state_ == State::reasoning) {
    const size_t tag = held_.find(kEndThink);
    const bool closes = tag != std::string::npos;
    const size_t n_told = closes ? tag : held_.size() - unfinished_tag(held_, kEndThink);
    tell(std::string_view(held_).substr(0, n_told), delta);
    held_.erase(0, n_told + (closes ? kEndThink.size() : 0));
    if (closes) close_thinking();
  }
  if (state_ == State::answer) tell(std::exchange(held_, {}), delta);
  return delta;
}

CompletionParser::Delta CompletionParser::finish() {
  Delta delta;
  tell(std::exchange(held_, {}), delta);
  tell(decoder_.finish(), delta);
  return delta;
}

}  // namespace dsv32
