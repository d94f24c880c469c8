// A line is known by how it begins and ends, without reading it as JSON: answers may be long.
#include "cli/batch/batch_output.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/text.h"
#include "cli/options/json.h"
#include "cli/terminal/line_reader.h"
#include "cli/terminal/streams.h"

namespace dsv32 {
namespace {

// How a line begins, goes on behind the digest, and ends when nothing went wrong.
constexpr std::string_view kLineBegin = "{\"id\":\"batch_req_",
                           kAfterId = "\",\"custom_id\":", kNoError = ",\"error\":null}";

bool is_same_file(const FileStamp& a, const FileStamp& b) {
  return a.device == b.device && a.inode == b.inode;
}

bool is_regular(int fd) {
  struct stat info {};
  return fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
}

struct KnownLine {
  LineDigest digest;
  bool has_failed;
};

// Nothing when the line is no answer.
std::optional<KnownLine> parse_known(std::string_view text) {
  constexpr size_t kDigits = 2 * sizeof(LineDigest);
  if (!text.starts_with(kLineBegin) || !text.ends_with('}')) return {};
  text.remove_prefix(kLineBegin.size());
  const std::optional<LineDigest> digest = parse_line_digest(text.substr(0, kDigits));
  if (!digest || !text.substr(kDigits).starts_with(kAfterId)) return {};
  return KnownLine{*digest, !text.ends_with(kNoError)};
}

// As far as it goes, it may be the beginning of an answer.
bool may_become_answer(std::string_view text) {
  const size_t n = std::min(text.size(), kLineBegin.size());
  return text.substr(0, n) == kLineBegin.substr(0, n);
}

const char* code_of(int status) {
  return status == 400 ? "invalid_request" : status == 413 ? "context_length_exceeded" : "server_error";
}

// Everything but the body, which is put in where null stands.
Json envelope(const BatchLine& line, int status) {
  return {{"id", "batch_req_" + line.digest_text()},
          {"custom_id", line.id ? Json(*line.id) : Json(nullptr)},
          {"response", {{"status_code", status}, {"request_id", line.digest_text()}, {"body", nullptr}}},
          {"error", nullptr}};
}

std::string dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

}  // namespace

std::string answer_line(const BatchLine& line, std::string_view body) {
  std::string text = dump(envelope(line, 200));
  text.resize(text.size() - std::string_view("null}").size() - kNoError.size());
  return text.append(body).append("}").append(kNoError).append("\n");
}

std::string failure_line(const BatchLine& line, const Error& error) {
  const int status = status_of(error);
  Json json = envelope(line, status);
  const std::string hint = error.hint().empty() ? "" : "; " + error.hint();
  json["error"] = {{"code", code_of(status)}, {"message", error.what() + hint}};
  return dump(json) + "\n";
}

BatchOutput::BatchOutput(const std::string& path, const Rules& rules, const std::optional<FileStamp>& input)
    : path_(path == "-" ? "standard output" : path), rules_(rules) {
  if (path == "-")
    fd_ = STDOUT_FILENO;
  else
    open_file(path);
  const std::optional<FileStamp> own = stamp_of(fd_);
  if (input && own && is_same_file(*input, *own) && is_regular(fd_))
    fail(ErrorKind::usage, format("%s is both input and output, expected two files", visible(path_).c_str()));
  is_regular_ = path != "-" && is_regular(fd_);
  if (!is_regular_) return;
  while (!lock_file()) open_file(path);
  read_known();
  if (rules_.retries_failed) drop_failed();
}

void BatchOutput::open_file(const std::string& path) {
  file_.reset();
  struct stat info {};
  const bool is_special = stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode);
  fd_ = open(path.c_str(), is_special ? O_WRONLY | O_CLOEXEC : O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (fd_ < 0) fail_io("open");
  file_ = OwnedFd(real_file_system(), fd_);
}

// False when another process has put a new file in this one's place meanwhile.
bool BatchOutput::lock_file() {
  if (flock(fd_, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) fail_io("lock");
    fail(ErrorKind::usage, format("another process writes to %s", visible(path_).c_str()));
  }
  return is_in_place(fd_);
}

// That the folder cannot be looked into just now is no sign of the opposite.
bool BatchOutput::is_in_place(int fd) const {
  struct stat named {
  }, opened{};
  if (stat(path_.c_str(), &named) != 0) return errno != ENOENT && errno != ENOTDIR;
  return fstat(fd, &opened) == 0 && named.st_ino == opened.st_ino && named.st_dev == opened.st_dev;
}

// A new file of a name of its own, to write to; returns that.
std::string BatchOutput::open_beside(const std::string& path, const char* purpose, mode_t mode) {
  std::string name = path + "." + purpose + "-XXXXXX";
  fd_ = mkostemp(name.data(), O_APPEND | O_CLOEXEC);
  if (fd_ < 0) fail_io("open a file beside");
  file_ = OwnedFd(real_file_system(), fd_);
  [[maybe_unused]] const int failed = fchmod(fd_, mode & 07777);  // then it is for this user alone
  return name;
}

void BatchOutput::check_place() {
  if (!is_regular_ || is_in_place(fd_)) return;
  const std::string name = visible(path_);
  struct stat info {};
  if (fstat(fd_, &info) != 0) fail_io("read");
  if (info.st_nlink > 0)
    fail(ErrorKind::io,
         name + " no longer names the file of answers, which holds those so far where it was moved to");
  if (info.st_size == 0) fail(ErrorKind::io, name + " was removed before answers went to it");
  const OwnedFd lost = std::move(file_);
  const std::string kept = open_beside(path_, "kept", info.st_mode);
  std::string block(1 << 20, '\0');
  for (off_t at = 0; at < info.st_size;) {
    const ssize_t n_read = pread(lost.get(), block.data(), block.size(), at);
    if (n_read <= 0) fail_io("read");
    write(std::string_view(block).substr(0, static_cast<size_t>(n_read)));
    at += n_read;
  }
  fail(ErrorKind::io,
       name + " was removed or replaced while answers went to it; those so far are in " + visible(kept));
}

void BatchOutput::read_known() {
  LineReader reader(fd_, path_, SIZE_MAX);
  LineReader::Line line;
  uint64_t n_whole = 0;
  LineReader::Result result;
  while ((result = reader.next(line, -1)) != LineReader::Result::end) {
    if (result == LineReader::Result::later) continue;  // a signal came
    const std::optional<KnownLine> known = parse_known(line.text);
    if (!line.has_end && may_become_answer(line.text)) break;
    if (!known)
      fail(ErrorKind::usage,
           format("line %lld of %s is no answer of dsv32 batch, expected another file with -o",
                  static_cast<long long>(line.number), visible(path_).c_str()));
    known_[known->digest] = known->has_failed;
    n_whole = line.end;
  }
  if (ftruncate(fd_, static_cast<off_t>(n_whole)) != 0) fail_io("repair");
}

// By a new file in the place of this one: a process that is killed leaves the one or the other.
void BatchOutput::drop_failed() {
  if (std::erase_if(known_, [](const auto& known) { return known.second; }) == 0) return;
  std::error_code error;
  const std::string target = std::filesystem::canonical(path_, error).string();
  struct stat info {};
  if (error || fstat(fd_, &info) != 0 || lseek(fd_, 0, SEEK_SET) != 0) fail_io("read");
  const OwnedFd old = std::move(file_);
  const std::string temporary = open_beside(target, "retry", info.st_mode);
  try {
    copy_known(old.get());
    if (!is_in_place(old.get())) fail(ErrorKind::io, visible(path_) + " was removed or replaced meanwhile");
    if (std::rename(temporary.c_str(), target.c_str()) != 0) fail_io("rename to");
  } catch (...) {
    unlink(temporary.c_str());
    throw;
  }
}

// Those that are still known, to the file that is open now.
void BatchOutput::copy_known(int from) {
  if (flock(fd_, LOCK_EX | LOCK_NB) != 0) fail_io("lock");
  LineReader reader(from, path_, SIZE_MAX);
  LineReader::Line line;
  LineReader::Result result;
  while ((result = reader.next(line, -1)) != LineReader::Result::end)
    if (result == LineReader::Result::line && find(parse_known(line.text)->digest) != Known::no)
      write(line.text + "\n");
  if (fdatasync(fd_) != 0) fail_io("write");
}

BatchOutput::Known BatchOutput::find(const LineDigest& digest) const {
  const auto found = known_.find(digest);
  if (found == known_.end()) return Known::no;
  return found->second ? Known::failed : Known::answered;
}

void BatchOutput::put(int64_t place, std::string text) {
  if (!rules_.is_ordered) return write(text);
  held_.emplace(place, std::move(text));
  for (; !held_.empty() && held_.begin()->first == next_place_; ++next_place_) {
    write(held_.begin()->second);
    held_.erase(held_.begin());
  }
}

// A signal does not end a write to a file half-way; a full disk does, and what it took is taken back.
void BatchOutput::write(std::string_view text) {
  if (fd_ == STDOUT_FILENO) return write_out(text);
  const off_t begin = is_regular_ ? lseek(fd_, 0, SEEK_END) : 0;
  while (!text.empty()) {
    const ssize_t n_written = ::write(fd_, text.data(), text.size());
    if (n_written < 0 && errno == EINTR) continue;
    if (n_written < 0) {
      const int why = errno;
      [[maybe_unused]] const bool is_whole = is_regular_ && ftruncate(fd_, begin) == 0;
      errno = why;
      fail_io("write to");
    }
    text.remove_prefix(static_cast<size_t>(n_written));
  }
}

void BatchOutput::fail_io(const char* what) const {
  fail(ErrorKind::io, format("cannot %s %s: %s", what, visible(path_).c_str(), std::strerror(errno)));
}

}  // namespace dsv32
