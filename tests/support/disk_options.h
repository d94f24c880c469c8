// Options of an engine that keeps prefixes on disk.
#pragma once

#include <string>

#include <fcntl.h>

#include "engine/engine.h"

namespace dsv32 {

// The system's files, whose bytes stay in the page cache: a busy disk may sync a file for longer than the
// prefix cache waits for a write, and the prefix would not be stored.
class UnsyncedFiles : public FileSystem {
 public:
  int open_at(int directory, const std::string& name, int flags, mode_t mode) override {
    return FileSystem::open_at(directory, name, flags & ~O_DIRECT, mode);
  }
  int fsync(int) override { return 0; }
  int fdatasync(int) override { return 0; }
};

// Keeps prefixes in `directory`; prompts wait for them.
inline EngineOptions with_disk(EngineOptions options, const std::string& directory) {
  static UnsyncedFiles files;
  options.cache.emplace();
  options.cache->directory = directory;
  options.cache->prefetch = PrefetchPolicy::wait_complete;
  options.cache->files = &files;
  return options;
}

}  // namespace dsv32
