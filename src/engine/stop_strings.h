// Watches a stream of text for stop strings, which end the answer and are not part of it.
//
// Text that may be the beginning of a stop string is held back until it is clear what it is, so nothing of a
// stop string is ever emitted, however it is cut. One per completion.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dsv32 {

class StopStrings {
 public:
  explicit StopStrings(std::vector<std::string> stops);  // empty strings are ignored

  // Returns the text that can be shown. Once found() nothing more is.
  std::string push(std::string_view text);
  // What was held back and turned out to be text.
  std::string finish() { return std::exchange(held_, {}); }
  bool found() const { return found_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool found_ = false;
};

}  // namespace dsv32
