#include "prefix/cache_maintenance.h"

#include <algorithm>
#include <map>

#include "base/error.h"

namespace dsv32 {
namespace {

constexpr size_t kMostPath = 4096;

// Adds what is found of one file. Its pages are read into little memory, whatever its head says.
void verify_segment(CacheDirectory& cache, const std::string& folder_name, int folder,
                    const std::string& name, bool removes, Verification& found) {
  SegmentFault fault = SegmentFault::none;
  int64_t n_whole = 0;
  std::string reason;
  const auto file = SegmentFile::open(cache.fs(), folder, name, fault);
  if (file && (CacheFiles::name_of(file->info().fingerprint) != folder_name ||
               CacheFiles::segment_file(file->info().chain) != name)) {
    fault = SegmentFault::damaged;
    reason = "its tokens belong to another name";
  } else if (file) {
    fault = file->verify(n_whole);
    reason = format("page %lld of %lld has another checksum, or cannot be read", as_ll(n_whole + 1),
                    as_ll(file->info().n_pages));
  } else {
    reason = fault == SegmentFault::foreign ? "it is no file of this user"
                                            : "its head, its end or its length is wrong, or cannot be read";
  }
  if (fault == SegmentFault::vanished || fault == SegmentFault::newer) return;
  ++found.n_segments;
  found.n_pages += n_whole;
  if (fault == SegmentFault::unreadable) ++found.n_unreadable;
  if (fault != SegmentFault::damaged && fault != SegmentFault::foreign) return;
  const bool is_removed = removes && cache.can_write() && cache.free_name(folder, name);
  found.damaged.push_back({name, reason, is_removed});
}

}  // namespace

std::vector<CachedModel> list_models(CacheDirectory& cache) {
  std::map<Hash256, CachedModel> by_fingerprint;
  for (const CachedSegment& one : cache.segments(false)) {
    CachedModel& model = by_fingerprint[one.segment.fingerprint];
    ++model.n_segments;
    model.n_pages += one.segment.n_pages;
    model.n_bytes += one.segment.file_bytes();
    model.n_hits += one.use.n_hits;
    model.last_use = std::max(model.last_use, one.use.last_use);
  }
  std::vector<CachedModel> models;
  for (auto& [fingerprint, model] : by_fingerprint) {
    model.fingerprint = hex(fingerprint);
    const OwnedFd folder = cache.open_folder(fingerprint);
    if (folder.is_open()) model.path = cache.read_note(folder.get(), CacheFiles::kPathNote, kMostPath);
    models.push_back(model);
  }
  std::ranges::stable_sort(models, std::ranges::greater(), &CachedModel::n_bytes);
  return models;
}

std::vector<CachedSegment> list_segments(CacheDirectory& cache, const std::string& prefix) {
  std::vector<CachedSegment> segments;
  for (const std::string& folder : cache.folders())
    if (folder.starts_with(prefix.substr(0, folder.size())))
      std::ranges::move(cache.segments_of(folder, true, false), std::back_inserter(segments));
  std::erase_if(segments,
                [&](const CachedSegment& one) { return !hex(one.segment.fingerprint).starts_with(prefix); });
  std::ranges::stable_sort(segments, {}, [](const CachedSegment& one) { return one.segment.first_page; });
  return segments;
}

Verification verify(CacheDirectory& cache, bool removes) {
  Verification found;
  for (const std::string& name : cache.folders())
    if (const OwnedFd folder = cache.open_folder(name); folder.is_open())
      for (const std::string& segment : cache.segments_in(folder.get()))
        verify_segment(cache, name, folder.get(), segment, removes, found);
  return found;
}

Pruned prune(CacheDirectory& cache, uint64_t max_bytes) {
  const uint64_t before = cache.used_bytes();
  const bool had_turn = cache.in_turn([&] {
    cache.make_room(0, max_bytes);
    if (max_bytes == 0) cache.forget_models();
    return true;
  });
  const uint64_t after = cache.used_bytes();
  const bool is_small = after <= max_bytes || cache.segments(false).empty();
  return {before > after ? before - after : 0, had_turn && is_small};
}

}  // namespace dsv32
