#include "prefix/prefix_store.h"

#include <cerrno>
#include <chrono>
#include <map>
#include <mutex>
#include <utility>

#include "backend/cache_layout.h"
#include "prefix/cache_speeds.h"
#include "prefix/segment_registry.h"
#include "prefix/segment_writer.h"

namespace dsv32 {
namespace {

SegmentInfo sizes_of(const PrefixStoreOptions& options) {
  SegmentInfo sizes;
  sizes.fingerprint = options.fingerprint;
  sizes.n_pages = 1;
  sizes.n_layers = options.n_layers;
  sizes.rows_page_bytes = options.rows_page_bytes;
  sizes.keys_page_bytes = options.keys_page_bytes;
  sizes.layers_per_slab = options.layers_per_slab > 0 ? options.layers_per_slab : options.n_layers;
  return sizes;
}

// Bytes loaded, and the time during which anybody loads. Any thread.
class ReadMeter {
 public:
  void begin() {
    const std::lock_guard guard(mutex_);
    if (n_loading_++ == 0) since_ = std::chrono::steady_clock::now();
  }
  void end(uint64_t n_bytes) {
    const std::lock_guard guard(mutex_);
    stats_.n_bytes += n_bytes;
    if (--n_loading_ > 0) return;
    stats_.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - since_).count();
  }
  ReadStats stats() const {
    const std::lock_guard guard(mutex_);
    ReadStats now = stats_;
    if (n_loading_ > 0)
      now.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - since_).count();
    return now;
  }

 private:
  mutable std::mutex mutex_;
  ReadStats stats_;
  int64_t n_loading_ = 0;
  std::chrono::steady_clock::time_point since_;
};

// A failed allocation, or a library's failure, is a miss too.
template <typename Result, typename Body>
Result or_miss(Result miss, const Body& body) {
  try {
    return body();
  } catch (const std::exception&) {
    return miss;
  }
}

}  // namespace

int64_t StoredSegment::n_pages() const { return static_cast<int64_t>(tokens.size()) / kPageTokens; }

class PrefixStore::State {
 public:
  State(const PrefixStoreOptions& options, std::unique_ptr<CacheDirectory> opened)
      : directory(std::move(opened)),
        sizes(sizes_of(options)),
        root_(chain_root(options.fingerprint, options.salt)) {}
  ~State() {
    or_miss(false, [this] { return write_uses(); });
  }

  std::vector<StoredSegment> segments();
  bool load_pages(int64_t id, int64_t first, int64_t slab, std::span<const PageTarget> pages);
  std::optional<int64_t> store(const DiskPage& before, std::span<const int32_t> tokens,
                               std::span<const PageSource> pages);
  void remove(int64_t id, SegmentFault why);

  const std::unique_ptr<CacheDirectory> directory;
  const SegmentInfo sizes;  // fingerprint and sizes of every segment here
  SegmentRegistry registry;
  ReadMeter meter;

 private:
  std::shared_ptr<const SegmentFile> open_file(int64_t id, SegmentFault& fault);
  std::shared_ptr<const SegmentFile> open_anew(const SegmentInfo& segment, SegmentFault& fault);
  std::optional<SegmentFault> read(int64_t id, int64_t first, int64_t slab,
                                   std::span<const PageTarget> pages);
  bool write_uses();
  bool write_uses_in_turn();
  bool describe(const DiskPage& before, std::span<const int32_t> tokens, std::span<const PageSource> pages,
                SegmentInfo& segment) const;

  const Hash256 root_;
};

// From the root down, so that what continues nothing, or something else, is left out.
std::vector<StoredSegment> PrefixStore::State::segments() {
  write_uses();
  std::vector<CachedSegment> cached =
      directory->segments_in(CacheFiles::folder_name(sizes.fingerprint), true, true);
  std::multimap<Hash256, CachedSegment*> children;  // by the parent's chain
  for (CachedSegment& one : cached)
    if (one.segment.fingerprint == sizes.fingerprint && one.segment.has_sizes_of(sizes))
      children.insert({one.segment.parent, &one});

  struct Place {
    Hash256 chain;
    int64_t id, first_page, next_page;
  };
  std::vector<Place> reached = {{root_, -1, -1, 0}};
  std::vector<StoredSegment> found;
  for (size_t i = 0; i < reached.size(); ++i) {
    const Place parent = reached[i];
    const auto [begin, end] = children.equal_range(parent.chain);
    for (auto child = begin; child != end; ++child) {
      SegmentInfo& segment = child->second->segment;
      if (segment.first_page <= parent.first_page || segment.first_page > parent.next_page) continue;
      std::vector<int32_t> tokens = std::move(segment.tokens);
      const int64_t id = registry.add(segment);
      reached.push_back({segment.chain, id, segment.first_page, segment.first_page + segment.n_pages});
      found.push_back({id, parent.id, segment.first_page, std::move(tokens), child->second->use});
    }
  }
  return found;
}

