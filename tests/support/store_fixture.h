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
  StoreOptions options = store_options(dir->file("cache"));
  std::vector<std::string> warnings;

  std::unique_ptr<PageStore> open(FileSystem& fs = real_file_system()) {
    return open_store(options, fs, [this](const std::string& line) { warnings.push_back(line); });
  }
  // Opens it like the commands that need no model.
  CacheFiles open_files() const {
    std::string reason;
    return *CacheFiles::open(options.directory, real_file_system(), reason);
  }
  // Evicts until so many bytes are left.
  void prune(uint64_t max_bytes) const {
    make_room(open_files(), {.max_bytes = max_bytes, .min_free_bytes = 0}, 0);
  }
  uint64_t page_bytes() const { return options.format.file_bytes(); }
  std::vector<std::filesystem::path> pages() const { return page_files(options.directory); }
  std::filesystem::path path_of(const PageName& name) const {
    return options.directory + "/" + options.format.folder() + "/" + name.file();
  }
};

// A prompt of three pages on disk.
struct DamageFixture : StoreFixture {
  const std::vector<int32_t> prompt = make_prompt({1, 2, 3});
  std::map<std::filesystem::path, std::string> files;

  DamageFixture() {
    store_prompt(*open(), prompt);
    for (const auto& entry : std::filesystem::recursive_directory_iterator(options.directory))
      if (entry.is_regular_file()) files[entry.path()] = read_file(entry.path());
  }
  void restore() {
    for (const auto& page : pages()) std::filesystem::remove_all(page);
    for (const auto& [path, bytes] : files) write_file(path, bytes);
    warnings.clear();
  }
};

}  // namespace dsv32
