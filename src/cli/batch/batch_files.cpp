// The two files of a batch. An answer's line is recognised by its beginning and its end, without parsing the
// JSON, since answers may be long.
#include "cli/batch/batch.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>

#include "base/error.h"
#include "base/text.h"
#include "cli/options/json.h"

namespace dsv32 {
namespace {

constexpr size_t kMaxLineBytes = size_t{64} << 20;
// A line of the output: its beginning, the text after the digest, and its end if it has no error.
constexpr std::string_view kLineBegin = "{\"id\":\"batch_req_",
                           kAfterId = "\",\"custom_id\":", kNoError = ",\"error\":null}";

bool is_regular(int fd) {
  struct stat info {};
  return fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
}

// The lines of a regular file from its offset on, which stays where it is; nothing for other files.
std::optional<int64_t> count_lines(int fd) {
  const off_t begin = lseek(fd, 0, SEEK_CUR);
  if (!is_regular(fd) || begin < 0) return {};
  LineReader lines(fd, "the input", kMaxLineBytes);
  LineReader::Line line;
  while (lines.next(line, -1) != LineReader::Result::end) continue;
  lseek(fd, begin, SEEK_SET);
  return line.number;
}

// The beginning of a file; of a pipe nothing, since pread() fails there and takes nothing.
std::string head_of(int fd) {
  std::string head(kTextHead, '\0');
  const ssize_t n_read = pread(fd, head.data(), head.size(), lseek(fd, 0, SEEK_CUR));
  head.resize(static_cast<size_t>(std::max<ssize_t>(n_read, 0)));
  return head;
}

// `head`: of the input, or its first line. Throws Error{usage} for what would be refused line by line: no
// text, and JSON of several lines.
void check_head(std::string_view head, const std::string& name, bool is_json) {
  check_text_head(head, name);
  if (!is_json) return;
  head.remove_prefix(std::min(head.find_first_not_of(" \t\r\n\xef\xbb\xbf"), head.size()));
  const std::string_view line = head.substr(0, head.find_first_of("\r\n"));
  const size_t second = line.find_first_not_of(" \t", 1);
  const bool begins_array = second == line.npos || line[second] == '{' || line[second] == '"';
  const bool is_array = line.starts_with('[') && begins_array, is_broken = line == "{" && head.size() > 1;
  if (!is_array && !is_broken) return;
  fail(ErrorKind::usage,
       visible(name) + (is_array ? " is a JSON array" : " has a JSON object over several lines") +
           ", expected an object a line",
       std::string(is_array ? "jq -c '.[]'" : "jq -c .") + " writes it so");
}

// The digest in an answer's line; nothing for other lines.
std::optional<LineDigest> digest_in(std::string_view line) {
  constexpr size_t kDigits = 2 * sizeof(LineDigest);
  if (!line.starts_with(kLineBegin) || !line.ends_with('}')) return {};
  line.remove_prefix(kLineBegin.size());
  return line.substr(std::min(kDigits, line.size())).starts_with(kAfterId)
             ? parse_line_digest(line.substr(0, kDigits))
             : std::nullopt;
}

const char* code_of(int status) {
  return status == 400 ? "invalid_request" : status == 413 ? "context_length_exceeded" : "server_error";
}

// The object of a line, with null in place of the body.
Json envelope(const BatchItem& item, int status) {
  return {{"id", "batch_req_" + item.digest_text()},
          {"custom_id", item.id ? Json(*item.id) : Json(nullptr)},
          {"response", {{"status_code", status}, {"request_id", item.digest_text()}, {"body", nullptr}}},
          {"error", nullptr}};
}

}  // namespace

std::string answer_line(const BatchItem& item, Json body) {
  Json json = envelope(item, 200);
  json["response"]["body"] = std::move(body);
  return shown_json(json) + "\n";
}

std::string failure_line(const BatchItem& item, const Error& error) {
  const int status = status_of(error);
  Json json = envelope(item, status);
  const std::string hint = error.hint().empty() ? "" : "; " + error.hint();
  json["error"] = {{"code", code_of(status)}, {"message", error.what() + hint}};
  return shown_json(json) + "\n";
}

BatchInput::BatchInput(BatchSource source, Shard shard) : source_(std::move(source)), shard_(shard) {
  const std::string& path = source_.path;
  if (path.empty()) {
    n_lines_ = std::ssize(source_.files);
    return;
  }
  fd_ = path == "-" ? STDIN_FILENO : open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd_ < 0)
    fail(ErrorKind::usage, format("cannot read %s: %s", visible(path).c_str(), std::strerror(errno)));
  if (path != "-") file_ = OwnedFd(real_file_system(), fd_);
  lines_.emplace(fd_, path == "-" ? "standard input" : path, kMaxLineBytes);
  check_head(head_of(fd_), lines_->name(), !source_.is_text);
  n_lines_ = count_lines(fd_);
}

