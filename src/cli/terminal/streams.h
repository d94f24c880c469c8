// Bytes in and out: the standard streams, the lines of a file or a pipe, and a file written in one piece.
//
// Standard output carries what was asked for. A failed write to it is Error{io}, so that a full disk cannot
// end in exit code 0. Standard error carries everything else, and failed writes to it are ignored. Untrusted
// bytes reach a terminal through write_out() and say() alone, which escape them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/file_system.h"

namespace dsv32 {

// Opens /dev/null where a standard stream is closed, so that no file opened later gets its number. Call
// first.
void open_missing_streams();

bool is_terminal(int fd);

// Writes everything, or throws Error{io}. For a terminal the bytes are escaped by visible(), which leaves
// JSON the same JSON.
void write_out(std::string_view bytes);
// The same unescaped: for text that is escaped already, and cursor movements.
void write_out_as_is(std::string_view bytes);
void write_err(std::string_view bytes);
// Writes an escaped line to standard error.
void say(const std::string& line);

// Throws Error{io} that says what cannot be done to the file, and why, by errno.
[[noreturn]] void fail_file(const char* verb, const std::string& path);
// A device, a pipe or a folder is there.
bool is_special_file(const std::string& path);

// Reads lines one at a time without waiting for more than is there. Lines end with \n or \r\n; a byte order
// mark at a line's beginning is dropped, since files may have been joined. Memory: one line and one block.
class LineReader {
 public:
  // `fd` stays the caller's; `name` stands in messages. Throws as plain_text() does; of a pipe next() does.
  LineReader(int fd, std::string name, size_t max_bytes);

  struct Line {
    std::string text;
    int64_t number = 0;        // from 1
    uint64_t end = 0;          // bytes read up to and including its line end
    bool is_too_long = false;  // more than max_bytes: the text is empty
    bool has_end = true;       // false: the last line, without a line end
  };
  enum class Result { line, later, end };
  // `later`: no line was complete within wait_ms, or a signal came. Throws Error{usage} when reading fails.
  Result next(Line& line, int wait_ms);

 private:
  void take(Line& line, size_t n_bytes);
  void read_block();

  int fd_;
  std::string name_;
  size_t max_bytes_;
  std::string held_;                // read; from begin_ on not taken yet
  size_t begin_ = 0, scanned_ = 0;  // no line end lies before scanned_
  uint64_t n_dropped_ = 0;          // bytes of the line that is too long
  uint64_t n_taken_ = 0;
  int64_t n_lines_ = 0;
  bool is_at_end_ = false;
};

// A file that gets its name only when it is complete: it is written beside it, then renamed. "-" is standard
// output; that, a device and a pipe are written directly. A file that is not committed is removed.
class OutputFile {
 public:
  // Throws Error{io}; Error{usage} for "-" when standard output is a terminal.
  explicit OutputFile(const std::string& path);
  ~OutputFile();

  void write(std::string_view bytes);  // throws Error{io}
  void commit();                       // throws Error{io}

 private:
  std::string path_, temporary_;  // temporary_ is empty when the path is written directly
  OwnedFd file_;
};

}  // namespace dsv32
