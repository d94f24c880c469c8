// Small pages whose bytes follow from the tokens up to their end, so that whoever loads one knows what must
// be in it; and prompts made of few different chunks, so that they share beginnings.
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
  void fill(std::span<const int32_t> prompt, int64_t first_page);  // with what belongs to the end of `prompt`
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

// In memory where the machine has a file system for that, since syncs are many.
std::unique_ptr<TempDir> make_store_dir();

PrefixStoreOptions store_options(const std::string& directory, const PageSizes& sizes = {});

// `n_pages` pages of tokens; equal `numbers` give equal chunks: chunk i is made from numbers[i] alone.
std::vector<int32_t> make_prompt(const std::vector<int>& numbers, int64_t pages_per_chunk = 1);

// Stores a prompt chunk by chunk, `pages_per_segment` pages each. How many segments are there, from the root
// on.
int64_t store_prompt(PrefixStore& store, std::span<const int32_t> prompt, int64_t pages_per_segment = 1,
                     const PageSizes& sizes = {});

// What the directory gives out, everything loaded and compared.
struct Contents {
  std::map<std::vector<int32_t>, UseRecord>
      prompts;           // whole prompts up to each segment's end, that loaded right
  int64_t n_missed = 0;  // segments that were named and did not load
  int64_t n_wrong = 0;   // loaded, and other bytes than they must have
  bool has(std::span<const int32_t> prompt) const { return prompts.contains({prompt.begin(), prompt.end()}); }
};
Contents load_all(PrefixStore& store, const PageSizes& sizes = {});

// Of a directory, opened anew; nothing when it is refused.
std::optional<Contents> load_all(const PrefixStoreOptions& options, FileSystem& fs = real_file_system());

// Files below `directory` whose names begin with `prefix`.
std::vector<std::filesystem::path> files_named(const std::string& directory, const std::string& prefix);
uint64_t bytes_below(const std::string& directory);

}  // namespace dsv32
