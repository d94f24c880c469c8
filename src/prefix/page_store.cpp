#include "prefix/page_store.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "base/worker_pool.h"

namespace dsv32 {
namespace {

// Room that was found is believed until a process has used this share of it: so many processes together keep
// the limits.
constexpr uint64_t kSharers = 16;
constexpr int kWriters = 4;

std::string warning(const std::string& path, const std::string& reason) {
  return format("prefix cache %s: %s", visible(path, false, 200).c_str(), reason.c_str());
}

}  // namespace

std::unique_ptr<PageStore> PageStore::open(const PrefixCacheOptions& options, const PageFormat& format) {
  return or_miss([&] {
    std::string reason;
    std::unique_ptr<PageStore> store;
    if (std::optional<CacheFiles> files = CacheFiles::open(options.directory, *options.files, reason))
      store.reset(new PageStore(options, format, std::move(*files)));
    else
      options.warn(warning(options.directory, reason + "; going on without it"));
    return store;
  });
}

PageStore::PageStore(const PrefixCacheOptions& options, const PageFormat& format, CacheFiles files)
    : options_(options), format_(format), files_(std::move(files)) {
  std::vector<std::string> entries;
  if (const OwnedFd folder = open_folder(); folder.is_open()) files_.fs().list(folder.get(), entries);
  for (const std::string& entry : entries)
    if (const std::optional<PageName> name = PageName::parse(entry)) parents_[name->own] = name->parent;
}

void PageStore::tidy() {
  or_miss([this] { has_room(0, {}); });
}

// --- what is there -------------------------------------------------------------------------------

int64_t PageStore::n_pages() const {
  const std::lock_guard lock(mutex_);
  return std::ssize(parents_);
}

std::optional<PageName> PageStore::find(const PageHash& page) const {
  const std::lock_guard lock(mutex_);
  const auto found = parents_.find(page);
  return found == parents_.end() ? std::nullopt : std::optional(PageName{found->second, page});
}

void PageStore::forget(const PageHash& page) {
  const std::lock_guard lock(mutex_);
  parents_.erase(page);
}

bool PageStore::remove(const PageHash& page) {
  const std::optional<PageName> name = find(page);
  forget(page);
  const OwnedFd folder = open_folder();
  return name && can_write() && folder.is_open() && files_.fs().unlink(folder.get(), name->file()) == 0;
}

void PageStore::warn_once(const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    if (!warned_.insert(reason).second) return;
  }
  options_.warn(warning(files_.path(), reason));
}

// --- loading -------------------------------------------------------------------------------------

bool PageStore::load(const PageHash& page, std::span<const int32_t> tokens, const PageBytes& target) {
  return or_miss([&] {
    const std::optional<PageName> name = find(page);
    if (!name) return false;
    const OwnedFd folder = open_folder();
    const PageFault fault = folder.is_open()
                                ? read_page(files_.fs(), folder.get(), format(), *name, tokens, target)
                            : folder.error() == -ENOENT ? PageFault::vanished
                                                        : PageFault::unreadable;
    if (fault == PageFault::damaged) discard(page);
    if (fault == PageFault::vanished) forget(page);
    if (fault == PageFault::unreadable) warn_once("a page cannot be read at present");
    return fault == PageFault::none;
  });
}

void PageStore::discard(const PageHash& page) {
  or_miss([&] {
    if (remove(page)) warn_once("a damaged page was removed");
  });
}

void PageStore::take_back() {
  for (const PageHash& page : std::exchange(written_, {})) or_miss([&] { remove(page); });
}

// Parents are used last, so that a child never outlives its parent for long. A use that cannot be written is
// lost: it only guides eviction.
void PageStore::record_use(std::span<const PageHash> path) {
  or_miss([&] {
    FileSystem& fs = files_.fs();
    int64_t time = std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count();
    const OwnedFd folder = open_folder();
    for (size_t i = path.size(); can_write() && folder.is_open() && i-- > 0; ++fs.n_steps_done)
      if (const auto name = find(path[i])) fs.set_time(folder.get(), name->file(), ++time);
  });
}

