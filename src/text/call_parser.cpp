// One buffer and a place in it that only moves forward: each step reads a whole tag or value, or waits for
// more.
//
// Tags have a greatest length, which bounds what is looked at again while a tag arrives.
#include "text/call_parser.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <nlohmann/json.hpp>

#include "text/json.h"
#include "text/marks.h"

namespace dsv32 {
namespace {

constexpr std::string_view kEndCalls = marks::beginning(marks::kEndCalls);
constexpr std::string_view kInvoke = marks::beginning(marks::kInvoke),
                           kEndInvoke = marks::beginning(marks::kEndInvoke);
constexpr std::string_view kParameter = marks::beginning(marks::kParameter),
                           kEndParameter = marks::beginning(marks::kEndParameter);
constexpr const char* kSpace = " \t\r\n";
constexpr size_t kMaxTagBytes = 1024;

std::string_view without_space(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(kSpace), text.size()));
  return text.substr(0, text.find_last_not_of(kSpace) + 1);
}

// Removes `word` from the beginning, or the end, and white space around it. False: it is not there.
bool take_first(std::string_view& text, std::string_view word) {
  if (!text.starts_with(word)) return false;
  text = without_space(text.substr(word.size()));
  return true;
}
bool take_last(std::string_view& text, std::string_view word) {
  if (!text.ends_with(word)) return false;
  text = without_space(text.substr(0, text.size() - word.size()));
  return true;
}

// `name="NAME"` -> NAME. A quote within the name is part of it, as in DeepSeek's own parser.
bool take_name(std::string_view attributes, std::string& name) {
  if (!take_first(attributes, "name") || !take_first(attributes, "=")) return false;
  if (attributes.size() < 2 || attributes.front() != '"' || attributes.back() != '"') return false;
  name = attributes.substr(1, attributes.size() - 2);
  return true;
}

// `name="NAME" string="true"` of a parameter's tag.
bool take_parameter(std::string_view attributes, std::string& name, bool& is_string) {
  is_string = take_last(attributes, "\"true\"");
  if (!is_string && !take_last(attributes, "\"false\"")) return false;
  if (!take_last(attributes, "=")) return false;
  const size_t n = attributes.size();
  return take_last(attributes, "string") &&
         attributes.size() + std::strlen("string") < n &&  // a space is between
         take_name(attributes, name);
}

}  // namespace

std::string CallParser::push(std::string_view text) {
  buffer_ += text;
  bool goes_on = true;
  while (goes_on) switch (state_) {
      case State::text: goes_on = seek_mark(); break;
      case State::invokes: goes_on = read_invokes(); break;
      case State::parameters: goes_on = read_parameters(); break;
      case State::value: goes_on = read_value(); break;
      case State::json: goes_on = read_json(); break;
    }
  buffer_.erase(0, begin_);
  at_ -= begin_, searched_ -= std::min(searched_, begin_), scanned_ -= std::min(scanned_, begin_), begin_ = 0;
  return std::exchange(released_, {});
}

std::string CallParser::finish(bool is_cut) {
  // A lone < is half a mark only where one may begin.
  const bool in_mark = n_matched_ > 1 || (n_matched_ == 1 && (is_start_ || buffer_.front() == '\n'));
  if (is_cut && (state_ != State::text || in_mark)) {
    found_.is_call_cut = true;
    found_.calls_text += std::exchange(buffer_, {});
  } else if (state_ == State::invokes && !calls_.empty() && at_ == buffer_.size()) {
    end_block();
  } else if (state_ != State::text) {
    fail_block("the block of tool calls does not end");
  }
  release(buffer_.size());
  buffer_.clear();
  return std::exchange(released_, {});
}

bool CallParser::seek_mark() {
  while (at_ < buffer_.size()) {
    const char c = buffer_[at_];
    if (c == marks::kCalls[n_matched_]) {
      ++at_;
      if (++n_matched_ == marks::kCalls.size()) return n_matched_ = 0, enter(State::invokes);
    } else if (n_matched_ > 0) {  // no mark; `c` may begin one
      n_matched_ = 0;
      release(at_);
    } else {
      ++at_;
      if (c != '\n') release(at_);
    }
  }
  return false;
}

bool CallParser::read_invokes() {
  std::string_view attributes;
  if (!skip_space()) return false;
  const Match end = read_tag(kEndCalls, attributes);
  if (end == Match::yes) return calls_.empty() ? fail_block("a block of tool calls is empty") : end_block();
  const Match invoke = read_tag(kInvoke, attributes);
  if (invoke == Match::yes) return begin_invoke(attributes);
  if (std::max(end, invoke) == Match::open) return false;
  return fail_block("a block of tool calls holds something other than calls");
}

bool CallParser::begin_invoke(std::string_view attributes) {
  std::string name;
  if (!take_name(attributes, name) || name.empty()) return fail_block("a tool call has no name");
  calls_.push_back({std::move(name), "{"});
  names_.clear();
  return enter(State::parameters);
}

bool CallParser::read_parameters() {
  std::string_view attributes;
  if (!skip_space()) return false;
  const Match end = read_tag(kEndInvoke, attributes);
  // The model goes on without it: to the next call, or out of the block.
  const Match next = names_.empty() ? Match::no : std::max(match(kInvoke), match(kEndCalls));
  if (end == Match::yes || next == Match::yes) return calls_.back().arguments += '}', enter(State::invokes);
  const Match parameter = read_tag(kParameter, attributes);
  if (parameter == Match::yes) return begin_value(attributes);
  if (std::max({end, next, parameter}) == Match::open) return false;
  if (match(kParameter) == Match::yes)
    return fail_block("a parameter has no name or does not say whether it is a string");
  if (buffer_[at_] == '{' && names_.empty()) return enter(State::json);
  return fail_block("a tool call holds something other than parameters");
}

