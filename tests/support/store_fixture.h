// A store's directory for one test: empty, or with a prompt in it and a copy of every file, to restore them.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/plain_files.h"
#include "tests/support/stored_pages.h"

namespace dsv32 {

struct StoreFixture {
  std::unique_ptr<TempDir> dir = make_store_dir();
  PrefixStoreOptions options = store_options(dir->file("cache"));
  std::vector<std::string> warnings;

  std::unique_ptr<PrefixStore> open(FileSystem& fs = real_file_system()) {
    return PrefixStore::open(options, fs, [this](const std::string& line) { warnings.push_back(line); });
  }
  // Opens it like the commands that need no model.
  std::unique_ptr<CacheDirectory> open_directory() const {
    return CacheDirectory::open(options.directory, options.limits, real_file_system(), {});
  }
  uint64_t segment_bytes(int64_t n_pages = 1) const {
    SegmentHead head = options.sizes;
    head.n_pages = n_pages;
    return head.file_bytes();
  }
  std::vector<std::filesystem::path> segment_files() const { return files_named(options.directory, "seg-"); }
};

// A prompt of three segments on disk.
struct DamageFixture : StoreFixture {
  const std::vector<int32_t> prompt = make_prompt({1, 2, 3});
  std::map<std::filesystem::path, std::string> files;

  DamageFixture() {
    store_prompt(*open(), prompt);
    for (const auto& entry : std::filesystem::recursive_directory_iterator(options.directory))
      if (entry.is_regular_file()) files[entry.path()] = read_file(entry.path());
  }
  void restore() {
    for (const auto& segment : segment_files()) std::filesystem::remove_all(segment);
    for (const auto& [path, bytes] : files) write_file(path, bytes);
    warnings.clear();
  }
};

}  // namespace dsv32
