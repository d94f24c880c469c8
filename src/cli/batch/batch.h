// The commands that answer many prompts: `dsv32 batch`, and `dsv32 run` with --each or --lines.
//
// Lines are read one by one, and written as they are answered. Each line has one outcome, its answer or its
// error; an error anywhere from its prompt to the text of its answer concerns this line alone.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <unistd.h>

#include "base/file.h"
#include "base/file_system.h"
#include "cli/batch/batch_item.h"
#include "cli/options/options.h"
#include "cli/terminal/streams.h"

namespace dsv32 {

// Return the exit code: 0; 5 when a line failed, in this run or in an earlier one with the same output; 129 /
// 130 / 138 / 143 after a signal, when the running lines are finished or left. Throw Error.
int batch_command(const Options& options);
int run_many(const Options& options);

// The two files: requests in, answers out.
//
// One line of the input is held at a time, and a digest of each id, so that a second line with an id is
// refused. The output has one writer, who holds its lock and writes each line in one write: after a kill only
// the last line can be torn. An output file that exists is read first: its whole lines are answers of earlier
// runs, a torn last line is cut off, and a file with any other line is refused and not changed. When the file
// is removed, moved or replaced during the run, the run ends. Standard output, devices and pipes are only
// written to.

// A file of JSON lines or of lines of text, or files with one prompt each.
struct BatchSource {
  std::string path;                // of the lines; "-" is standard input
  bool is_text = false;            // a prompt a line, no JSON
  std::string question;            // added after each text, in a line of its own
  std::vector<std::string> files;  // texts, each read by `read` when it is its turn
  std::function<std::string(const std::string& file)> read;
};

class BatchInput {
 public:
  // Throws Error{usage} when the file of lines cannot be opened.
  BatchInput(BatchSource source, Shard shard);

  // The next line of this shard. Blank lines are passed over.
  LineReader::Result next(BatchItem& item, const LineMaker& maker, int wait_ms);

  int64_t n_read() const { return n_read_; }
  // The number of lines of all shards; nothing when it is unknown before all are read.
  std::optional<int64_t> n_lines() const { return n_lines_; }
  // The stamp of the file of lines; nothing when the system gives none.
  std::optional<FileStamp> stamp() const { return stamp_of(fd_); }

 private:
  LineReader::Result next_line(LineReader::Line& line, int wait_ms);
  BatchItem item_of(const LineReader::Line& line, const LineMaker& maker) const;
  std::string with_question(std::string text) const;

  BatchSource source_;
  Shard shard_;
  OwnedFd file_;
  int fd_ = -1;
  std::optional<LineReader> lines_;  // nothing: files
  std::optional<int64_t> n_lines_;
  int64_t n_read_ = 0;
  bool has_begun_ = false;  // a line that is not blank was read
  std::set<LineDigest> ids_;
};

class BatchOutput {
 public:
  // "-" is standard output. Uses two options: is_ordered writes lines by their places, and retries_failed
  // removes failed lines from the file first. Throws Error{usage} when the file is `input`, when another
  // process writes to it, or when it is no file of answers; Error{io}.
  BatchOutput(const std::string& path, const BatchOptions& options, const std::optional<FileStamp>& input);

  // The line's outcome in the file when this was opened.
  enum class Known { no, answered, failed };
  Known find(const LineDigest& digest) const;

  // Writes the line of BatchItem::place; call once for each place. Throws Error{io}.
  void put(int64_t place, std::string text, bool has_failed = false);
  // Throws Error{io} when the file was removed, moved or replaced.
  void check_place();
  // How many lines wait for an earlier place.
  int64_t n_held() const { return std::ssize(held_); }
  // Drops them, as if they had not been asked for. Returns how many were answered, and how many had failed.
  std::pair<int64_t, int64_t> drop_held();
  bool is_kept() const { return is_regular_; }  // for a later run

 private:
  using Take = std::function<void(const LineDigest& digest, Known outcome, const std::string& line)>;
  int fd() const { return file_.is_open() ? file_.get() : STDOUT_FILENO; }
  void open_file();
  bool is_in_place() const;
  void lock(int fd);
  uint64_t each_answer(const Take& take) const;
  void drop_failed();
  void copy_known(int to) const;
  void write(std::string_view text);

