// The lines that were typed, kept for the next chat in the file that libedit loads.
//
//   _HiStOrY_V2_
//   hello\040world       an entry: the backslash and every byte that is no printable ASCII as \ooo
//
// The one idea: an entry is appended when it is typed and nothing is written at the end, so that chats side
// by side keep each other's lines and one that is killed keeps its own. The file is shortened when a chat
// begins. Both hold the folder's lock, because shortening gives the name to a new file. History is a
// convenience: what fails here is told to nobody.
#pragma once

#include <string>

#include "base/file_system.h"

namespace dsv32 {

// One thread at a time; any number of processes.
class HistoryFile {
 public:
  static constexpr size_t kMaxLines = 1000, kMaxBytes = size_t{4} << 20;  // when shortened

  // Only its owner can read the file, which is where `path` leads. An empty `path`: nothing is kept.
  explicit HistoryFile(const std::string& path, FileSystem& fs = real_file_system());

  // Leaves the last entries. False when there is no file that could be loaded.
  bool shorten() const;

  // `entry` may have several lines.
  void append(const std::string& entry) const;

  const std::string& path() const { return path_; }

 private:
  FileSystem* fs_;
  std::string path_, name_;
  OwnedFd folder_;
};

}  // namespace dsv32