LineReader::Result BatchInput::next(BatchItem& item, const LineMaker& maker, int wait_ms) {
  LineReader::Line line;
  do {
    if (const auto result = next_line(line, wait_ms); result != LineReader::Result::line) return result;
    item = {};
    try {
      item = item_of(line, maker);
      if (item.id && !ids_.insert(digest_of(*item.id)).second)
        fail(ErrorKind::usage, "an earlier line has the same id");
    } catch (...) {
      item = maker.refused(line.number, item.id, std::to_string(line.number) + line.text,
                           at_line(line.number, current_error()));
    }
  } while (!is_in(shard_, item.digest));
  return LineReader::Result::line;
}

// For files with one prompt each, the line's text is the next file's name.
LineReader::Result BatchInput::next_line(LineReader::Line& line, int wait_ms) {
  if (!lines_) {
    if (n_read_ == n_lines_) return LineReader::Result::end;
    line.text = source_.files[static_cast<size_t>(n_read_)];
    line.number = ++n_read_;
    return LineReader::Result::line;
  }
  do {
    if (const auto result = lines_->next(line, wait_ms); result != LineReader::Result::line) return result;
    ++n_read_;
  } while (!line.is_too_long && line.text.find_first_not_of(" \t\r") == std::string::npos);
  if (!std::exchange(has_begun_, true)) check_head(line.text + "\n", lines_->name(), !source_.is_text);
  return LineReader::Result::line;
}

BatchItem BatchInput::item_of(const LineReader::Line& line, const LineMaker& maker) const {
  if (line.is_too_long)
    return maker.refused(
        line.number, {}, std::to_string(line.end),
        at_line(line.number, Error(ErrorKind::usage, format("it is longer than %zu bytes", kMaxLineBytes))));
  if (!lines_) try {
      return maker.from_text(line.number, with_question(source_.read(line.text)), line.text);
    } catch (...) {
      return maker.refused(line.number, line.text, line.text, current_error());
    }
  if (!source_.is_text) return maker.from_json(line.number, line.text);
  plain_text(line.text, "it");
  return maker.from_text(line.number, with_question(line.text));
}

std::string BatchInput::with_question(std::string text) const {
  if (text.empty() && source_.question.empty()) fail(ErrorKind::usage, "there is no prompt");
  const bool is_open = !text.empty() && !text.ends_with('\n') && !source_.question.empty();
  return text + (is_open ? "\n" : "") + source_.question;
}

BatchOutput::BatchOutput(const std::string& path, const BatchOptions& options,
                         const std::optional<FileStamp>& input)
    : path_(path == "-" ? "standard output" : path), is_ordered_(options.is_ordered) {
  if (path != "-") open_file();
  const std::optional<FileStamp> own = stamp_of(fd());
  const bool is_file = is_regular(fd());
  if (input && own && input->is_of_same_file(*own) && is_file)
    fail(ErrorKind::usage, format("%s is both input and output, expected two files", visible(path_).c_str()));
  is_regular_ = path != "-" && is_file;
  if (!is_regular_) return;
  for (lock(fd()); !is_in_place(); lock(fd())) open_file();  // another process has replaced the file
  const uint64_t n_whole =
      each_answer([&](const LineDigest& digest, Known outcome, const auto&) { known_[digest] = outcome; });
  if (ftruncate(fd(), static_cast<off_t>(n_whole)) != 0) fail_file("repair", path_);
  if (options.retries_failed) drop_failed();
}

void BatchOutput::open_file() {
  const int flags = is_special_file(path_) ? O_WRONLY : O_RDWR | O_CREAT | O_APPEND;
  file_ = OwnedFd(real_file_system(), open(path_.c_str(), flags | O_CLOEXEC, 0666));
  if (!file_.is_open()) fail_file("open", path_);
}

void BatchOutput::lock(int fd) {
  const int result = real_file_system().try_lock(fd);
  if (result == -EWOULDBLOCK)
    fail(ErrorKind::usage, format("another process writes to %s", visible(path_).c_str()));
  if (result != 0) errno = -result, fail_file("lock", path_);
}

// When the folder cannot be read at the moment, the file counts as in place.
bool BatchOutput::is_in_place() const {
  struct stat named {
  }, opened{};
  if (stat(path_.c_str(), &named) != 0) return errno != ENOENT && errno != ENOTDIR;
  return fstat(fd(), &opened) == 0 && named.st_ino == opened.st_ino && named.st_dev == opened.st_dev;
}

void BatchOutput::check_place() {
  if (is_regular_ && !is_in_place())
    fail(ErrorKind::io, visible(path_) + " was removed, moved or replaced while answers went to it");
}

