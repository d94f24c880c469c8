// The lines of a file or a pipe, one at a time, without waiting for more than is there.
//
// What is held is one line and one block, however long the file is: a line that is longer than a bound is cut
// to nothing and said to be. Line ends are \n or \r\n; a byte order mark at a line's beginning is dropped, as
// where files were joined.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

namespace dsv32 {

class LineReader {
 public:
  // `fd` stays the caller's; `name` stands in messages. Throws as plain_text() does, of a pipe next().
  LineReader(int fd, std::string name, size_t max_bytes);

  struct Line {
    std::string text;
    int64_t number = 0;        // from 1
    uint64_t end = 0;          // bytes up to the one behind it, line end included
    bool is_too_long = false;  // more than max_bytes: the text is empty
    bool has_end = true;       // false: the last one, which nothing ended
  };
  enum class Result { line, later, end };
  // `later`: no line became whole within wait_ms, or a signal came. Throws Error{usage} when reading fails.
  Result next(Line& line, int wait_ms);

 private:
  void take(Line& line, size_t n_bytes, bool has_end);
  void make_room();
  bool can_read(int wait_ms) const;
  void read_block();

  int fd_;
  std::string name_;
  size_t max_bytes_;
  std::string held_;                // read and not taken: from begin_ on
  size_t begin_ = 0, scanned_ = 0;  // no line end lies before scanned_
  uint64_t n_dropped_ = 0;          // bytes of the line that is too long
  uint64_t n_taken_ = 0;
  int64_t n_lines_ = 0;
  bool is_at_end_ = false;
};

}  // namespace dsv32
