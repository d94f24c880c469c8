// The file of answers: a whole line at a time at its end, by one writer, and what it says already.
//
// A file that exists is read first: its whole lines are answers of earlier runs, a line that was torn at its
// end is cut off, and a file with any other line is left alone. Each line goes out in one write, so that a
// process that is killed leaves whole lines, or one torn one. A file that loses its name meanwhile ends the
// run, and its answers are kept. Standard output, devices and pipes are only written to.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/file.h"
#include "base/file_system.h"
#include "cli/batch/batch_line.h"

namespace dsv32 {

class BatchOutput {
 public:
  struct Rules {
    bool is_ordered = false;      // lines go out by their places
    bool retries_failed = false;  // what failed is taken out of the file, as if it had never been answered
  };
  // "-" is standard output. Throws Error{usage} when the file is `input`, when another process writes to it,
  // or when it is no file of answers; Error{io}.
  BatchOutput(const std::string& path, const Rules& rules, const std::optional<FileStamp>& input);

  // What the file said of the line when it was opened.
  enum class Known { no, answered, failed };
  Known find(const LineDigest& digest) const;

  // The answer of the place-th line that is answered here, from 0; each place once. Throws Error{io}.
  void put(int64_t place, std::string text);
  // Throws Error{io} when the file no longer has its name, since it was removed, moved or replaced. Answers
  // so far are where it was moved to, or in a copy beside it that the message names.
  void check_place();
  // Of those that were put, so many wait for an earlier place.
  int64_t n_held() const { return std::ssize(held_); }

 private:
  void open_file(const std::string& path);
  std::string open_beside(const std::string& path, const char* purpose, mode_t mode);
  bool is_in_place(int fd) const;
  bool lock_file();
  void read_known();
  void drop_failed();
  void copy_known(int from);
  void write(std::string_view text);
  [[noreturn]] void fail_io(const char* what) const;

  std::string path_;
  Rules rules_;
  OwnedFd file_;
  int fd_ = -1;
  bool is_regular_ = false;                                     // and named, so that it is read and locked
  std::unordered_map<LineDigest, bool, LineDigestHash> known_;  // whether it failed
  int64_t next_place_ = 0;
  std::map<int64_t, std::string> held_;
};

// {"id", "custom_id", "response", "error"}: the line of an answer, whose body is JSON already, and of a
// failure.
std::string answer_line(const BatchLine& line, std::string_view body);
std::string failure_line(const BatchLine& line, const Error& error);

}  // namespace dsv32