// Calls `take` for each whole line. Returns where the last of them ends.
uint64_t BatchOutput::each_answer(const Take& take) const {
  LineReader reader(fd(), path_, SIZE_MAX);
  LineReader::Line line;
  uint64_t n_whole = 0;
  for (LineReader::Result result; (result = reader.next(line, -1)) != LineReader::Result::end;) {
    if (result == LineReader::Result::later) continue;  // a signal came
    const size_t n_begin = std::min(line.text.size(), kLineBegin.size());
    if (!line.has_end && line.text.compare(0, n_begin, kLineBegin, 0, n_begin) == 0) break;
    const std::optional<LineDigest> digest = digest_in(line.text);
    if (!digest)
      fail(ErrorKind::usage,
           format("line %lld of %s is no answer of dsv32 batch, expected another file with -o",
                  as_ll(line.number), visible(path_).c_str()));
    take(*digest, line.text.ends_with(kNoError) ? Known::answered : Known::failed, line.text);
    n_whole = line.end;
  }
  return n_whole;
}

namespace {

// Gives a file without a name one beside `target`, which no other file has: a link cannot replace a file.
std::string name_file(int fd, const std::string& target) {
  const std::string nameless = format("/proc/self/fd/%d", fd);
  for (int number = getpid();; ++number) {
    const std::string name = target + format(".%d.tmp", number);
    if (linkat(AT_FDCWD, nameless.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) == 0) return name;
    if (errno != EEXIST) fail_file("write", target);
  }
}

}  // namespace

// Replaces the file by a new one without the failed lines. A kill leaves either the old file or the new one
// and nothing beside: the new one has no name while it is written. Where the file system cannot do that
// (NFS), it has another one.
void BatchOutput::drop_failed() {
  if (std::erase_if(known_, [](const auto& known) { return known.second == Known::failed; }) == 0) return;
  std::error_code error;
  const std::string target = std::filesystem::canonical(path_, error).string();
  struct stat info {};
  if (error || fstat(fd(), &info) != 0 || lseek(fd(), 0, SEEK_SET) != 0) fail_file("read", path_);
  std::string temporary;  // the name that the new file has by now
  const std::string folder = std::filesystem::path(target).parent_path().string();
  OwnedFd rest(real_file_system(), open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC | O_APPEND, 0600));
  if (!rest.is_open()) {
    temporary = target + ".XXXXXX.tmp";
    rest = OwnedFd(real_file_system(), mkostemps(temporary.data(), 4, O_CLOEXEC | O_APPEND));
  }
  if (!rest.is_open()) fail_file("write beside", path_);
  try {
    copy_known(rest.get());
    lock(rest.get());
    if (!is_in_place()) fail(ErrorKind::io, visible(path_) + " was removed or replaced meanwhile");
    if (fchmod(rest.get(), info.st_mode & 07777) != 0 || fdatasync(rest.get()) != 0)
      fail_file("write", path_);
    if (temporary.empty()) temporary = name_file(rest.get(), target);
    if (std::rename(temporary.c_str(), target.c_str()) != 0) fail_file("write", path_);
  } catch (...) {
    if (!temporary.empty()) unlink(temporary.c_str());
    throw;
  }
  file_ = std::move(rest);
}

void BatchOutput::copy_known(int to) const {
  each_answer([&](const LineDigest& digest, Known, const std::string& line) {
    if (find(digest) == Known::no) return;
    if (const int result = write_stream(to, line + "\n"); result != 0)
      errno = -result, fail_file("write", path_);
  });
}

BatchOutput::Known BatchOutput::find(const LineDigest& digest) const {
  const auto found = known_.find(digest);
  return found == known_.end() ? Known::no : found->second;
}

void BatchOutput::put(int64_t place, std::string text, bool has_failed) {
  if (!is_ordered_) return write(text);
  held_.emplace(place, Held{std::move(text), has_failed});
  for (; !held_.empty() && held_.begin()->first == next_place_; ++next_place_) {
    write(held_.begin()->second.text);
    held_.erase(held_.begin());
  }
}

std::pair<int64_t, int64_t> BatchOutput::drop_held() {
  int64_t n_failed = 0;
  for (const auto& [place, held] : held_) n_failed += held.has_failed ? 1 : 0;
  const int64_t n_answered = n_held() - n_failed;
  held_.clear();
  return {n_answered, n_failed};
}

// A full disk may end a write half-way: the written part is then cut off again.
void BatchOutput::write(std::string_view text) {
  if (!file_.is_open()) return write_out(text);
  const off_t begin = is_regular_ ? lseek(fd(), 0, SEEK_END) : 0;
  const int result = write_answer(fd(), text);
  if (result == 0) return;
  [[maybe_unused]] const bool is_whole = is_regular_ && ftruncate(fd(), begin) == 0;
  errno = -result;
  fail_file("write to", path_);
}

}  // namespace dsv32
