// Small pages whose bytes follow from the tokens up to their end, so that a test knows what a loaded page
// must hold; and prompts made of few different chunks, so that they share prefixes.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "prefix/page_store.h"
#include "tests/support/temp_dir.h"

namespace dsv32 {

struct PageSizes {
  int64_t n_layers = 2, rows_page_bytes = 256, keys_page_bytes = 96;
};

// Memory for some pages of a prompt.
class PageMemory {
 public:
  PageMemory(const PageSizes& sizes, int64_t n_pages);
  const PageBytes& at(int64_t page) const;
  void fill(std::span<const int32_t> prompt, int64_t first_page);  // with the pages of `prompt`
  void trash();
  bool operator==(const PageMemory& other) const;  // of the same sizes

 private:
  std::vector<uint8_t> bytes_;    // [n_pages, n_layers, rows_page_bytes + keys_page_bytes]
  std::vector<PageBytes> pages_;  // [n_pages]
};

// In /dev/shm where that can be written, since tests sync often.
std::unique_ptr<TempDir> make_store_dir();

// What a store is opened with.
struct StoreOptions : PrefixCacheOptions {
  PageFormat format;
};
StoreOptions store_options(const std::string& directory, const PageSizes& sizes = {});

// Chunks of `pages_per_chunk` pages of tokens. Chunk i is made from numbers[i] alone: equal numbers give
// equal chunks.
std::vector<int32_t> make_prompt(const std::vector<int>& numbers, int64_t pages_per_chunk = 1);

// Where each page of a prompt lies on disk.
std::vector<PageName> names_of(std::span<const int32_t> prompt);

// Stores a prompt, `n_at_once` pages at a time. Returns how many were stored, from the root on.
int64_t store_prompt(PageStore& store, std::span<const int32_t> prompt, int64_t n_at_once = 1);

// What a store has: every page that its names lead to, loaded and compared.
struct Contents {
  std::set<std::vector<int32_t>> prompts;  // up to the end of each page that loaded right
  int64_t n_missed = 0;                    // pages that are named but did not load
  int64_t n_wrong = 0;                     // pages with wrong bytes
  bool has(std::span<const int32_t> prompt) const { return prompts.contains({prompt.begin(), prompt.end()}); }
};
Contents load_all(PageStore& store, const StoreOptions& options);

// The same after opening the directory, as a program does; nothing when it is refused.
std::optional<Contents> load_all(const StoreOptions& options, FileSystem& fs = real_file_system());

// Opens it, and removes leftovers and what is over the limits.
using Warn = std::function<void(const std::string&)>;
std::unique_ptr<PageStore> open_store(const StoreOptions& options, FileSystem& fs, const Warn& warn);

// Files below `directory` whose names begin with `prefix`; pages.
std::vector<std::filesystem::path> files_named(const std::string& directory, const std::string& prefix);
std::vector<std::filesystem::path> page_files(const std::string& directory);
uint64_t bytes_below(const std::string& directory);

}  // namespace dsv32
