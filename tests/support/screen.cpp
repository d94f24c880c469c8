// See screen.h.
#include "tests/support/screen.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>

#include "base/text.h"
#include "cli/terminal/streams.h"

namespace dsv32 {

void Screen::feed(std::string_view bytes) {
  const std::string all = half_ + std::string(bytes);
  half_.clear();
  for (size_t at = 0; at < all.size();) {
    const std::string_view rest = std::string_view(all).substr(at);
    uint32_t code_point = 0;
    if (rest[0] == '\x1b') {
      const size_t n = take_sequence(rest);
      if (n == 0) return void(half_ = rest);
      at += n;
    } else if (incomplete_utf8_tail(rest) == rest.size()) {
      return void(half_ = rest);
    } else if (const int n = decode_utf8(rest, 0, &code_point); n > 0 && code_point >= ' ') {
      put(rest.substr(0, static_cast<size_t>(n)));
      at += static_cast<size_t>(n);
    } else {
      if (rest[0] == '\r') column_ = 0;
      if (rest[0] == '\n') next_row();
      if (rest[0] == '\b' && column_ > 0) column_ = std::max<size_t>(cursor_column(), 1) - 1;
      if (rest[0] == '\t') column_ = std::min((column_ / 8 + 1) * 8, n_columns_ - 1);
      ++at;
    }
  }
}

// Acts on the escape sequence at the beginning. Returns its length; 0 when it is incomplete.
size_t Screen::take_sequence(std::string_view bytes) {
  if (bytes.size() < 2) return 0;
  if (bytes[1] == ']') {
    const size_t end = bytes.find('\a');
    if (end == std::string_view::npos) return 0;
    command_ = bytes.substr(2, end - 2);
    return end + 1;
  }
  if (bytes[1] != '[') return 2;
  const size_t end = bytes.find_first_not_of("0123456789;?", 2);
  if (end == std::string_view::npos) return 0;
  act(bytes[end], std::string(bytes.substr(2, end - 2)));
  return end + 1;
}

void Screen::act(char final, const std::string& numbers) {
  const size_t n = std::max<size_t>(1, std::strtoul(numbers.c_str(), nullptr, 10));
  const bool is_zero = numbers.empty() || numbers == "0";
  std::vector<std::string>& cells = rows_[row_].cells;
  const size_t at = cursor_column();
  switch (final) {
    case 'A': row_ -= std::min(row_, n), column_ = at; break;
    case 'B': row_ = std::min(row_ + n, rows_.size() - 1), column_ = at; break;
    case 'C': column_ = std::min(at + n, n_columns_ - 1); break;
    case 'D': column_ = at - std::min(at, n); break;
    case 'G': column_ = std::min(n, n_columns_) - 1; break;
    case 'J':
      if (is_zero) rows_.resize(row_ + 1);
      [[fallthrough]];
    case 'K':
      if (is_zero && at < rows_[row_].cells.size()) rows_[row_].cells.resize(at);
      if (is_zero) rows_[row_].goes_on = false;
      break;
    case 'P':
      if (at < cells.size())
        cells.erase(cells.begin() + static_cast<std::ptrdiff_t>(at),
                    cells.begin() + static_cast<std::ptrdiff_t>(std::min(at + n, cells.size())));
      break;
    case '@':
      if (at < cells.size()) cells.insert(cells.begin() + static_cast<std::ptrdiff_t>(at), n, " ");
      if (cells.size() > n_columns_) cells.resize(n_columns_);
      break;
    default: break;  // colours and modes show nothing here
  }
}

size_t Screen::cursor_column() const { return stands_behind_ ? column_ : std::min(column_, n_columns_ - 1); }

void Screen::put(std::string_view character) {
  constexpr std::string_view kJoiner = "\u200d";
  const bool is_joined = joins_ && column_ > 0 && column_ <= rows_[row_].cells.size() &&
                         rows_[row_].cells[column_ - 1].ends_with(kJoiner);
  const size_t n = is_joined ? 0 : columns_of(character);
  if (column_ + n > n_columns_) {
    rows_[row_].goes_on = true;
    next_row();
    column_ = 0;
  }
  std::vector<std::string>& cells = rows_[row_].cells;
  if (n == 0 && column_ > 0) return void(cells[column_ - 1] += character);
  if (cells.size() < column_ + n) cells.resize(column_ + n, " ");
  cells[column_] = character;
  if (n == 2) cells[column_ + 1].clear();
  column_ += n;
}

void Screen::next_row() {
  if (++row_ == rows_.size()) rows_.emplace_back();
}

void Screen::resize(size_t n_columns) {
  std::vector<Row> former = std::move(rows_);
  const size_t former_row = row_, former_column = column_;
  rows_.assign(1, {});
  n_columns_ = n_columns;
  row_ = column_ = 0;
  size_t at_row = 0, at_column = 0;
  for (size_t r = 0; r < former.size(); ++r) {
    former[r].cells.resize(std::max(former[r].cells.size(), r == former_row ? former_column : 0), " ");
    for (size_t c = 0; c <= former[r].cells.size(); ++c) {
      if (r == former_row && c == former_column)
        at_row = row_ + column_ / n_columns_, at_column = column_ % n_columns_;
      if (c < former[r].cells.size() && !former[r].cells[c].empty()) put(former[r].cells[c]);
    }
    if (!former[r].goes_on && r + 1 < former.size()) next_row(), column_ = 0;
  }
  row_ = at_row, column_ = at_column;
  if (rows_.size() <= row_) rows_.resize(row_ + 1);
}

std::string Screen::shown(const Row& row) {
  std::string text;
  for (const std::string& cell : row.cells) text += cell;
  text.resize(text.find_last_not_of(' ') + 1);
  return text;
}

std::string Screen::left_of_cursor() const {
  std::string text;
  for (size_t c = 0; c < column_; ++c) text += c < rows_[row_].cells.size() ? rows_[row_].cells[c] : " ";
  return text;
}

std::string Screen::text() const {
  std::string text;
  for (const Row& row : rows_) text += shown(row) + "\n";
  return text;
}

std::string Screen::last_row() const {
  for (size_t r = rows_.size(); r-- > 0;)
    if (const std::string text = shown(rows_[r]); !text.empty()) return text;
  return {};
}

}  // namespace dsv32
