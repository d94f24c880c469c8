#include "context/prefix_store.h"

#include <cerrno>
#include <chrono>
#include <map>
#include <mutex>
#include <utility>

#include "backend/cache_layout.h"
#include "context/segment_registry.h"
#include "context/segment_writer.h"

namespace dsv32 {
namespace {

bool has_sizes_of(const SegmentInfo& a, const SegmentInfo& b) {
  return a.n_layers == b.n_layers && a.rows_page_bytes == b.rows_page_bytes &&
         a.keys_page_bytes == b.keys_page_bytes && a.layers_per_slab == b.layers_per_slab;
}

// The tokens are compared as well: a hash only finds.
bool is_same(const SegmentInfo& a, const SegmentInfo& b) {
  return a.fingerprint == b.fingerprint && a.parent == b.parent && a.chain == b.chain &&
         a.first_page == b.first_page && a.n_pages == b.n_pages && has_sizes_of(a, b) && a.tokens == b.tokens;
}

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
    return stats_;
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
  ~State() { write_uses(); }

  std::vector<StoredSegment> segments();
  bool load_pages(int64_t id, int64_t first, int64_t slab, std::span<const PageTarget> pages);
  std::optional<int64_t> store(const DiskPage& before, std::span<const int32_t> tokens,
                               std::span<const PageSource> pages, int32_t priority);
  void remove(int64_t id, const std::string& reason);
  CacheSpeeds speeds();

  const std::unique_ptr<CacheDirectory> directory;
  const SegmentInfo sizes;  // fingerprint and sizes of every segment here
  SegmentRegistry registry;
  ReadMeter meter;
  std::optional<CacheSpeeds> new_speeds;  // that are not in the index yet

 private:
  std::shared_ptr<const SegmentFile> open_file(int64_t id, SegmentFault& fault);
  std::shared_ptr<const SegmentFile> open_anew(const IndexEntry& entry, SegmentFault& fault);
  std::optional<SegmentFault> read(int64_t id, int64_t first, int64_t slab,
                                   std::span<const PageTarget> pages);
  void write_uses();
  void write_uses(PrefixIndex& index);
  bool describe(const DiskPage& before, std::span<const int32_t> tokens, std::span<const PageSource> pages,
                SegmentInfo& segment) const;

  const Hash256 root_;
};

// From the root down, so that what continues nothing, or something else, is left out.
std::vector<StoredSegment> PrefixStore::State::segments() {
  write_uses();
  std::vector<IndexEntry> entries;
  const bool is_read = directory->with_index(PrefixIndex::Access::read, [&](PrefixIndex& index) {
    entries = index.entries_of(sizes.fingerprint);
    return true;
  });
  if (!is_read) return {};
  std::multimap<Hash256, const IndexEntry*> children;  // by the parent's chain
  for (const IndexEntry& entry : entries)
    if (has_sizes_of(entry.segment, sizes) && !registry.is_gone(entry.name))
      children.insert({entry.segment.parent, &entry});

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
      const IndexEntry& entry = *child->second;
      const SegmentInfo& segment = entry.segment;
      if (segment.first_page <= parent.first_page || segment.first_page > parent.next_page) continue;
      const int64_t id = registry.add(entry);
      reached.push_back({segment.chain, id, segment.first_page, segment.first_page + segment.n_pages});
      found.push_back({id, parent.id, segment.first_page, segment.tokens, entry.use});
    }
  }
  return found;
}

CacheSpeeds PrefixStore::State::speeds() {
  if (new_speeds) return *new_speeds;
  CacheSpeeds speeds;
  directory->with_index(PrefixIndex::Access::read, [&](PrefixIndex& index) {
    speeds = index.speeds_of(sizes.fingerprint);
    return true;
  });
  return speeds;
}

// Takes the file away and what is known of it, so that it is not met again. No reason: it is not worth a
// line.
void PrefixStore::State::remove(int64_t id, const std::string& reason) {
  const std::optional<IndexEntry> entry = registry.forget(id);
  if (!entry) return;
  directory->remove_file(*entry);
  if (!reason.empty()) directory->warn_once(reason);
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
  switch (*fault) {
    case SegmentFault::none: return true;
    case SegmentFault::damaged: remove(id, "a damaged segment was removed"); break;
    case SegmentFault::vanished:  // evicted by another process
      remove(id, {});
      break;
    case SegmentFault::foreign:
    case SegmentFault::newer: registry.forget(id); break;
    case SegmentFault::unreadable: directory->warn_once("a segment cannot be read at present"); break;
  }
  return false;
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
  const std::optional<IndexEntry> entry = registry.find(id);
  if (!entry) return fault = SegmentFault::vanished, nullptr;
  auto file = open_anew(*entry, fault);
  if (!file &&
      fault == SegmentFault::unreadable) {  // out of descriptors, perhaps: those kept open are ours to close
    registry.close_files();
    file = open_anew(*entry, fault);
  }
  if (file) registry.keep_open(id, file);
  return file;
}