// --- storing -------------------------------------------------------------------------------------

bool PageStore::check_write(int64_t result) {
  if (result >= 0) return true;
  warn_once("not stored: " + describe_errno(result));
  ++n_write_failures_;
  return false;
}

bool PageStore::has_room(uint64_t n_bytes, const PageHash& kept) {
  if (n_bytes == 0 || n_since_ + n_bytes > room_ / kSharers) {
    n_since_ = 0;
    room_ = make_room(files_, options_.limits, n_bytes, kept, [this](const StoredPage& page) {
      if (page.folder == format().folder()) forget(page.name.own);
    });
  }
  n_since_ += n_bytes;
  return n_since_ <= room_;
}

int64_t PageStore::store(std::span<const NewPage> pages) {
  return or_miss([&]() -> int64_t {
    if (!can_write()) return 0;
    const OwnedFd folder = files_.make_folder(format().folder());
    if (!check_write(folder.error())) return 0;
    FileInfo info;
    const PageHash& before = pages.front().name.parent;
    const std::optional<PageName> parent = find(before);
    if (before != PageHash{} && !(parent && files_.fs().stat_at(folder.get(), parent->file(), info) == 0))
      return forget(before), 0;
    const size_t n_before = written_.size();
    int64_t n_there = write(folder.get(), pages);
    if (written_.size() == n_before) return n_there;
    if (!check_write(files_.fs().fsync(folder.get())))
      for (n_there = 0; written_.size() > n_before; written_.pop_back()) remove(written_.back());
    else if (!std::exchange(is_noted_, true) && !options_.model_path.empty())
      files_.write_note(folder.get(), CacheFiles::kPathNote, options_.model_path);
    return n_there;
  });
}

// Until the first that cannot be written. At a time no more than a quarter of the limit.
int64_t PageStore::write(int folder, std::span<const NewPage> pages) {
  const uint64_t n_most = options_.limits.max_bytes.value_or(UINT64_MAX) / 4 / format().file_bytes();
  for (size_t at = 0, n = 0; at < pages.size(); at += n) {
    n = std::clamp<uint64_t>(n_most, 1, pages.size() - at);
    if (!has_room(n * format().file_bytes(), pages[at].name.parent))
      return warn_once("not stored: no room under its limits"), at;
    if (const size_t n_there = write_together(folder, pages.subspan(at, n)); n_there < n) return at + n_there;
  }
  return std::ssize(pages);
}

// All bytes are written before the first is synced; then each page gets its name, parents first. A disk takes
// several writes at once, and as one several syncs that come at once. Returns how many of the pages, from the
// first on, are there.
size_t PageStore::write_together(int folder, std::span<const NewPage> pages) {
  FileSystem& fs = files_.fs();
  std::vector<UnnamedPage> files(pages.size());
  std::vector<int> results(pages.size(), -ENOMEM);
  WorkerPool writers(kWriters);
  writers.parallel_for(std::ssize(pages), true, [&](int64_t i) {
    const auto at = static_cast<size_t>(i);
    or_miss([&] { results[at] = write_page(fs, folder, format(), pages[at], files[at]); });
  });
  writers.parallel_for(std::ssize(pages), true, [&](int64_t i) {
    const auto at = static_cast<size_t>(i);
    if (results[at] == 0) results[at] = sync_page(fs, files[at]);
  });
  size_t n_there = 0;
  for (size_t i = 0; i < pages.size(); ++i) {
    const PageName& name = pages[i].name;
    const bool is_next = i == n_there;
    if (is_next && results[i] == 0) results[i] = fs.rename_new(folder, files[i].temporary, name.file());
    const bool is_new = is_next && results[i] == 0;
    if (files[i].fd.is_open() && !is_new) fs.unlink(folder, files[i].temporary);
    if (!is_next || !(results[i] == -EEXIST || check_write(results[i]))) continue;
    if (is_new) written_.push_back(name.own);
    const std::lock_guard lock(mutex_);
    parents_[name.own] = name.parent, ++n_there;
  }
  return n_there;
}

}  // namespace dsv32
