// See line_drawing.h.
#include "cli/terminal/line_drawing.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "cli/terminal/word_wrap.h"

namespace dsv32 {
namespace {

constexpr std::string_view kEmojiFollows = "\ufe0f";  // makes some characters wide, in some terminals

size_t most_columns_of(std::string_view text) {
  size_t n = columns_of(text);
  for (size_t at = text.find(kEmojiFollows); at != std::string_view::npos;
       at = text.find(kEmojiFollows, at + 1))
    ++n;
  return n;
}

std::string rows_up(size_t n) { return n > 0 ? format("\x1b[%zuA", n) : std::string(); }

}  // namespace

// A text that is broken into rows, and where the cursor is.
struct LineDrawing::Rows {
  std::vector<std::string> rows{1};
  size_t column = 0, width;
  size_t at_row = 0;
  std::string left;

  Rows(std::string_view before, std::string_view after, size_t n_columns) : width(n_columns) {
    add(before);
    if (column >= width) add_row();
    at_row = rows.size() - 1;
    left = rows.back();
    add(after);
  }

  void add_row() { rows.emplace_back(), column = 0; }

  void add(std::string_view text) {
    for (size_t at = 0, n = 1; at < text.size(); at += n) {
      for (n = 1; at + n < text.size() && (text[at + n] & 0xc0) == 0x80;) ++n;
      if (text.substr(at + n).starts_with(kEmojiFollows)) n += kEmojiFollows.size();
      const std::string_view character = text.substr(at, n);
      if (character == "\n") {
        add_row();
        continue;
      }
      const std::string shown =
          character == "\t" ? std::string(8 - column % 8, ' ') : visible(character, true);
      const size_t n_columns = most_columns_of(shown);
      if (column + n_columns > width && columns_of(shown) > 0) add_row();
      rows.back() += shown, column += n_columns;
    }
  }

  void cut_to(size_t n_most) {
    if (rows.size() <= n_most) return;
    const size_t first = at_row - std::min(at_row, n_most - 1);
    rows.erase(rows.begin(), rows.begin() + static_cast<std::ptrdiff_t>(first));
    rows.resize(std::min(rows.size(), n_most));
    at_row -= first;
  }
};

std::string LineDrawing::show(std::string_view before, std::string_view after, const WindowSize& window) {
  Rows now(before, after, window.columns);
  now.cut_to(window.rows);
  if (width_ != window.columns || rows_.empty()) {
    const std::string to_begin = "\r" + rows_up(rows_above(window.columns));
    rows_.clear();
    width_ = window.columns;
    return to_begin + redraw(std::move(now), 0);
  }
  const bool was_at_end = at_row_ + 1 == rows_.size() && left_ == rows_.back();
  const bool is_at_end = now.at_row + 1 == now.rows.size() && now.left == now.rows.back();
  if (now.rows == rows_ && now.at_row == at_row_ && now.left == left_) return {};
  const auto differing = std::ranges::mismatch(now.rows, rows_).in2;
  const size_t first = std::min({static_cast<size_t>(differing - rows_.begin()), at_row_, now.at_row});
  if (was_at_end && is_at_end && first == at_row_ && now.rows.size() == rows_.size() &&
      now.left.starts_with(left_)) {
    const std::string more = now.left.substr(left_.size());
    rows_ = std::move(now.rows), left_ = std::move(now.left);
    return more;
  }
  const std::string to_first = "\r" + rows_up(at_row_ - first);
  return to_first + redraw(std::move(now), first);
}

std::string LineDrawing::show_again(std::string_view before, std::string_view after,
                                    const WindowSize& window) {
  const std::string to_begin = "\r" + rows_up(rows_above(window.columns));
  begin();
  return to_begin + show(before, after, window);
}

// From the beginning of the first row on.
std::string LineDrawing::redraw(Rows now, size_t first) {
  std::string text = "\x1b[J";
  for (size_t r = first; r < now.rows.size(); ++r) text += (r > first ? "\r\n" : "") + now.rows[r];
  const size_t n_up = now.rows.size() - 1 - now.at_row;
  if (n_up > 0 || now.left != now.rows.back()) text += rows_up(n_up) + "\r" + now.left;
  rows_ = std::move(now.rows), left_ = std::move(now.left);
  at_row_ = now.at_row;
  return text;
}

// Of the cursor, now that the window has this width: a terminal breaks rows that are too long for it.
size_t LineDrawing::rows_above(size_t width) const {
  if (rows_.empty()) return 0;
  size_t n = most_columns_of(left_) / width;
  for (size_t r = 0; r < at_row_; ++r)
    n += std::max<size_t>(1, (most_columns_of(rows_[r]) + width - 1) / width);
  return n;
}

}  // namespace dsv32
