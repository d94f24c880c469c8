// Small pages whose bytes follow from the tokens up to their end, so that a test knows what a loaded page
// must hold; and prompts made of few different chunks, so that they share prefixes.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "prefix/prefix_store.h"
#include "tests/support/temp_dir.h"

namespace dsv32 {

struct PageSizes {
  int64_t n_layers = 2, rows_page_bytes = 256, keys_page_bytes = 96;
};

// Memory for the pages of one segment; rows begin at multiples of 4096 when `is_aligned`.
class PageMemory {
 public:
  PageMemory(const PageSizes& sizes, int64_t n_pages, bool is_aligned = false);
  std::vector<PageTarget> targets();
  std::vector<PageSource> sources() const;
  void fill(std::span<const int32_t> prompt, int64_t first_page);  // with the pages of `prompt`
  void trash();
  bool operator==(const PageMemory& other) const;  // of the same sizes

 private:
  uint8_t* at(int64_t page, int64_t layer) const;
  uint8_t* keys_at(int64_t page) const;
  PageSizes sizes_;
  int64_t n_pages_, rows_stride_, keys_stride_;
  std::shared_ptr<uint8_t[]> memory_;
  uint8_t* begin_ = nullptr;
  std::vector<std::vector<uint8_t*>> rows_;              // [n_pages][n_layers]
  std::vector<std::vector<const uint8_t*>> const_rows_;  // the same
};

// In /dev/shm where that can be written, since tests sync often.
std::unique_ptr<TempDir> make_store_dir();

PrefixStoreOptions store_options(const std::string& directory, const PageSizes& sizes = {});

// Chunks of `pages_per_chunk` pages of tokens. Chunk i is made from numbers[i] alone: equal numbers give
// equal chunks.
std::vector<int32_t> make_prompt(const std::vector<int>& numbers, int64_t pages_per_chunk = 1);

// Stores a prompt in segments of `pages_per_segment` pages. Returns how many were stored, from the root on.
int64_t store_prompt(PrefixStore& store, std::span<const int32_t> prompt, int64_t pages_per_segment = 1,
                     const PageSizes& sizes = {});

// What a store has: every segment, loaded and compared.
struct Contents {
  std::map<std::vector<int32_t>, UseRecord> prompts;  // up to the end of each segment that loaded right
  int64_t n_missed = 0;                               // segments that are listed but did not load
  int64_t n_wrong = 0;                                // segments with wrong bytes or a wrong beginning
  bool has(std::span<const int32_t> prompt) const { return prompts.contains({prompt.begin(), prompt.end()}); }
};
Contents load_all(PrefixStore& store, const PageSizes& sizes = {});

// The same after opening the directory; nothing when it is refused.
std::optional<Contents> load_all(const PrefixStoreOptions& options, FileSystem& fs = real_file_system());

// Files below `directory` whose names begin with `prefix`.
std::vector<std::filesystem::path> files_named(const std::string& directory, const std::string& prefix);
uint64_t bytes_below(const std::string& directory);

}  // namespace dsv32
