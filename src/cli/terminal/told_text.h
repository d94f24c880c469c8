// What of an answer's text has been told: a request that begins anew comes by the same text, and only what is
// new in it is told.
#pragma once

#include <algorithm>
#include <string>

namespace dsv32 {

class ToldText {
 public:
  // From the first text on once more.
  void begin_anew() { n_now_ = 0; }
  bool is_empty() const { return told_.empty(); }
  const std::string& told() const { return told_; }
  // Of the text that comes next, what has not been told yet.
  std::string news(const std::string& text) {
    n_now_ += text.size();
    const size_t n_new = std::min(n_now_ - std::min(told_.size(), n_now_), text.size());
    std::string fresh = text.substr(text.size() - n_new);
    told_ += fresh;
    return fresh;
  }

 private:
  std::string told_;
  size_t n_now_ = 0;
};

}  // namespace dsv32
