#include "engine/stop_strings.h"

#include <algorithm>

namespace dsv32 {
namespace {

// The length of the longest end of `text` with which `stop` begins, the whole of `stop` excepted.
size_t held_length(std::string_view text, std::string_view stop) {
  for (size_t n = std::min(text.size(), stop.size() - 1); n > 0; --n)
    if (text.ends_with(stop.substr(0, n))) return n;
  return 0;
}

}  // namespace

StopStrings::StopStrings(std::vector<std::string> stops) : stops_(std::move(stops)) {
  std::erase(stops_, "");
}

std::string StopStrings::push(std::string_view text) {
  if (found_) return {};
  held_ += text;
  size_t first = std::string::npos, n_held = 0;
  for (const std::string& stop : stops_) {
    first = std::min(first, held_.find(stop));
    n_held = std::max(n_held, held_length(held_, stop));
  }
  if (first != std::string::npos) {
    found_ = true;
    held_.resize(first);
    return std::exchange(held_, {});
  }
  std::string shown = held_.substr(0, held_.size() - n_held);
  held_.erase(0, shown.size());
  return shown;
}

}  // namespace dsv32