// Forgets a segment, and takes its file away unless others may need it.
void PrefixStore::State::remove(int64_t id, SegmentFault why) {
  const std::optional<SegmentInfo> segment = registry.find(id);
  if (!segment || !registry.forget(id) || why == SegmentFault::newer) return;
  const OwnedFd folder = directory->files().open_folder(sizes.fingerprint);
  if (folder.is_open()) directory->remove(folder.get(), CacheFiles::segment_file(segment->chain), why);
}

// --- loading -------------------------------------------------------------------------------------

bool PrefixStore::State::load_pages(int64_t id, int64_t first, int64_t slab,
                                    std::span<const PageTarget> pages) {
  if (slab < 0 || slab >= sizes.n_slabs()) return false;
  for (const PageTarget& page : pages)
    if (static_cast<int64_t>(page.rows.size()) != sizes.n_layers_of(slab)) return false;
  meter.begin();
  const std::optional<SegmentFault> fault = read(id, first, slab, pages);
  meter.end(fault == SegmentFault::none ? pages.size() * sizes.slab_bytes(slab) : 0);
  if (!fault) return false;
  if (*fault == SegmentFault::unreadable)
    directory->warn_once("a segment cannot be read at present");
  else if (*fault != SegmentFault::none)
    remove(id, *fault);
  return *fault == SegmentFault::none;
}

// Nothing for pages that the segment does not have: a mistake of the caller's, which says nothing about it.
std::optional<SegmentFault> PrefixStore::State::read(int64_t id, int64_t first, int64_t slab,
                                                     std::span<const PageTarget> pages) {
  return or_miss(std::optional(SegmentFault::unreadable), [&]() -> std::optional<SegmentFault> {
    SegmentFault fault = SegmentFault::none;
    const auto file = open_file(id, fault);
    if (!file) return fault;
    const int64_t n_pages = file->info().n_pages;
    if (first < 0 || first > n_pages || static_cast<int64_t>(pages.size()) > n_pages - first)
      return std::nullopt;
    return file->read_pages(first, slab, pages);
  });
}

std::shared_ptr<const SegmentFile> PrefixStore::State::open_file(int64_t id, SegmentFault& fault) {
  if (auto file = registry.file(id)) return file;
  const std::optional<SegmentInfo> segment = registry.find(id);
  if (!segment) return fault = SegmentFault::vanished, nullptr;
  auto file = open_anew(*segment, fault);
  if (!file &&
      fault == SegmentFault::unreadable) {  // out of descriptors, perhaps: those kept open are ours to close
    registry.close_files();
    file = open_anew(*segment, fault);
  }
  if (file) registry.keep_open(id, file);
  return file;
}

std::shared_ptr<const SegmentFile> PrefixStore::State::open_anew(const SegmentInfo& segment,
                                                                 SegmentFault& fault) {
  const OwnedFd folder = directory->files().open_folder(sizes.fingerprint);
  if (!folder.is_open()) {
    fault = folder.error() == -ENOENT ? SegmentFault::vanished : SegmentFault::unreadable;
    return nullptr;
  }
  auto file =
      SegmentFile::open(directory->fs(), folder.get(), CacheFiles::segment_file(segment.chain), fault);
  if (!file || file->info().is_same(segment)) return file;
  fault = SegmentFault::damaged;  // whole, but not what its name stands for
  return nullptr;
}

// --- storing -------------------------------------------------------------------------------------

bool PrefixStore::State::write_uses() {
  return registry.has_uses() && directory->in_turn([this] { return write_uses_in_turn(); });
}

// What fails is lost: these are counts, not facts.
bool PrefixStore::State::write_uses_in_turn() {
  const std::vector<SegmentUse> uses = registry.take_uses();
  const OwnedFd folder = directory->files().open_folder(sizes.fingerprint);
  for (const SegmentUse& use : uses)
    if (folder.is_open())
      directory->record_use(folder.get(), CacheFiles::segment_file(use.chain), use.n_hits);
  return true;
}

