// A store's directory for one test: empty, or with a prompt in it and a copy of every file to begin anew
// from.
#pragma once

#include <boost/test/unit_test.hpp>
#include <cstring>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <string>
#include <vector>

#include "tests/support/plain_files.h"
#include "tests/support/stored_pages.h"

namespace dsv32 {

struct Warnings {
  std::vector<std::string> lines;
  Warn callback() {
    return [this](const std::string& line) { lines.push_back(line); };
  }
};

struct StoreFixture {
  std::unique_ptr<TempDir> dir = make_store_dir();
  PrefixStoreOptions options = store_options(dir->file("cache"));
  Warnings warnings;
  std::unique_ptr<PrefixStore> open(FileSystem& fs = real_file_system()) {
    return PrefixStore::open(options, fs, warnings.callback());
  }
  uint64_t segment_bytes(int64_t n_pages = 1) const {
    SegmentInfo info;
    info.n_pages = n_pages;
    info.n_layers = options.n_layers;
    info.rows_page_bytes = options.rows_page_bytes;
    info.keys_page_bytes = options.keys_page_bytes;
    info.layers_per_slab = options.layers_per_slab > 0 ? options.layers_per_slab : options.n_layers;
    return info.file_bytes();
  }
};

inline std::vector<int32_t> prompt_of(std::initializer_list<int> numbers, int64_t pages_per_chunk = 1) {
  return make_prompt(std::vector<int>(numbers), pages_per_chunk);
}

// Some prompts on disk, and a copy of every file to begin anew from.
struct DamageFixture {
  std::unique_ptr<TempDir> dir = make_store_dir();
  PrefixStoreOptions options = store_options(dir->file("cache"));
  const std::vector<int32_t> prompt = make_prompt(std::vector{1, 2, 3});
  std::map<std::filesystem::path, std::string> files;
  std::vector<std::string> warnings;

  DamageFixture() {
    store_prompt(*open(), prompt);
    for (const auto& entry : std::filesystem::recursive_directory_iterator(options.directory))
      if (entry.is_regular_file()) files[entry.path()] = read_file(entry.path());
  }
  std::unique_ptr<PrefixStore> open(FileSystem& fs = real_file_system()) {
    return PrefixStore::open(options, fs, [this](const std::string& line) { warnings.push_back(line); });
  }
  void restore() {
    for (const auto& segment : segments()) std::filesystem::remove_all(segment);
    for (const auto& [path, bytes] : files) write_file(path, bytes);
    warnings.clear();
  }
  std::vector<std::filesystem::path> segments() const { return files_named(options.directory, "seg-"); }
};

}  // namespace dsv32
