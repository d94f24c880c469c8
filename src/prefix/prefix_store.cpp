#include "prefix/prefix_store.h"

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>

#include "backend/cache_layout.h"
#include "prefix/segment_writer.h"

namespace dsv32 {
namespace {

constexpr char kSpeeds[] = "speeds";  // the note of what was measured

SegmentHead sizes_of(const PrefixStoreOptions& options) {
  SegmentHead sizes;
  sizes.fingerprint = options.fingerprint;
  sizes.n_pages = 1;
  sizes.n_layers = options.n_layers;
  sizes.rows_page_bytes = options.rows_page_bytes;
  sizes.keys_page_bytes = options.keys_page_bytes;
  return sizes;
}

// Also of what a program wrote that measured nonsense.
double sane(double rate) { return rate > 0 && rate < 1e15 ? rate : 0; }

// A failed allocation, or a library's failure, is a miss too: nothing of what `body` would give.
template <typename Body>
auto or_miss(const Body& body) -> decltype(body()) {
  try {
    return body();
  } catch (const std::exception&) {
    return decltype(body())();
  }
}

}  // namespace

int64_t StoredSegment::n_pages() const { return static_cast<int64_t>(tokens.size()) / kPageTokens; }

PrefixStore::PrefixStore(const PrefixStoreOptions& options, std::unique_ptr<CacheDirectory> directory)
    : directory_(std::move(directory)),
      sizes_(sizes_of(options)),
      root_(chain_root(options.fingerprint, options.salt)) {}

PrefixStore::~PrefixStore() {
  or_miss([this] { write_uses(); });
}

std::unique_ptr<PrefixStore> PrefixStore::open(const PrefixStoreOptions& options, FileSystem& fs, Warn warn) {
  return or_miss([&]() -> std::unique_ptr<PrefixStore> {
    if (!sizes_of(options).has_sane_sizes()) {
      if (warn) warn("prefix cache: pages of this model's sizes cannot be stored; going on without it");
      return nullptr;
    }
    auto directory = CacheDirectory::open(options.directory, options.limits, fs, std::move(warn));
    if (!directory) return nullptr;
    return std::unique_ptr<PrefixStore>(new PrefixStore(options, std::move(directory)));
  });
}

// --- what there is -------------------------------------------------------------------------------

std::vector<StoredSegment> PrefixStore::segments() {
  std::vector<StoredSegment> all;
  for (const std::string& file : segment_files()) std::ranges::move(find(file), std::back_inserter(all));
  return all;
}

std::vector<std::string> PrefixStore::segment_files() {
  return or_miss([this]() -> std::vector<std::string> {
    write_uses();
    const std::lock_guard lock(reached_mutex_);
    reached_ = {{root_, {-1, -1, 0}}}, waiting_.clear();
    const OwnedFd folder = directory_->files().open_folder(sizes_.fingerprint);
    if (!folder.is_open()) return {};
    return directory_->files().segments_in(folder.get());
  });
}

std::vector<StoredSegment> PrefixStore::find(const std::string& file) {
  return or_miss([&]() -> std::vector<StoredSegment> {
    const OwnedFd folder = directory_->files().open_folder(sizes_.fingerprint);
    if (!folder.is_open()) return {};
    const std::string name = CacheFiles::name_of(sizes_.fingerprint);
    std::optional<CachedSegment> one = directory_->segment_in(folder.get(), name, file, true, true);
    const bool is_ours =
        one && one->segment.fingerprint == sizes_.fingerprint && one->segment.has_sizes_of(sizes_);
    if (!is_ours) return {};
    const std::lock_guard lock(reached_mutex_);
    return reach(std::move(*one));
  });
}

// From the root down, so that what continues nothing, or something else, is left out.
std::vector<StoredSegment> PrefixStore::reach(CachedSegment first) {
  std::vector<StoredSegment> found;
  std::vector<CachedSegment> next;
  next.push_back(std::move(first));
  for (size_t i = 0; i < next.size(); ++i) {
    SegmentInfo& segment = next[i].segment;
    const auto parent = reached_.find(segment.parent);
    if (parent == reached_.end()) {
      waiting_.emplace(segment.parent, std::move(next[i]));
      continue;
    }
    const KnownPlace place = parent->second;
    if (segment.first_page <= place.first_page || segment.first_page > place.next_page) continue;
    const int64_t id = registry_.add(segment);
    reached_[segment.chain] = {id, segment.first_page, segment.first_page + segment.n_pages};
    const auto [begin, end] = waiting_.equal_range(segment.chain);
    for (auto child = begin; child != end; ++child) next.push_back(std::move(child->second));
    waiting_.erase(begin, end);
    found.push_back(
        {id, place.id, next[i].segment.first_page, std::move(next[i].segment.tokens), next[i].use});
  }
  return found;
}

void PrefixStore::discard(int64_t segment) {
  or_miss([&] { remove(segment, SegmentFault::damaged); });
}

void PrefixStore::take_back() {
  for (const int64_t segment : written_) or_miss([&] { remove(segment, SegmentFault::vanished); });
  written_.clear();
}

// Forgets a segment, and takes its file away unless others may need it.
void PrefixStore::remove(int64_t id, SegmentFault why) {
  const std::optional<SegmentHead> segment = registry_.find(id);
  if (!segment || !registry_.forget(id) || why == SegmentFault::newer) return;
  const OwnedFd folder = directory_->files().open_folder(sizes_.fingerprint);
  if (folder.is_open()) directory_->remove(folder.get(), CacheFiles::segment_file(segment->chain), why);
}

// --- loading -------------------------------------------------------------------------------------

bool PrefixStore::load_pages(int64_t segment, int32_t first_page, std::span<const PageTarget> pages) {
  meter_.begin();
  const bool is_there = or_miss([&] { return try_load(segment, first_page, pages); });
  meter_.end(is_there ? pages.size() * sizes_.page_bytes() : 0);
  return is_there;
}

bool PrefixStore::try_load(int64_t id, int64_t first, std::span<const PageTarget> pages) {
  SegmentFault fault = SegmentFault::none;
  const auto file = open_file(id, fault);
  if (file) fault = file->read_pages(first, pages);
  if (fault == SegmentFault::unreadable)
    directory_->warn_once("a segment cannot be read at present");
  else if (fault != SegmentFault::none)
    remove(id, fault);
  return fault == SegmentFault::none;
}

std::shared_ptr<const SegmentFile> PrefixStore::open_file(int64_t id, SegmentFault& fault) {
  if (auto file = registry_.file(id)) return file;
  const std::optional<SegmentHead> segment = registry_.find(id);
  if (!segment) return fault = SegmentFault::vanished, nullptr;
  auto file = open_anew(*segment, fault);
  if (!file && fault == SegmentFault::unreadable) {
    registry_.close_files();  // out of descriptors, perhaps: those kept open are ours to close
    file = open_anew(*segment, fault);
  }
  if (file) registry_.keep_open(id, file);
  return file;
}

std::shared_ptr<const SegmentFile> PrefixStore::open_anew(const SegmentHead& segment, SegmentFault& fault) {
  const OwnedFd folder = directory_->files().open_folder(sizes_.fingerprint);
  if (!folder.is_open()) {
    fault = folder.error() == -ENOENT ? SegmentFault::vanished : SegmentFault::unreadable;
    return nullptr;
  }
  auto file =
      SegmentFile::open(directory_->fs(), folder.get(), CacheFiles::segment_file(segment.chain), fault);
  if (!file || file->info().is_same(segment)) return file;
  fault = SegmentFault::damaged;  // whole, but not what its name stands for
  return nullptr;
}

// --- uses and speeds -----------------------------------------------------------------------------

void PrefixStore::record_use(std::span<const int64_t> segments) {
  or_miss([&] {
    if (can_write()) registry_.record_use(segments);
  });
}

void PrefixStore::write_uses() {
  if (!registry_.has_uses()) return;
  directory_->in_turn([this] {
    write_uses_in_turn();
    return true;
  });
}

// What fails is lost: these are counts, not facts.
void PrefixStore::write_uses_in_turn() {
  const std::vector<Hash256> uses = registry_.take_uses();
  const OwnedFd folder = directory_->files().open_folder(sizes_.fingerprint);
  for (const Hash256& chain : uses)
    if (folder.is_open()) directory_->record_use(folder.get(), CacheFiles::segment_file(chain));
}

CacheSpeeds PrefixStore::speeds() {
  return or_miss([this]() -> CacheSpeeds {
    CacheSpeeds speeds;
    const OwnedFd folder = directory_->files().open_folder(sizes_.fingerprint);
    if (!folder.is_open()) return {};
    const std::string note =
        directory_->files().read_note(folder.get(), kSpeeds, sizeof(Hash256) + sizeof speeds);
    if (note.size() != sizeof(Hash256) + sizeof speeds ||
        std::memcmp(note.data(), sizes_.fingerprint.data(), sizeof(Hash256)) != 0)
      return {};
    std::memcpy(&speeds, note.data() + sizeof(Hash256), sizeof speeds);
    return {sane(speeds.read_bytes_per_second), sane(speeds.prefill_tokens_per_second)};
  });
}

void PrefixStore::record_speeds(const CacheSpeeds& speeds) {
  or_miss([&] {
    std::string note(sizes_.fingerprint.begin(), sizes_.fingerprint.end());
    note.append(reinterpret_cast<const char*>(&speeds), sizeof speeds);
    directory_->in_turn([&] {
      const OwnedFd folder = directory_->files().make_folder(sizes_.fingerprint);
      if (folder.is_open()) directory_->files().write_note(folder.get(), kSpeeds, note);
      return true;
    });
  });
}

void PrefixStore::record_model(const std::string& path) {
  or_miss([&] {
    const CacheFiles& files = directory_->files();
    const OwnedFd folder = files.open_folder(sizes_.fingerprint);
    const size_t n_most = path.size();
    if (!can_write() || !folder.is_open() || path.empty()) return;
    if (files.read_note(folder.get(), CacheFiles::kPathNote, n_most) != path)
      files.write_note(folder.get(), CacheFiles::kPathNote, path);
  });
}

// --- storing -------------------------------------------------------------------------------------

std::optional<int64_t> PrefixStore::store(const DiskPage& before, std::span<const int32_t> tokens,
                                          std::span<const PageSource> pages) {
  return or_miss([&] { return try_store(before, tokens, pages); });
}

std::optional<int64_t> PrefixStore::try_store(const DiskPage& before, std::span<const int32_t> tokens,
                                              std::span<const PageSource> pages) {
  assert(!pages.empty() && std::ssize(pages) <= kMaxSegmentPages);
  assert(tokens.size() == pages.size() * kPageTokens);
  SegmentInfo segment{sizes_, {tokens.begin(), tokens.end()}};
  segment.n_pages = std::ssize(pages);
  segment.parent = root_;
  if (before.is_there()) {
    const std::optional<SegmentHead> parent = registry_.find(before.segment);
    if (!parent) return std::nullopt;
    segment.parent = parent->chain;
    segment.first_page = parent->first_page + before.number + 1;
  }
  segment.chain = chain_next(segment.parent, segment.first_page, tokens);
  SegmentWriter writer(*directory_, segment);
  const bool is_reserved = directory_->in_turn([&] {
    write_uses_in_turn();
    return writer.reserve();
  });
  if (!is_reserved) return std::nullopt;
  const bool was_there = writer.is_there();
  if (!was_there)
    if (!writer.write(pages) || !directory_->in_turn([&] { return writer.publish(); })) return std::nullopt;
  const int64_t id = registry_.add(segment);
  if (!was_there) written_.push_back(id);
  return id;
}

}  // namespace dsv32