// What is to be stored. False for a call that makes no sense.
bool PrefixStore::State::describe(const DiskPage& before, std::span<const int32_t> tokens,
                                  std::span<const PageSource> pages, SegmentInfo& segment) const {
  segment = sizes;
  segment.n_pages = static_cast<int64_t>(pages.size());
  if (static_cast<int64_t>(tokens.size()) != segment.n_pages * kPageTokens) return false;
  for (const PageSource& page : pages)
    if (static_cast<int64_t>(page.rows.size()) != sizes.n_layers) return false;
  segment.parent = root_;
  if (before.is_there()) {
    const std::optional<SegmentInfo> parent = registry.find(before.segment);
    if (!parent || before.number < 0 || before.number >= parent->n_pages) return false;
    segment.parent = parent->chain;
    segment.first_page = parent->first_page + before.number + 1;
  }
  segment.tokens.assign(tokens.begin(), tokens.end());
  segment.chain = chain_next(segment.parent, segment.first_page, tokens);
  return segment.has_sane_sizes();
}

std::optional<int64_t> PrefixStore::State::store(const DiskPage& before, std::span<const int32_t> tokens,
                                                 std::span<const PageSource> pages) {
  SegmentInfo segment;
  if (!describe(before, tokens, pages, segment)) return std::nullopt;
  SegmentWriter writer(*directory, segment, before.is_there());
  const bool is_reserved = directory->in_turn([&] { return write_uses_in_turn() && writer.reserve(); });
  if (!is_reserved) return std::nullopt;
  if (!writer.is_there())
    if (!writer.write(pages) || !directory->in_turn([&] { return writer.publish(); })) return std::nullopt;
  return registry.add(std::move(segment));
}

// --- the interface -------------------------------------------------------------------------------

PrefixStore::PrefixStore(std::unique_ptr<State> state) : state_(std::move(state)) {}
PrefixStore::~PrefixStore() = default;

std::unique_ptr<PrefixStore> PrefixStore::open(const PrefixStoreOptions& options, FileSystem& fs, Warn warn) {
  return or_miss(std::unique_ptr<PrefixStore>(), [&]() -> std::unique_ptr<PrefixStore> {
    if (!sizes_of(options).has_sane_sizes()) {
      if (warn) warn("prefix cache: pages of this model's sizes cannot be stored; going on without it");
      return nullptr;
    }
    auto directory = CacheDirectory::open(options.directory, options.limits, fs, std::move(warn));
    if (!directory) return nullptr;
    auto state = std::make_unique<State>(options, std::move(directory));
    return std::unique_ptr<PrefixStore>(new PrefixStore(std::move(state)));
  });
}

std::vector<StoredSegment> PrefixStore::segments() {
  return or_miss(std::vector<StoredSegment>(), [&] { return state_->segments(); });
}
const SegmentInfo& PrefixStore::sizes() const { return state_->sizes; }
bool PrefixStore::load_pages(int64_t segment, int32_t first_page, std::span<const PageTarget> pages,
                             int64_t slab) {
  return or_miss(false, [&] { return state_->load_pages(segment, first_page, slab, pages); });
}
std::optional<int64_t> PrefixStore::store(const DiskPage& before, std::span<const int32_t> tokens,
                                          std::span<const PageSource> pages) {
  return or_miss(std::optional<int64_t>(), [&] { return state_->store(before, tokens, pages); });
}
void PrefixStore::record_use(std::span<const int64_t> segments) { state_->registry.record_use(segments); }
void PrefixStore::discard(int64_t segment) {
  or_miss(false, [&] {
    state_->remove(segment, SegmentFault::damaged);
    return true;
  });
}
CacheSpeeds PrefixStore::speeds() {
  return or_miss(CacheSpeeds(), [&] { return read_speeds(*state_->directory, state_->sizes.fingerprint); });
}
void PrefixStore::record_speeds(const CacheSpeeds& speeds) {
  or_miss(false, [&] {
    write_speeds(*state_->directory, state_->sizes.fingerprint, speeds);
    return true;
  });
}
bool PrefixStore::can_write() const { return state_->directory->can_write(); }
ReadStats PrefixStore::read_stats() const { return state_->meter.stats(); }

}  // namespace dsv32