bool CallParser::begin_value(std::string_view attributes) {
  std::string name;
  take_parameter(attributes, name, is_string_);
  std::string& arguments = calls_.back().arguments;
  if (!names_.empty()) arguments += ", ";
  arguments += json_text(name) + ": ";
  if (!names_.insert(std::move(name)).second) return fail_block("a tool call has a parameter twice");
  scanned_ = at_, is_quoted_ = false;
  return enter(State::value);
}

bool CallParser::read_value() {
  std::string_view value;
  if (!read_until(kEndParameter, value)) return false;
  if (!is_string_) value = without_space(value);
  if (!is_string_ && !nlohmann::json::accept(value)) return fail_block("a parameter's value is no JSON");
  calls_.back().arguments += is_string_ ? json_text(value) : std::string(value);
  return enter(State::parameters);
}

bool CallParser::read_json() {
  std::string_view arguments;
  if (!read_until(kEndInvoke, arguments)) return false;
  arguments = without_space(arguments);
  if (!nlohmann::json::accept(arguments)) return fail_block("a tool call's arguments are no JSON");
  calls_.back().arguments = arguments;
  return enter(State::invokes);
}

bool CallParser::enter(State state) {
  state_ = state;
  searched_ = at_;
  return true;
}

bool CallParser::end_block() {
  std::ranges::move(calls_, std::back_inserter(found_.calls));
  calls_.clear();
  release(at_);  // goes to found_.calls_text, as there are calls
  return enter(State::text);
}

bool CallParser::fail_block(const char* fault) {
  found_.call_fault = fault;
  calls_.clear();
  release(at_);
  return enter(State::text);
}

bool CallParser::skip_space() {
  at_ = std::min(buffer_.find_first_not_of(kSpace, at_), buffer_.size());
  searched_ = std::max(searched_, at_);
  return at_ < buffer_.size();
}

// Whether the text goes on with `word`.
CallParser::Match CallParser::match(std::string_view word) const {
  const std::string_view unread = std::string_view(buffer_).substr(at_);
  return unread.starts_with(word) ? Match::yes : word.starts_with(unread) ? Match::open : Match::no;
}

// A tag that begins with `word`. If it is all there, `attributes` is what stands between `word` and its >,
// and at_ is after it. An opening tag ends at the first > after a quote; a parameter's, whose name may hold
// any sign, at the first > after all its attributes and before its end tag.
CallParser::Match CallParser::read_tag(std::string_view word, std::string_view& attributes) {
  if (const Match begun = match(word); begun != Match::yes) return begun;
  const bool is_end = word[1] == '/', is_parameter = word == kParameter;
  const size_t begin = at_ + word.size();
  size_t last = at_ + kMaxTagBytes;
  if (is_parameter)
    last = std::min(last, std::string_view(buffer_).substr(0, last).find(kEndParameter, begin));
  std::string name;
  bool is_string = false;
  for (size_t close = std::max(searched_, begin);; ++close) {
    close = std::min(buffer_.find('>', close), buffer_.size());
    if (close > last) return Match::no;
    attributes = std::string_view(buffer_).substr(begin, close - begin);
    const bool is_apart =
        attributes.empty() || std::string_view(kSpace).find(attributes[0]) != std::string::npos;
    attributes = without_space(attributes);
    if (!is_apart || (is_end && !attributes.empty())) return Match::no;
    searched_ = close;
    if (close == buffer_.size()) return Match::open;
    if (is_parameter ? !take_parameter(attributes, name, is_string) : !is_end && !attributes.ends_with('"'))
      continue;
    at_ = close + 1;
    return Match::yes;
  }
}

// Whether a string of the JSON value that is read has begun before buffer_[end] and not ended.
bool CallParser::is_quoted_at(size_t end) {
  for (; scanned_ < end; ++scanned_) {
    if (is_quoted_ && buffer_[scanned_] == '\\')
      ++scanned_;
    else if (buffer_[scanned_] == '"')
      is_quoted_ = !is_quoted_;
  }
  return is_quoted_;
}

// Up to an end tag that begins with `word`. If that is all there, `text` is what stands before it, and at_ is
// after it.
bool CallParser::read_until(std::string_view word, std::string_view& text) {
  for (size_t found; (found = buffer_.find(word, searched_)) != std::string::npos; ++searched_) {
    searched_ = found;
    if (state_ == State::value && !is_string_ && is_quoted_at(found)) continue;
    const size_t close = std::min(buffer_.find_first_not_of(kSpace, found + word.size()), buffer_.size());
    if (close - found > kMaxTagBytes) continue;
    if (close == buffer_.size()) return false;
    if (buffer_[close] != '>') continue;
    text = std::string_view(buffer_).substr(at_, found - at_);
    at_ = close + 1;
    return true;
  }
  searched_ = std::max(searched_, buffer_.size() - std::min(buffer_.size(), word.size() - 1));
  return false;
}

void CallParser::release(size_t end) {
  (found_.calls.empty() ? released_ : found_.calls_text).append(buffer_, begin_, end - begin_);
  is_start_ = is_start_ && end == begin_;
  begin_ = end;
}

}  // namespace dsv32
