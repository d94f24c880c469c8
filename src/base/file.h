// A file mapped read-only into memory, and whole text files.
//
// MappedFile owns the mapping; its bytes stay valid while it lives. Pages are read when first touched, so
// mapping 400 GB costs nothing. Another process that truncates the file raises SIGBUS on access:
// install_truncation_guard() turns that into one line and exit code 3.
//
// A process that writes to the file raises no signal, but the system changes the file's stamp before the
// bytes. is_unchanged() compares the stamp of the open file, whatever its path names by now. Another size or
// mtime is a change. Another ctime alone is none by itself: chmod, chown, a link and a rename have that too,
// but so has a write whose mtime was put back. Then hashes of sampled blocks decide, taken at the opening and
// now: 64 of 4 KB, a few milliseconds for any size. They promise that a write to a share f of a file is
// missed with a probability of (1 - f)^64: 4 % for a twentieth, 0.1 % for a tenth, but 99 % for a single
// block of 40 GB. So who keeps what the bytes made (the prefix cache) hashes all of them anew first, and
// calls mark_changed() if they differ.
//
// The stamp misses writes of another machine on a network file system until this machine learns of them, and
// stores through another mapping to pages that were dirty already.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/file_system.h"
#include "base/sha256.h"

namespace dsv32 {

// Of an open file; nothing when the system does not give it.
std::optional<FileStamp> stamp_of(int fd);

// Throws Error{model}: the model file at `path` has changed since it was opened.
[[noreturn]] void fail_changed(const std::string& path);

class MappedFile {
 public:
  // Throws Error{model} when the file is missing, unreadable, not regular, or empty.
  explicit MappedFile(const std::string& path);

  const std::string& path() const { return path_; }
  std::span<const uint8_t> bytes() const { return {bytes_.get(), opened_.n_bytes}; }
  OwnedFd shared_fd() const;  // another descriptor of the same open file
  // When it was opened, with the last ctime that is_unchanged() found to be no change.
  FileStamp stamp() const;
  // Whether its bytes are still the same, as the head says; once false, always false. Any thread.
  bool is_unchanged() const;
  // All bytes were hashed anew, and differ: from now on it counts as changed if it has had another ctime.
  void mark_changed() const;
  // Waits until a further change would show in the stamp: up to 10 ms, or 2 s where the file's times are
  // coarse. Throws Error{model} when it has changed.
  void wait_for_stamp() const;

 private:
  struct Seen {
    std::atomic<int64_t> changed_ns = 0;
    std::atomic<bool> has_changed = false;
  };
  std::string path_;
  FileStamp opened_;
  std::optional<Hash256> sample_;
  std::unique_ptr<Seen> seen_;
  OwnedFd file_;
  std::shared_ptr<const uint8_t> bytes_;  // its deleter unmaps
};

// Ends the process with one line on stderr and exit code 3 when a mapped model file loses bytes.
void install_truncation_guard();

// A whole text file or, for "-", standard input, without a byte order mark. `max_bytes` bounds what is read;
// Throws Error{usage} with the file and the reason, as plain_text() does; also when a handled signal
// interrupts the reading. on_wait() is called once, when nothing has come for half a second.
std::string read_text(const std::string& path, size_t max_bytes, std::function<void()> on_wait = {});

}  // namespace dsv32
