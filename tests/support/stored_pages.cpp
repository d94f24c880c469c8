#include "tests/support/stored_pages.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <map>

#include <unistd.h>
#include <xxhash.h>

#include "backend/cache_layout.h"

namespace dsv32 {
namespace {

void fill_bytes(std::span<uint8_t> to, uint64_t seed) {
  for (size_t i = 0; i < to.size(); i += 8) {
    const uint64_t word = (seed += 0x9e3779b97f4a7c15) * 0xbf58476d1ce4e5b9;
    const uint64_t mixed = word ^ (word >> 29);
    std::memcpy(&to[i], &mixed, std::min<size_t>(8, to.size() - i));
  }
}

}  // namespace

PageMemory::PageMemory(const PageSizes& sizes, int64_t n_pages) {
  const int64_t page_bytes = sizes.n_layers * (sizes.rows_page_bytes + sizes.keys_page_bytes);
  bytes_.resize(static_cast<size_t>(n_pages * page_bytes));
  trash();
  std::span<uint8_t> left(bytes_);
  const auto take = [&](int64_t n_bytes) {
    const std::span<uint8_t> part = left.first(static_cast<size_t>(n_bytes));
    left = left.subspan(part.size());
    return part;
  };
  for (int64_t page = 0; page < n_pages; ++page) {
    PageBytes& parts = pages_.emplace_back();
    for (int64_t layer = 0; layer < sizes.n_layers; ++layer) parts.push_back(take(sizes.rows_page_bytes));
    parts.push_back(take(sizes.n_layers * sizes.keys_page_bytes));
  }
}

const PageBytes& PageMemory::at(int64_t page) const { return pages_[static_cast<size_t>(page)]; }

void PageMemory::fill(std::span<const int32_t> prompt, int64_t first_page) {
  for (int64_t page = 0; page < std::ssize(pages_); ++page) {
    const auto before = prompt.first(static_cast<size_t>((first_page + page + 1) * kPageTokens));
    const uint64_t seed = XXH3_64bits(before.data(), before.size_bytes());
    const PageBytes& parts = at(page);
    for (size_t layer = 0; layer + 1 < parts.size(); ++layer) fill_bytes(parts[layer], seed + layer * 1000);
    fill_bytes(parts.back(), ~seed);
  }
}

void PageMemory::trash() { std::ranges::fill(bytes_, 0xee); }

bool PageMemory::operator==(const PageMemory& other) const { return bytes_ == other.bytes_; }

std::unique_ptr<TempDir> make_store_dir() {
  constexpr char kInMemory[] = "/dev/shm";
  return access(kInMemory, W_OK) == 0 ? std::make_unique<TempDir>(kInMemory) : std::make_unique<TempDir>();
}

StoreOptions store_options(const std::string& directory, const PageSizes& sizes) {
  StoreOptions options;
  options.directory = directory;
  options.format.fingerprint.fill(7);
  options.format.n_layers = sizes.n_layers;
  options.format.rows_page_bytes = sizes.rows_page_bytes;
  options.format.keys_page_bytes = sizes.keys_page_bytes;
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

std::vector<PageName> names_of(std::span<const int32_t> prompt) {
  std::vector<PageName> names;
  for (; prompt.size() >= kPageTokens; prompt = prompt.subspan(kPageTokens)) {
    const PageHash parent = names.empty() ? PageHash{} : names.back().own;
    names.push_back({parent, next_hash(parent, prompt.first(kPageTokens))});
  }
  return names;
}

int64_t store_prompt(PageStore& store, std::span<const int32_t> prompt, int64_t n_at_once) {
  const PageFormat& format = store.format();
  const std::vector<PageName> names = names_of(prompt);
  const int64_t n_pages = std::ssize(names);
  int64_t n_stored = 0;
  while (n_stored < n_pages) {
    const int64_t n = std::min(n_at_once, n_pages - n_stored);
    PageMemory memory({format.n_layers, format.rows_page_bytes, format.keys_page_bytes}, n);
    memory.fill(prompt, n_stored);
    std::vector<NewPage> pages;
    for (int64_t i = 0; i < n; ++i) {
      const auto page = static_cast<size_t>(n_stored + i);
      pages.push_back({names[page], prompt.subspan(page * kPageTokens, kPageTokens), memory.at(i)});
    }
    const int64_t n_there = store.store(pages);
    n_stored += n_there;
    if (n_there < n) break;
  }
  return n_stored;
}

namespace {

// The tokens that a page's file says it has; others where they are not those that its name stands for.
std::vector<int32_t> tokens_in(const std::filesystem::path& file, const PageName& name) {
  constexpr std::streamoff kTokensAt = 104;
  std::vector<int32_t> tokens(kPageTokens);
  std::ifstream in(file, std::ios::binary);
  if (!in) return {};  // no descriptor is left
  in.seekg(kTokensAt).read(reinterpret_cast<char*>(tokens.data()), kPageTokens * sizeof(int32_t));
  if (next_hash(name.parent, tokens) != name.own) tokens.assign(kPageTokens, -1);
  return tokens;
}

}  // namespace

Contents load_all(PageStore& store, const StoreOptions& options) {
  const PageFormat& format = store.format();
  const PageSizes sizes{format.n_layers, format.rows_page_bytes, format.keys_page_bytes};
  const std::filesystem::path folder = options.directory + "/" + format.folder();
  std::multimap<PageHash, PageName> behind;
  for (const auto& file : page_files(options.directory))
    if (const auto name = PageName::parse(file.filename());
        file.parent_path() == folder && store.has(name->own))
      behind.insert({name->parent, *name});
  Contents contents;
  std::vector<std::pair<PageHash, std::vector<int32_t>>> reached{{PageHash{}, {}}};
  PageMemory expected(sizes, 1), loaded(sizes, 1);
  for (size_t i = 0; i < reached.size(); ++i) {
    const auto [begin, end] = behind.equal_range(reached[i].first);
    for (auto child = begin; child != end; ++child) {
      const PageName& name = child->second;
      const std::vector<int32_t> tokens = tokens_in(folder / name.file(), name);
      std::vector<int32_t> prompt = reached[i].second;
      prompt.insert(prompt.end(), tokens.begin(), tokens.end());
      if (!tokens.empty()) expected.fill(prompt, std::ssize(prompt) / kPageTokens - 1);
      if (tokens.empty() || !store.load(name.own, tokens, loaded.at(0))) {
        ++contents.n_missed;
        continue;
      }
      contents.n_wrong += !(loaded == expected);
      contents.prompts.insert(prompt);
      reached.emplace_back(name.own, prompt);
    }
  }
  return contents;
}

std::unique_ptr<PageStore> open_store(const StoreOptions& options, FileSystem& fs, const Warn& warn) {
  auto own = or_miss([&] { return std::optional<StoreOptions>(options); });
  if (!own) return nullptr;  // the copy lacked memory
  own->files = &fs;
  if (warn) own->warn = warn;
  std::unique_ptr<PageStore> store = PageStore::open(*own, own->format);
  if (store) store->tidy();
  return store;
}

std::optional<Contents> load_all(const StoreOptions& options, FileSystem& fs) {
  const auto store = open_store(options, fs, {});
  return store ? std::optional(load_all(*store, options)) : std::nullopt;
}

std::vector<std::filesystem::path> files_named(const std::string& directory, const std::string& prefix) {
  std::vector<std::filesystem::path> found;
  std::error_code error;  // files come and go, the directory or a descriptor may be missing
  for (std::filesystem::recursive_directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error))
    if (entry->path().filename().string().starts_with(prefix)) found.push_back(entry->path());
  std::ranges::sort(found);
  return found;
}

std::vector<std::filesystem::path> page_files(const std::string& directory) {
  std::vector<std::filesystem::path> found = files_named(directory, "");
  std::erase_if(found, [](const std::filesystem::path& path) { return !PageName::parse(path.filename()); });
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
