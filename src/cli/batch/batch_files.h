// The two files of a batch: what is to be answered, and the answers.
//
// Of the input one line is held at a time, and a digest of each id, so that a second line of one id is
// refused. The output gets a whole line in one write, by one writer who holds its lock: a process that is
// killed leaves whole lines, or one torn at the end. A file that exists is read first: its whole lines are
// answers of earlier runs, a torn one is cut off, and a file with any other line is left alone. A file that
// loses its name meanwhile ends the run, and its answers are kept. Standard output, devices and pipes are
// only written to.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/file.h"
#include "base/file_system.h"
#include "cli/batch/batch_item.h"
#include "cli/terminal/streams.h"

namespace dsv32 {

// A file of JSON lines or of lines of text, or files that are a prompt each.
struct BatchSource {
  std::string path;                // of the lines; "-" is standard input
  bool is_text = false;            // a prompt a line, no JSON
  std::string question;            // comes behind each line of text
  std::vector<std::string> files;  // prompts, each read by `read` when it is its turn
  std::function<std::string(const std::string& file)> read;
};

class BatchInput {
 public:
  // Throws Error{usage} when the file of lines cannot be opened.
  BatchInput(BatchSource source, Shard shard);

  // The next line of this shard. Blank lines are passed over.
  LineReader::Result next(BatchItem& item, LineMaker& maker, int wait_ms);

  int64_t n_read() const { return n_read_; }
  // How many there are, of all shards; nothing when that is not known before they are read.
  std::optional<int64_t> n_lines() const { return n_lines_; }
  // Of the file of lines; nothing when the system does not say.
  std::optional<FileStamp> stamp() const { return stamp_of(fd_); }

 private:
  LineReader::Result next_line(LineReader::Line& line, int wait_ms);
  BatchItem item_of(const LineReader::Line& line, LineMaker& maker) const;

  BatchSource source_;
  Shard shard_;
  OwnedFd file_;
  int fd_ = -1;
  std::optional<LineReader> lines_;  // nothing: files
  std::optional<int64_t> n_lines_;
  int64_t n_read_ = 0;
  std::unordered_set<LineDigest, LineDigestHash> ids_;
};

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

  // The line of BatchItem::place; each place once. Throws Error{io}.
  void put(int64_t place, std::string text);
  // Throws Error{io} when the file no longer has its name, since it was removed, moved or replaced. Answers
  // so far are where it was moved to, or in a copy beside it that the message names.
  void check_place();
  // Of the lines that were put, so many wait for an earlier place.
  int64_t n_held() const { return std::ssize(held_); }

 private:
  using Take = std::function<void(const LineDigest& digest, bool has_failed, const std::string& line)>;
  void open_file(const std::string& path);
  std::string open_beside(const std::string& path, const char* purpose, mode_t mode);
  bool is_in_place(int fd) const;
  void lock();
  uint64_t each_answer(int fd, const Take& take) const;
  void drop_failed();
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
std::string answer_line(const BatchItem& item, std::string_view body);
std::string failure_line(const BatchItem& item, const Error& error);

}  // namespace dsv32
