// A file mapped read-only into memory, and whole text files.
//
// MappedFile owns the mapping; its bytes stay valid while it lives. Pages are read when first touched, so
// mapping 400 GB costs nothing. Another process that truncates the file raises SIGBUS on access:
// install_truncation_guard() turns that into one line and exit code 3. A process that writes to the file
// raises no signal, but the system changes the file's stamp before the bytes. The stamp misses writes of
// another machine on a network file system until this machine learns of them, and stores through another
// mapping to pages that were dirty already.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "base/file_system.h"

namespace dsv32 {

// Changes when the file is written to or replaced.
struct FileStamp {
  uint64_t device = 0, inode = 0, n_bytes = 0;
  int64_t written_ns = 0, changed_ns = 0;  // mtime and ctime, since 1970
  std::array<uint64_t, 5> numbers() const {
    return {device, inode, n_bytes, static_cast<uint64_t>(written_ns), static_cast<uint64_t>(changed_ns)};
  }
  bool operator==(const FileStamp&) const = default;
};

// Of an open file; nothing when the system does not give it.
std::optional<FileStamp> stamp_of(int fd);

// Throws Error{model}: the model file at `path` has changed since it was opened.
[[noreturn]] void fail_changed(const std::string& path);

class MappedFile {
 public:
  MappedFile() = default;
  // Throws Error{model} when the file is missing, unreadable, not regular, or empty.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;

  const std::string& path() const { return path_; }
  std::span<const uint8_t> bytes() const { return bytes_; }
  const FileStamp& stamp() const { return stamp_; }  // when it was opened
  // Whether its bytes are still the same. Losing its name, to another file or for good, is no change.
  bool is_unchanged() const;
  // Waits until a further change would show in the stamp: up to 10 ms, or 2 s where the file's times are
  // coarse. Throws Error{model} when it has changed.
  void settle() const;

 private:
  std::string path_;
  FileStamp stamp_;
  OwnedFd file_;
  std::span<const uint8_t> bytes_;
};

// Ends the process with one line on stderr and exit code 3 when a mapped model file loses bytes.
void install_truncation_guard();

// A whole text file or, for "-", standard input, without a byte order mark. `max_bytes` bounds what is read;
// Throws Error{usage} with the file and the reason, as plain_text() does; also when a handled signal
// interrupts the reading. on_wait() is called once, when nothing has come for half a second.
std::string read_text(const std::string& path, size_t max_bytes, std::function<void()> on_wait = {});

}  // namespace dsv32
