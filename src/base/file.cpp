#include "base/file.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "base/text.h"

namespace dsv32 {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
// Nanoseconds after which another change gets another time: a tick of the system's clock, or more where the
// file system keeps no fractions of a second.
constexpr int64_t kTick = 10'000'000, kCoarse = 2 * kSecond;
constexpr uint64_t kSampleBlock = 4096, kMostSampled = 64;

int64_t now_ns() {
  return std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Nanoseconds from `now` until a further change would get another ctime; 0: it would already.
int64_t ns_to_distinct_stamp(int64_t changed_ns, int64_t now) {
  const int64_t age = now - changed_ns, grain = changed_ns % kSecond == 0 ? kCoarse : kTick;
  return age >= 0 && age < grain ? grain - age : 0;
}

// Where the sampled blocks of a file begin: all of a small file, else by multiples of the golden ratio, which
// spread evenly and keep step with no period of tensors.
std::vector<uint64_t> sampled_blocks(uint64_t n_bytes) {
  const uint64_t n_blocks = (n_bytes + kSampleBlock - 1) / kSampleBlock;
  std::vector<uint64_t> offsets(std::min(n_blocks, kMostSampled));
  for (size_t i = 0; i < offsets.size(); ++i) {
    const double at = std::fmod(static_cast<double>(i) * 0.6180339887498949, 1.0);
    const bool has_all = n_blocks <= kMostSampled;
    offsets[i] = kSampleBlock * (has_all ? i : static_cast<uint64_t>(at * static_cast<double>(n_blocks)));
  }
  return offsets;
}

// Read through the page cache, which also has what was written through a mapping or past the cache. All
// blocks are asked for at once, so that a slow disk is waited for once. Nothing: a block cannot be read.
std::optional<Hash256> sample_of(int fd, uint64_t n_bytes) {
  const std::vector<uint64_t> offsets = sampled_blocks(n_bytes);
  for (const uint64_t at : offsets)
    posix_fadvise(fd, static_cast<off_t>(at), kSampleBlock, POSIX_FADV_WILLNEED);
  Sha256 sha;
  std::array<uint8_t, kSampleBlock> block;
  for (const uint64_t at : offsets) {
    const uint64_t n = std::min(kSampleBlock, n_bytes - at);
    if (read_fully(real_file_system(), fd, block.data(), n, at) != static_cast<int64_t>(n)) return {};
    sha.add(block.data(), n);
  }
  return sha.finish();
}

const char* kind_of_file(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  return "not a regular file";
}

void on_bus_error(int) {
  constexpr char kMessage[] =
      "dsv32: the model file was truncated or became unreadable while it was in use\n";
  [[maybe_unused]] const ssize_t n = write(STDERR_FILENO, kMessage, sizeof kMessage - 1);
  _exit(exit_code(ErrorKind::model));
}

}  // namespace

std::optional<FileStamp> stamp_of(int fd) {
  FileInfo info;
  return real_file_system().stat(fd, info) == 0 ? std::optional<FileStamp>(info) : std::nullopt;
}

void fail_changed(const std::string& path) {
  fail(ErrorKind::model, format("%s has changed since it was opened: what was computed with it may be wrong",
                                visible(path).c_str()));
}

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const std::string name = visible(path);
  const auto fail_to = [&](const char* verb, const char* hint = "") {
    fail(ErrorKind::model, format("cannot %s model file %s: %s", verb, name.c_str(), std::strerror(errno)),
         hint);
  };
  // O_NONBLOCK: opening a pipe must not wait for a writer.
  OwnedFd file(real_file_system(), open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.is_open()) fail_to("open", errno == ENOENT ? "name a GGUF file with -m FILE" : "");
  FileInfo info;
  if (real_file_system().stat(file.get(), info) != 0) fail_to("examine");
  if (!info.is_regular())
    fail(ErrorKind::model,
         format("model file %s is %s, expected a regular file", name.c_str(), kind_of_file(info.mode)));
  if (info.n_bytes == 0)
    fail(ErrorKind::model,
         format("model file %s is empty, expected a GGUF header at offset 0", name.c_str()));
  opened_ = info;
  seen_ = std::make_unique<Seen>();
  seen_->changed_ns = info.changed_ns;
  void* mapped = mmap(nullptr, info.n_bytes, PROT_READ, MAP_SHARED, file.get(), 0);
  if (mapped == MAP_FAILED) fail_to("map");
  bytes_ = {static_cast<const uint8_t*>(mapped),
            [mapped, n = info.n_bytes](const void*) { munmap(mapped, n); }};
  sample_ = sample_of(file.get(), info.n_bytes);
  file_ = std::move(file);
}

OwnedFd MappedFile::shared_fd() const { return {real_file_system(), fcntl(file_.get(), F_DUPFD_CLOEXEC, 0)}; }

FileStamp MappedFile::stamp() const {
  FileStamp stamp = opened_;
  stamp.changed_ns = seen_->changed_ns;
  return stamp;
}

// A new ctime that equal samples explain is kept, so that the next call need not read; but not one that a
// further change could still get.
bool MappedFile::is_unchanged() const {
  const int64_t asked_ns = now_ns();
  const std::optional<FileStamp> now = stamp_of(file_.get());
  if (seen_->has_changed || !now) return false;
  FileStamp known = stamp();
  if (*now == known) return true;
  known.changed_ns = now->changed_ns;
  if (*now != known || !sample_ || sample_of(file_.get(), now->n_bytes) != sample_) {
    seen_->has_changed = true;
    return false;
  }
  if (ns_to_distinct_stamp(now->changed_ns, asked_ns) == 0) seen_->changed_ns = now->changed_ns;
  return true;
}

void MappedFile::mark_changed() const {
  if (stamp() != opened_) seen_->has_changed = true;
}

void MappedFile::wait_for_stamp() const {
  const int64_t wait = ns_to_distinct_stamp(opened_.changed_ns, now_ns());
  if (wait > 0) std::this_thread::sleep_for(std::chrono::nanoseconds(wait));
  if (!is_unchanged()) fail_changed(path_);
}

void install_truncation_guard() {
  struct sigaction action {};
  action.sa_handler = on_bus_error;
  sigaction(SIGBUS, &action, nullptr);
}

std::string read_text(const std::string& path, size_t max_bytes, std::function<void()> on_wait) {
  constexpr int kPatienceMs = 500;
  const bool is_stdin = path == "-";
  const OwnedFd file(real_file_system(), is_stdin ? -1 : open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const int fd = is_stdin ? STDIN_FILENO : file.get();
  const std::string name = is_stdin ? "standard input" : visible(path);
  const auto fail_read = [&] {
    fail(ErrorKind::usage, format("cannot read %s: %s", name.c_str(), std::strerror(errno)));
  };
  if (fd < 0) fail_read();
  std::string text;
  char block[1 << 16];
  for (;;) {
    pollfd readable{fd, POLLIN, 0};
    if (on_wait && poll(&readable, 1, kPatienceMs) == 0) std::exchange(on_wait, {})();
    const ssize_t n_read = read(fd, block, sizeof block);
    if (n_read < 0) fail_read();
    if (n_read == 0) return std::string(plain_text(text, is_stdin ? "standard input" : path));
    if (text.size() + static_cast<size_t>(n_read) > max_bytes)
      fail(ErrorKind::usage, format("%s is longer than %zu bytes", name.c_str(), max_bytes));
    text.append(block, static_cast<size_t>(n_read));
  }
}

}  // namespace dsv32