std::shared_ptr<const SegmentFile> PrefixStore::State::open_anew(const IndexEntry& entry,
                                                                 SegmentFault& fault) {
  const OwnedFd folder = directory->files().open_folder(sizes.fingerprint);
  if (!folder.is_open()) {
    fault = folder.error() == -ENOENT ? SegmentFault::vanished : SegmentFault::unreadable;
    return nullptr;
  }
  auto file = SegmentFile::open(directory->fs(), folder.get(), CacheFiles::segment_file(entry.name), fault);
  if (!file || is_same(file->info(), entry.segment)) return file;
  fault = SegmentFault::damaged;  // whole, but not what its name stands for
  return nullptr;
}

// --- storing -------------------------------------------------------------------------------------

void PrefixStore::State::write_uses() {
  if (!registry.has_uses() && !new_speeds) return;
  directory->with_index(PrefixIndex::Access::write, [&](PrefixIndex& index) {
    write_uses(index);
    return true;
  });
}

// Within a write transaction. What is undone with it is lost: these are counts, not facts.
void PrefixStore::State::write_uses(PrefixIndex& index) {
  if (new_speeds) index.set_speeds(sizes.fingerprint, *new_speeds);
  new_speeds.reset();
  const std::vector<SegmentUse> uses = registry.take_uses();
  if (uses.empty()) return;
  uint64_t now = index.next_time();
  for (const SegmentUse& use : uses) {
    std::optional<IndexEntry> entry = index.find(use.chain);
    if (!entry) continue;
    entry->use.n_hits += use.n_hits;
    entry->use.last_use = now++;
    index.update_use(*entry);
  }
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
    const std::optional<IndexEntry> parent = registry.find(before.segment);
    if (!parent || before.number < 0 || before.number >= parent->segment.n_pages) return false;
    segment.parent = parent->segment.chain;
    segment.first_page = parent->segment.first_page + before.number + 1;
  }
  segment.tokens.assign(tokens.begin(), tokens.end());
  segment.chain = chain_next(segment.parent, segment.first_page, tokens);
  return segment.has_sane_sizes();
}

std::optional<int64_t> PrefixStore::State::store(const DiskPage& before, std::span<const int32_t> tokens,
                                                 std::span<const PageSource> pages, int32_t priority) {
  IndexEntry entry;
  if (!describe(before, tokens, pages, entry.segment)) return std::nullopt;
  entry.use.priority = priority;
  const auto is_kept = [&](const IndexEntry& other) {
    return other.segment.chain == entry.segment.parent || registry.is_pinned(other.name);
  };
  SegmentWriter writer(*directory, entry, before.is_there());
  WaitBudget budget = directory->patience();
  const bool is_reserved = directory->with_index(PrefixIndex::Access::write, budget, [&](PrefixIndex& index) {
    write_uses(index);
    return writer.reserve(index, is_kept);
  });
  const bool is_stored =
      is_reserved && (writer.has_twin() || (writer.write(pages) && writer.publish(budget)));
  if (!is_stored || !has_sizes_of(writer.entry().segment, sizes)) return std::nullopt;
  IndexEntry stored = writer.entry();
  stored.segment.tokens = entry.segment.tokens;  // of a twin they were not read
  return registry.add(stored);
}

// --- the interface -------------------------------------------------------------------------------

PrefixStore::PrefixStore(std::unique_ptr<State> state) : state_(std::move(state)) {}
PrefixStore::~PrefixStore() = default;

std::unique_ptr<PrefixStore> PrefixStore::open(const PrefixStoreOptions& options, FileSystem& fs, Warn warn) {
  if (!sizes_of(options).has_sane_sizes()) {
    if (warn) warn("prefix cache: pages of this model's sizes cannot be stored; going on without it");
    return nullptr;
  }
  auto directory = CacheDirectory::open(options.directory, options.limits, fs, std::move(warn));
  if (!directory) return nullptr;
  return std::unique_ptr<PrefixStore>(
      new PrefixStore(std::make_unique<State>(options, std::move(directory))));
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
                                          std::span<const PageSource> pages, int32_t priority) {
  return or_miss(std::optional<int64_t>(), [&] { return state_->store(before, tokens, pages, priority); });
}
void PrefixStore::record_use(std::span<const int64_t> segments) { state_->registry.record_use(segments); }
void PrefixStore::pin(std::span<const int64_t> segments) { state_->registry.change_pins(segments, 1); }
void PrefixStore::unpin(std::span<const int64_t> segments) { state_->registry.change_pins(segments, -1); }
void PrefixStore::discard(int64_t segment) {
  or_miss(false, [&] {
    state_->remove(segment, "a segment that could not be used was removed");
    return true;
  });
}
CacheSpeeds PrefixStore::speeds() {
  return or_miss(CacheSpeeds(), [&] { return state_->speeds(); });
}
void PrefixStore::record_speeds(const CacheSpeeds& speeds) { state_->new_speeds = speeds; }
bool PrefixStore::can_write() const { return state_->directory->can_write(); }
ReadStats PrefixStore::read_stats() const { return state_->meter.stats(); }

}  // namespace dsv32
