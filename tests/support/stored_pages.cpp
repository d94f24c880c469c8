#include "tests/support/stored_pages.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include <unistd.h>
#include <xxhash.h>

#include "backend/cache_layout.h"

namespace dsv32 {
namespace {

constexpr int64_t kAlignment = 4096;

void fill_bytes(uint8_t* to, int64_t n_bytes, uint64_t seed) {
  for (int64_t i = 0; i < n_bytes; i += 8) {
    const uint64_t word = (seed += 0x9e3779b97f4a7c15) * 0xbf58476d1ce4e5b9;
    const uint64_t mixed = word ^ (word >> 29);
    std::memcpy(to + i, &mixed, static_cast<size_t>(std::min<int64_t>(8, n_bytes - i)));
  }
}

}  // namespace

PageMemory::PageMemory(const PageSizes& sizes, int64_t n_pages, bool is_aligned)
    : sizes_(sizes), n_pages_(n_pages) {
  const auto stride = [&](int64_t n_bytes) {
    return is_aligned ? (n_bytes + kAlignment - 1) / kAlignment * kAlignment : n_bytes;
  };
  rows_stride_ = stride(sizes.rows_page_bytes);
  keys_stride_ = stride(sizes.n_layers * sizes.keys_page_bytes);
  const int64_t n_bytes = n_pages * (sizes.n_layers * rows_stride_ + keys_stride_);
  const size_t padded = static_cast<size_t>((n_bytes + 2 * kAlignment) / kAlignment * kAlignment);
  memory_ = {static_cast<uint8_t*>(std::aligned_alloc(kAlignment, padded)), std::free};
  begin_ = memory_.get() + (is_aligned ? 0 : 8);
  trash();
  for (int64_t page = 0; page < n_pages; ++page) {
    rows_.emplace_back();
    for (int64_t layer = 0; layer < sizes.n_layers; ++layer) rows_.back().push_back(at(page, layer));
    const_rows_.emplace_back(rows_.back().begin(), rows_.back().end());
  }
}

uint8_t* PageMemory::at(int64_t page, int64_t layer) const {
  return begin_ + (page * sizes_.n_layers + layer) * rows_stride_;
}
uint8_t* PageMemory::keys_at(int64_t page) const {
  return begin_ + n_pages_ * sizes_.n_layers * rows_stride_ + page * keys_stride_;
}

std::vector<PageTarget> PageMemory::targets() {
  std::vector<PageTarget> targets;
  for (int64_t page = 0; page < n_pages_; ++page)
    targets.push_back({rows_[static_cast<size_t>(page)], keys_at(page)});
  return targets;
}
std::vector<PageSource> PageMemory::sources() const {
  std::vector<PageSource> sources;
  for (int64_t page = 0; page < n_pages_; ++page)
    sources.push_back({const_rows_[static_cast<size_t>(page)], keys_at(page)});
  return sources;
}

void PageMemory::fill(std::span<const int32_t> prompt, int64_t first_page) {
  for (int64_t page = 0; page < n_pages_; ++page) {
    const auto before = prompt.first(static_cast<size_t>((first_page + page + 1) * kPageTokens));
    const uint64_t seed = XXH3_64bits(before.data(), before.size_bytes());
    for (int64_t layer = 0; layer < sizes_.n_layers; ++layer)
      fill_bytes(at(page, layer), sizes_.rows_page_bytes, seed + static_cast<uint64_t>(layer) * 1000);
    fill_bytes(keys_at(page), sizes_.n_layers * sizes_.keys_page_bytes, ~seed);
  }
}

void PageMemory::trash() {
  const int64_t n_bytes = n_pages_ * (sizes_.n_layers * rows_stride_ + keys_stride_);
  std::memset(begin_, 0xee, static_cast<size_t>(n_bytes));
}

bool PageMemory::operator==(const PageMemory& other) const {
  const size_t rows_bytes = static_cast<size_t>(sizes_.rows_page_bytes);
  for (int64_t page = 0; page < n_pages_; ++page) {
    for (int64_t layer = 0; layer < sizes_.n_layers; ++layer)
      if (std::memcmp(at(page, layer), other.at(page, layer), rows_bytes) != 0) return false;
    const size_t keys_bytes = static_cast<size_t>(sizes_.n_layers * sizes_.keys_page_bytes);
    if (std::memcmp(keys_at(page), other.keys_at(page), keys_bytes) != 0) return false;
  }
  return true;
}

std::unique_ptr<TempDir> make_store_dir() {
  constexpr char kInMemory[] = "/dev/shm";
  return access(kInMemory, W_OK) == 0 ? std::make_unique<TempDir>(kInMemory) : std::make_unique<TempDir>();
}

PrefixStoreOptions store_options(const std::string& directory, const PageSizes& sizes) {
  PrefixStoreOptions options;
  options.directory = directory;
  options.sizes.fingerprint.fill(7);
  options.sizes.n_layers = sizes.n_layers;
  options.sizes.rows_page_bytes = sizes.rows_page_bytes;
  options.sizes.keys_page_bytes = sizes.keys_page_bytes;
  options.limits.max_bytes = uint64_t{1} << 40;
  options.limits.min_free_bytes = 0;
  return options;
}

std::vector<int32_t> make_prompt(const std::vector<int>& numbers, int64_t pages_per_chunk) {
  std::vector<int32_t> prompt;
  for (const int number : numbers) {
    std::minstd_rand random(static_cast<unsigned>(number + 1));
    for (int64_t i = 0; i < pages_per_chunk * kPageTokens; ++i)
      prompt.push_back(static_cast<int32_t>(random() % 129280));
  }
  return prompt;
}

int64_t store_prompt(PrefixStore& store, std::span<const int32_t> prompt, int64_t pages_per_segment,
                     const PageSizes& sizes) {
  Hash256 parent{};
  int64_t n_stored = 0;
  const size_t n_at_once = static_cast<size_t>(pages_per_segment * kPageTokens);
  for (size_t begin = 0; begin < prompt.size(); begin += n_at_once, ++n_stored) {
    const auto tokens = prompt.subspan(begin, std::min(n_at_once, prompt.size() - begin));
    PageMemory memory(sizes, static_cast<int64_t>(tokens.size()) / kPageTokens);
    const int64_t first_page = static_cast<int64_t>(begin) / kPageTokens;
    memory.fill(prompt, first_page);
    const auto segment = store.store(parent, first_page, tokens, memory.sources());
    if (!segment) break;
    parent = *segment;
  }
  return n_stored;
}

Contents load_all(PrefixStore& store, const PageSizes& sizes) {
  Contents contents;
  std::map<Hash256, std::vector<int32_t>> prompts;
  for (const StoredSegment& segment : store.segments()) {
    std::vector<int32_t> prompt =
        segment.first_page > 0 ? prompts.at(segment.parent) : std::vector<int32_t>();
    if (static_cast<int64_t>(prompt.size()) != segment.first_page * kPageTokens) ++contents.n_wrong;
    prompt.insert(prompt.end(), segment.tokens.begin(), segment.tokens.end());
    prompts[segment.chain] = prompt;
    PageMemory expected(sizes, segment.n_pages), loaded(sizes, segment.n_pages);
    expected.fill(prompt, segment.first_page);
    if (!store.load_pages({segment.chain, 0}, loaded.targets()))
      ++contents.n_missed;
    else if (!(loaded == expected))
      ++contents.n_wrong;
    else
      contents.prompts[prompt] = segment.use;
  }
  return contents;
}

std::optional<Contents> load_all(const PrefixStoreOptions& options, FileSystem& fs) {
  const auto store = PrefixStore::open(options, fs, {});
  if (!store) return std::nullopt;
  return load_all(*store,
                  {options.sizes.n_layers, options.sizes.rows_page_bytes, options.sizes.keys_page_bytes});
}

std::vector<std::filesystem::path> files_named(const std::string& directory, const std::string& prefix) {
  std::vector<std::filesystem::path> found;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory))
    if (entry.path().filename().string().starts_with(prefix)) found.push_back(entry.path());
  std::ranges::sort(found);
  return found;
}

uint64_t bytes_below(const std::string& directory) {
  uint64_t n_bytes = 0;
  std::error_code ignored;  // files come and go
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory, ignored))
    if (const auto n = entry.is_regular_file(ignored) ? entry.file_size(ignored) : 0; n != UINTMAX_MAX)
      n_bytes += n;
  return n_bytes;
}

}  // namespace dsv32
