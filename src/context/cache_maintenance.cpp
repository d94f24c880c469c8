#include "context/cache_maintenance.h"

#include <algorithm>
#include <map>
#include <new>

#include "backend/cache_layout.h"

namespace dsv32 {
namespace {

std::vector<IndexEntry> all_entries(CacheDirectory& cache) {
  std::vector<IndexEntry> entries;
  cache.with_index(CacheDirectory::Access::read, [&](PrefixIndex& index) {
    entries = index.entries();
    return true;
  });
  return entries;
}

// Memory for one slab of a page of a segment.
class SlabBuffer {
 public:
  explicit SlabBuffer(const SegmentInfo& segment)
      : rows_(static_cast<size_t>(segment.layers_per_slab * segment.rows_page_bytes)),
        keys_(static_cast<size_t>(segment.layers_per_slab * segment.keys_page_bytes)) {
    for (int64_t layer = 0; layer < segment.layers_per_slab; ++layer)
      layers_.push_back(&rows_[static_cast<size_t>(layer * segment.rows_page_bytes)]);
  }
  PageTarget target(int64_t n_layers) {
    return {std::span(layers_).first(static_cast<size_t>(n_layers)), keys_.data()};
  }

 private:
  std::vector<uint8_t> rows_, keys_;
  std::vector<uint8_t*> layers_;
};

SegmentFault verify_segment(CacheDirectory& cache, const IndexEntry& entry) {
  const OwnedFd directory = cache.files().open_folder(entry.segment.fingerprint);
  if (!directory.is_open()) return SegmentFault::unreadable;
  SegmentFault fault = SegmentFault::none;
  const auto file =
      SegmentFile::open(cache.fs(), directory.get(), CacheFiles::segment_file(entry.name), fault);
  if (!file) return fault;
  if (file->info().chain != entry.segment.chain) return SegmentFault::damaged;
  const SegmentInfo& segment = file->info();
  SlabBuffer buffer(segment);
  for (int64_t slab = 0; slab < segment.n_slabs(); ++slab) {
    const PageTarget target = buffer.target(segment.n_layers_of(slab));
    for (int64_t page = 0; page < segment.n_pages && fault == SegmentFault::none; ++page)
      fault = file->read_pages(page, slab, {&target, 1});
  }
  return fault;
}

}  // namespace

std::vector<CachedModel> list_models(CacheDirectory& cache) {
  std::map<Hash256, CachedModel> by_fingerprint;
  for (const IndexEntry& entry : all_entries(cache)) {
    CachedModel& model = by_fingerprint[entry.segment.fingerprint];
    ++model.n_segments;
    model.n_pages += entry.segment.n_pages;
    model.n_tokens += entry.segment.n_pages * kPageTokens;
    model.n_bytes += entry.segment.file_bytes();
    model.n_hits += entry.use.n_hits;
  }
  std::vector<CachedModel> models;
  for (auto& [fingerprint, model] : by_fingerprint) {
    model.fingerprint = hex(fingerprint);
    models.push_back(model);
  }
  std::ranges::stable_sort(models, std::ranges::greater(), &CachedModel::n_bytes);
  return models;
}

std::vector<IndexEntry> list_segments(CacheDirectory& cache, const std::string& prefix) {
  std::vector<IndexEntry> entries = all_entries(cache);
  std::erase_if(entries,
                [&](const IndexEntry& entry) { return !hex(entry.segment.fingerprint).starts_with(prefix); });
  std::ranges::stable_sort(entries, {}, [](const IndexEntry& entry) { return entry.segment.first_page; });
  return entries;
}

Verification verify(CacheDirectory& cache) {
  Verification result;
  std::vector<IndexEntry> damaged;
  for (const IndexEntry& entry : all_entries(cache)) {
    SegmentFault fault = SegmentFault::unreadable;
    try {
      fault = verify_segment(cache, entry);
    } catch (const std::bad_alloc&) {  // its pages are larger than memory: not looked at
    }
    if (fault == SegmentFault::vanished) continue;  // evicted meanwhile
    ++result.n_segments;
    result.n_pages += entry.segment.n_pages;
    if (fault == SegmentFault::damaged) damaged.push_back(entry);
    if (fault != SegmentFault::none && fault != SegmentFault::damaged) ++result.n_unreadable;
  }
  result.n_damaged = static_cast<int64_t>(damaged.size());
  for (const IndexEntry& entry : damaged) cache.remove_file(entry);
  if (!damaged.empty()) cache.with_index(CacheDirectory::Access::write, [](PrefixIndex&) { return true; });
  return result;
}

uint64_t prune(CacheDirectory& cache, uint64_t max_bytes) {
  const uint64_t before = cache.files().used_bytes();
  cache.with_index(CacheDirectory::Access::write, [&](PrefixIndex& index) {
    cache.make_room(
        index, 0, [](const IndexEntry&) { return false; }, max_bytes);
    return true;
  });
  const uint64_t after = cache.files().used_bytes();
  return before > after ? before - after : 0;
}

}  // namespace dsv32