  std::string path_;
  bool is_ordered_;
  OwnedFd file_;             // not open: standard output
  bool is_regular_ = false;  // the path is a regular file, which is read and locked
  std::map<LineDigest, Known> known_;
  int64_t next_place_ = 0;
  struct Held {
    std::string text;
    bool has_failed;
  };
  std::map<int64_t, Held> held_;
};

// {"id", "custom_id", "response", "error"}: the line of an answer or of a failure.
std::string answer_line(const BatchItem& item, Json body);
std::string failure_line(const BatchItem& item, const Error& error);

// The items that are being answered. The engine decides which of them run and which wait for room.
class BatchRunner {
 public:
  using Write = std::function<std::string(const BatchItem& item)>;  // the text of an answer
  // The arguments must outlive the object. `context`: the most tokens of a prompt.
  BatchRunner(Answerer& answerer, int64_t n_at_a_time, const Tokenizer& tokenizer, Write write,
              Listener* watcher = nullptr, int64_t context = kMostTokenLimit);
  ~BatchRunner() { leave(); }

  bool has_room() const { return n_running() < n_at_a_time_; }
  int64_t n_running() const { return std::ssize(running_); }
  TokenCounts counts() const;  // of the running items so far

  // Begins an item; advance() returns it, with its error if any. On std::bad_alloc `item` is unchanged.
  void begin(BatchItem&& item);
  // Runs a step. Returns the items that are done. Throws an error that ends all of them.
  std::vector<std::unique_ptr<BatchItem>> advance();
  // Drops the running items.
  void leave();

 private:
  void take_outcome(BatchItem& item) const;

  Answerer& answerer_;
  const int64_t n_at_a_time_;
  const Tokenizer& tokenizer_;
  const Write write_;
  Listener* const watcher_;
  const size_t n_most_;  // tokens of a prompt that are encoded
  std::vector<std::unique_ptr<BatchItem>> running_;
};

// The progress of a batch.
struct BatchTally {
  int64_t n_answered = 0, n_failed = 0;                // in this run
  int64_t n_answered_before = 0, n_failed_before = 0;  // in earlier runs, and skipped in this one
  int64_t n_running = 0;
  std::optional<int64_t> n_waiting;  // nothing: unknown before all are read
  bool is_estimate = false;          // n_waiting: a shard's lines are known when they are read
  struct Failures {
    int status = 0;  // 0: of several
    int64_t n = 0;
    std::string first;  // which line, and why
  };
  static constexpr size_t kMostKinds = 8;
  std::map<std::string, Failures> failures;  // in this run, by their kinds
  TokenCounts tokens;
  int64_t n_guessed = 0, n_accepted = 0;  // of GenerationResult, in answers of this run
  double seconds = 0;

  int64_t n_done() const { return n_answered + n_failed + n_answered_before + n_failed_before; }
  int64_t n_all_failed() const { return n_failed + n_failed_before; }
  // `name`: the line's in messages. Errors that differ in numbers alone are of one kind; those beyond
  // kMostKinds are counted together.
  void add_failure(const std::string& name, const Error& error);
};

// "412 / 1,000  3 failed  8 running  580 waiting  6 min left  1,240 t/s in  38.1 t/s out  12,288 cached"
std::string batch_progress(const BatchTally& tally);
// "1,000 lines: 997 answered, 3 failed (412 before); 61,002 tokens in (12,288 from cache), 24,000 out, in 11
// min, 38.0 t/s out"
std::string batch_summary(const BatchTally& tally);
// "3 lines failed with status 400, the first is q7: top_k is -5, expected an integer from -1 to 2147483647",
// one for each kind, and one for earlier runs.
std::vector<std::string> batch_failures(const BatchTally& tally);
// "580 lines remain; the same command goes on", of a shard "about 580 lines remain"; empty if none do.
// `is_kept`: answers are in a file.
std::string batch_rest(const BatchTally& tally, bool is_kept);

}  // namespace dsv32
