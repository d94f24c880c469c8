// Which segments leave when there is no room: leaves first, in the order of the policy, over all models at
// once.
#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "prefix/cache_directory.h"

namespace dsv32 {
namespace {

// All segments as a forest. A segment that continues tokens no longer on disk can be reached by nobody: it is
// an orphan, as is everything behind it.
class Forest {
 public:
  Forest(std::vector<CachedSegment> segments, EvictionPolicy policy)
      : segments_(std::move(segments)), policy_(policy) {
    std::ranges::sort(segments_, {}, [](const CachedSegment& one) { return one.segment.first_page; });
    nodes_.resize(segments_.size());
    for (size_t i = 0; i < segments_.size(); ++i) {
      const SegmentInfo& segment = segments_[i].segment;
      const auto parent = by_chain_.find(segment.parent);
      if (parent != by_chain_.end()) {
        nodes_[i].parent = static_cast<int64_t>(parent->second);
        ++nodes_[parent->second].n_children;
        nodes_[i].is_orphan = nodes_[parent->second].is_orphan;
      } else {
        nodes_[i].is_orphan = segment.first_page > 0;
      }
      by_chain_[segment.chain] = i;
    }
    for (size_t i = 0; i < segments_.size(); ++i)
      if (nodes_[i].n_children == 0) add_leaf(i);
  }

  // The leaf to go next, or null; it is taken out, whether or not the caller removes it.
  const SegmentInfo* take_leaf() {
    if (leaves_.empty()) return nullptr;
    taken_ = std::get<3>(*leaves_.begin());
    leaves_.erase(leaves_.begin());
    return &segments_[taken_].segment;
  }

  // The leaf taken last is gone: its parent may be a leaf.
  void remove_taken() {
    const int64_t parent = nodes_[taken_].parent;
    if (parent >= 0 && --nodes_[static_cast<size_t>(parent)].n_children == 0)
      add_leaf(static_cast<size_t>(parent));
  }

 private:
  struct Node {
    int64_t parent = -1;
    int64_t n_children = 0;
    bool is_orphan = false;
  };

  void add_leaf(size_t i) {
    // Of equals the deeper goes first, which tells prompts apart that were stored at one time.
    const CachedSegment& leaf = segments_[i];
    leaves_.insert({!nodes_[i].is_orphan, eviction_key(policy_, leaf.use), -leaf.segment.first_page, i});
  }

  std::vector<CachedSegment> segments_;
  EvictionPolicy policy_;
  std::vector<Node> nodes_;  // [segments_]
  std::map<Hash256, size_t> by_chain_;
  std::set<std::tuple<bool, EvictionKey, int64_t, size_t>> leaves_;
  size_t taken_ = 0;
};

}  // namespace

bool CacheDirectory::make_room(uint64_t n_bytes, const IsKept& is_kept, uint64_t max_bytes) {
  SpaceInfo space;
  const bool has_space = fs().space(files_.top(), space) == 0;
  const uint64_t used = files_.used_bytes();
  uint64_t freed = 0;
  const auto fits = [&] {
    const bool is_under_limit = used + n_bytes <= max_bytes + freed;
    return is_under_limit && (!has_space || space.free_bytes + freed >= min_free_bytes_ + n_bytes);
  };
  if (fits()) return true;
  if (n_bytes > max_bytes) return false;  // nothing is removed for what could never fit

  Forest forest(segments(true), policy_);
  while (const SegmentInfo* leaf = fits() ? nullptr : forest.take_leaf()) {
    if (is_kept(*leaf)) continue;
    const OwnedFd folder = files_.open_folder(leaf->fingerprint);
    if (!folder.is_open() || !files_.free_name(folder.get(), CacheFiles::segment_file(leaf->chain))) continue;
    freed += leaf->file_bytes();
    forest.remove_taken();
  }
  return fits();
}

}  // namespace dsv32
