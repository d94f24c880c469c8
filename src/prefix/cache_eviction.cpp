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
// an orphan, as is everything behind it, and goes first.
class Forest {
 public:
  Forest(std::vector<CachedSegment> segments, EvictionPolicy policy)
      : segments_(std::move(segments)), policy_(policy), nodes_(segments_.size()) {
    std::ranges::sort(segments_, {}, [](const CachedSegment& one) { return one.segment.first_page; });
    std::map<Hash256, Node*> by_chain;
    for (size_t i = 0; i < nodes_.size(); ++i) {
      const SegmentHead& segment = segments_[i].segment;
      const auto parent = by_chain.find(segment.parent);
      Node* const above = parent == by_chain.end() ? nullptr : parent->second;
      if (above) ++above->n_children;
      nodes_[i] = {&segments_[i], above, 0, above ? above->is_orphan : segment.first_page > 0};
      by_chain[segment.chain] = &nodes_[i];
    }
    for (Node& node : nodes_) add_if_leaf(&node);
  }

  // The leaf to go next, or null; it is taken out, whether or not the caller removes it.
  const SegmentHead* take_leaf() {
    if (leaves_.empty()) return nullptr;
    taken_ = std::get<Node*>(*leaves_.begin());
    leaves_.erase(leaves_.begin());
    return &taken_->segment->segment;
  }

  // The leaf taken last is gone: its parent may be a leaf.
  void remove_taken() {
    if (taken_->parent) --taken_->parent->n_children, add_if_leaf(taken_->parent);
  }

 private:
  struct Node {
    const CachedSegment* segment;
    Node* parent;
    int64_t n_children;
    bool is_orphan;
  };

  void add_if_leaf(Node* node) {
    if (node->n_children == 0)
      leaves_.insert({!node->is_orphan, eviction_key(policy_, node->segment->use), node});
  }

  std::vector<CachedSegment> segments_;
  EvictionPolicy policy_;
  std::vector<Node> nodes_;  // [segments_]
  std::set<std::tuple<bool, EvictionKey, Node*>> leaves_;
  Node* taken_ = nullptr;
};

}  // namespace

bool CacheDirectory::make_room(uint64_t n_bytes, uint64_t max_bytes, const Hash256& kept) {
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
  while (const SegmentHead* leaf = fits() ? nullptr : forest.take_leaf()) {
    if (leaf->chain == kept) continue;
    const OwnedFd folder = files_.open_folder(leaf->fingerprint);
    if (!folder.is_open() || !files_.free_name(folder.get(), CacheFiles::segment_file(leaf->chain))) continue;
    freed += leaf->file_bytes();
    forest.remove_taken();
  }
  return fits();
}

}  // namespace dsv32
