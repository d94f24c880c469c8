// See drawing.h.
#include "cli/terminal/drawing.h"

#include <algorithm>
#include <clocale>
#include <cwchar>

#include "base/error.h"
#include "base/text.h"

namespace dsv32 {
namespace {

constexpr size_t kTab = 8;
constexpr std::string_view kEmojiFollows = "\ufe0f";  // makes some characters wide, in some terminals

// wcwidth() knows the characters of the locale.
size_t width_of(uint32_t code_point) {
  static const char* const kLocale = std::setlocale(LC_CTYPE, "C.UTF-8");
  const int width = kLocale ? wcwidth(static_cast<wchar_t>(code_point)) : 1;
  return static_cast<size_t>(std::max(width, 0));
}

// The first character; a malformed byte is one.
std::string_view first_character(std::string_view text, uint32_t& code_point) {
  const int n_bytes = decode_utf8(text, 0, &code_point);
  if (n_bytes == 0) code_point = 0xfffd;
  return text.substr(0, static_cast<size_t>(std::max(n_bytes, 1)));
}

size_t most_columns_of(std::string_view text) {
  size_t n = columns_of(text);
  for (size_t at = text.find(kEmojiFollows); at != text.npos; at = text.find(kEmojiFollows, at + 1)) ++n;
  return n;
}

std::string rows_up(size_t n) { return n > 0 ? format("\x1b[%zuA", n) : std::string(); }

}  // namespace

size_t columns_of(std::string_view text) {
  size_t n = 0;
  for (uint32_t code_point = 0; !text.empty(); n += width_of(code_point))
    text.remove_prefix(first_character(text, code_point).size());
  return n;
}

std::string WordWrap::wrap(std::string_view text, size_t width) {
  std::string out;
  for (uint32_t code_point = 0; !text.empty();) {
    const std::string_view character = first_character(text, code_point);
    text.remove_prefix(character.size());
    place(character, width, out);
  }
  return out;
}

void WordWrap::place(std::string_view character, size_t width, std::string& out) {
  const char c = character[0];
  const size_t n = c == '\t' ? kTab - column_ % kTab : columns_of(character);
  const bool is_wide = n == 2 && c != '\t';  // scripts of wide characters break anywhere
  const bool ends_word = c == '\n' || c == ' ' || c == '\t';
  if (c == '\n') column_ = 0;
  if (ends_word || is_wide) word_.clear(), word_columns_ = 0;
  if (c != '\n' && width > 0 && column_ + n > width) {
    const bool moves_word = !ends_word && word_columns_ > 0 && word_columns_ < column_;
    if (moves_word) {
      // At the end of a full line a terminal's cursor is still on its last column.
      const size_t at = std::min(column_, width - 1), n_back = at - std::min(at, column_ - word_columns_);
      out += (n_back > 0 ? format("\x1b[%zuD", n_back) : "") + "\x1b[K\n" + word_;
    } else if (word_columns_ == 0) {
      out += '\n';
    }  // else the word is longer than the line, and the terminal breaks it
    column_ = moves_word ? word_columns_ : 0;
    if (ends_word) return;  // the line's end stands for the space
  }
  out += character;
  if (c == '\n') return;
  column_ += n;
  if (!ends_word && !is_wide) word_ += character, word_columns_ += n;
}

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
          character == "\t" ? std::string(kTab - column % kTab, ' ') : visible(character, true);
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
  if (width_ != window.columns || !drawn_) return show_again(before, after, window);
  Rows now = break_rows(before, after, window);
  if (now == *drawn_) return {};
  const auto differing = std::ranges::mismatch(now.rows, drawn_->rows).in2;
  const size_t first =
      std::min({static_cast<size_t>(differing - drawn_->rows.begin()), drawn_->at_row, now.at_row});
  const bool only_adds = drawn_->is_at_end() && now.is_at_end() && first == drawn_->at_row &&
                         now.rows.size() == drawn_->rows.size() && now.left.starts_with(drawn_->left);
  if (!only_adds) {
    const std::string to_first = "\r" + rows_up(drawn_->at_row - first);
    return to_first + redraw(std::move(now), first);
  }
  const std::string more = now.left.substr(drawn_->left.size());
  drawn_ = std::move(now);
  return more;
}

std::string LineDrawing::show_again(std::string_view before, std::string_view after,
                                    const WindowSize& window) {
  const std::string to_begin = to_first_row(window.columns);
  width_ = window.columns;
  return to_begin + redraw(break_rows(before, after, window), 0);
}

// From the beginning of the row `first` on.
std::string LineDrawing::redraw(Rows now, size_t first) {
  std::string text = "\x1b[J";
  for (size_t r = first; r < now.rows.size(); ++r) text += (r > first ? "\r\n" : "") + now.rows[r];
  if (!now.is_at_end()) text += rows_up(now.rows.size() - 1 - now.at_row) + "\r" + now.left;
  drawn_ = std::move(now);
  return text;
}

// In a window that has this width now: a terminal breaks rows that are too long for it.
std::string LineDrawing::to_first_row(size_t width) const {
  if (!drawn_) return "\r";
  size_t n_up = most_columns_of(drawn_->left) / width;
  for (size_t r = 0; r < drawn_->at_row; ++r)
    n_up += std::max<size_t>(1, (most_columns_of(drawn_->rows[r]) + width - 1) / width);
  return "\r" + rows_up(n_up);
}

}  // namespace dsv32
