// LineDrawing of line_editor.h: breaks the edited line into rows, and writes what changes the window to them.
#include <algorithm>
#include <span>

#include "base/error.h"
#include "base/text.h"
#include "cli/terminal/line_editor.h"

namespace dsv32 {
namespace {

constexpr std::string_view kEmojiFollows = "\ufe0f";  // makes some characters wide, in some terminals

size_t most_columns_of(std::string_view text) {
  size_t n = columns_of(text);
  for (size_t at = text.find(kEmojiFollows); at != text.npos; at = text.find(kEmojiFollows, at + 1)) ++n;
  return n;
}

std::string rows_up(size_t n) { return n > 0 ? format("\x1b[%zuA", n) : std::string(); }

}  // namespace

LineDrawing::Rows LineDrawing::break_rows(std::string_view before, std::string_view after,
                                          const WindowSize& window) {
  Rows text;
  size_t column = 0;
  const auto add_row = [&] { text.rows.emplace_back(), column = 0; };
  const auto add = [&](std::string_view more) {
    for (size_t at = 0, n = 1; at < more.size(); at += n) {
      for (n = 1; at + n < more.size() && (more[at + n] & 0xc0) == 0x80;) ++n;
      if (more.substr(at + n).starts_with(kEmojiFollows)) n += kEmojiFollows.size();
      const std::string_view character = more.substr(at, n);
      if (character == "\n") {
        add_row();
        continue;
      }
      const std::string shown =
          character == "\t" ? std::string(kTabColumns - column % kTabColumns, ' ') : visible(character, true);
      const size_t n_columns = most_columns_of(shown);
      if (column + n_columns > window.columns && columns_of(shown) > 0) add_row();
      text.rows.back() += shown, column += n_columns;
    }
  };
  add(before);
  if (column >= window.columns) add_row();
  text.at_row = text.rows.size() - 1;
  text.left = text.rows.back();
  add(after);
  if (text.rows.size() > window.rows) {  // those around the cursor stay
    const size_t first = text.at_row - std::min(text.at_row, window.rows - 1);
    text.rows.erase(text.rows.begin(), text.rows.begin() + static_cast<std::ptrdiff_t>(first));
    text.rows.resize(std::min(text.rows.size(), window.rows));
    text.at_row -= first;
  }
  return text;
}

std::string LineDrawing::show(std::string_view before, std::string_view after, const WindowSize& window) {
  Rows now = break_rows(before, after, window);
  const bool is_known = drawn_ && width_ == window.columns;
  if (is_known && now == *drawn_) return {};
  const auto upper = [](const Rows& text) { return std::span(text.rows).first(text.at_row); };
  std::string text;
  if (is_known && drawn_->is_at_end() && now.is_at_end() && now.left.starts_with(drawn_->left) &&
      std::ranges::equal(upper(now), upper(*drawn_))) {
    text = now.left.substr(drawn_->left.size());
  } else {
    text = to_first_row(window.columns) + "\x1b[J" + joined(now.rows, "\r\n");
    if (!now.is_at_end()) text += rows_up(now.rows.size() - 1 - now.at_row) + "\r" + now.left;
  }
  drawn_ = std::move(now), width_ = window.columns;
  return text;
}

// `width`: of the window now, in which the terminal has broken the drawn rows that are longer.
std::string LineDrawing::to_first_row(size_t width) const {
  if (!drawn_) return "\r";
  size_t n_up = most_columns_of(drawn_->left) / width;
  for (size_t r = 0; r < drawn_->at_row; ++r)
    n_up += std::max<size_t>(1, (most_columns_of(drawn_->rows[r]) + width - 1) / width);
  return "\r" + rows_up(n_up);
}

}  // namespace dsv32
