// Finds the tool calls in an answer as it arrives (V3.2's markup, dsml.h), and keeps them out of what is
// shown.
//
// The answer's text, without the thinking, is pushed in pieces. A block of calls begins with its mark,
// <｜DSML｜function_calls>; the line ends right before the mark belong to it. Whatever may be the beginning
// of a block is held back, so half a mark is never shown. White space may stand between two tags and before
// the > of a tag. An invoke holds parameters, or one JSON object in their place.
//
//   whole block     its calls count when it ends, all together. What comes after it is not shown (it is
//                   kept in `calls_text`), but a further block counts.
//   faulty block    another tag or text between tags, an attribute missing, a parameter given twice, a
//                   value with string="false" that is no JSON, an answer that ends within the block by
//                   itself: no call of the block counts, the block is shown as text, `call_fault` says why.
//                   Two end tags may be missing, because nothing else can follow there: a call's after its
//                   parameters, where the next call begins or the block ends, and the block's at the
//                   answer's end. An end tag within a JSON string ends nothing.
//   cut block       the answer was cut within the block or its mark: no call of the block counts, it is not
//                   shown, and `is_call_cut` says so.
//
// In every case content and `calls_text` put together are exactly what was pushed, and how that was cut into
// pieces changes nothing. The time is linear in it.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat_format.h"

namespace dsv32 {

struct FoundCalls {
  std::vector<ToolCall> calls = {};  // without ids; arguments in the model's order
  std::string calls_text = {};       // what follows the content: Message::calls_text
  bool is_call_cut = false;
  std::string call_fault = {};  // of the last faulty block; empty: there was none
};

class CallParser {
 public:
  // Returns the content that is certain now. When pieces are whole characters, so are the results.
  std::string push(std::string_view text);
  // The answer has ended; `is_cut`: not by itself, but at a limit or by a signal. Returns the rest of the
  // content.
  std::string finish(bool is_cut);

  // Calls appear as their blocks end.
  const FoundCalls& found() const { return found_; }

 private:
  enum class State { text, invokes, parameters, value, json };
  enum class Match { no, open, yes };  // open: more text decides

  // Each reads one thing and returns whether to go on; false: it waits for more text.
  bool seek_mark();
  bool read_invokes();
  bool read_parameters();
  bool read_value();
  bool read_json();
  bool begin_invoke(std::string_view attributes);
  bool begin_value(std::string_view attributes);
  bool enter(State state);
  bool end_block();
  bool fail_block(const char* fault);

  bool skip_space();
  Match match(std::string_view word) const;
  Match read_tag(std::string_view word, std::string_view& attributes);
  bool read_until(std::string_view word, std::string_view& text);
  bool is_quoted_at(size_t end);
  void release(size_t end);

  State state_ = State::text;
  std::string buffer_;    // not yet in the content or in found_.text
  size_t begin_ = 0;      // released up to here
  size_t at_ = 0;         // read up to here
  size_t searched_ = 0;   // what is sought does not begin before
  size_t n_matched_ = 0;  // bytes of the block's mark before at_
  bool is_start_ = true;  // nothing was released yet
  std::string released_;  // content to return

  std::vector<ToolCall> calls_;  // of the block
  std::set<std::string> names_;  // of the last call's parameters
  bool is_string_ = false;       // the value that is being read
  size_t scanned_ = 0;           // of a JSON value, and whether one of its strings is open there
  bool is_quoted_ = false;
  FoundCalls found_;
};

}  // namespace dsv32
