// What there is to be answered, line after line: JSON lines, lines of text, or files that are a prompt each.
//
// One line is held at a time; of those that have gone by a digest of their id is kept, so that a second line
// of one id is refused. A shard is handed every line's id and its own lines only.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/file.h"
#include "base/file_system.h"
#include "cli/batch/batch_line.h"
#include "cli/terminal/line_reader.h"

namespace dsv32 {

// Where lines come from: one of the three.
struct BatchSource {
  std::string path;                // a file of lines; "-" is standard input
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
  LineReader::Result next(BatchLine& line, LineMaker& maker, int wait_ms);

  int64_t n_read() const { return n_read_; }
  // How many there are, of all shards; nothing when that is not known before they are read.
  std::optional<int64_t> n_lines() const { return n_lines_; }
  // Of the file of lines; nothing when the system does not say.
  std::optional<FileStamp> stamp() const { return stamp_of(fd_); }

 private:
  LineReader::Result read(BatchLine& line, LineMaker& maker, int wait_ms);
  BatchLine from_file(LineMaker& maker, int64_t number) const;
  BatchLine from_line(LineMaker& maker, const LineReader::Line& line) const;

  BatchSource source_;
  Shard shard_;
  OwnedFd file_;
  int fd_ = -1;
  std::optional<LineReader> lines_;  // nothing: files
  std::optional<int64_t> n_lines_;
  int64_t n_read_ = 0;
  std::unordered_set<LineDigest, LineDigestHash> ids_;
};

}  // namespace dsv32
