#include "prefix/segment_registry.h"

#include <utility>

namespace dsv32 {
namespace {

constexpr size_t kMaxOpenFiles = 64;

}  // namespace

int64_t SegmentRegistry::add(const SegmentHead& segment) {
  const std::lock_guard guard(mutex_);
  if (const auto known = ids_.find(segment.chain); known != ids_.end()) return known->second;
  known_[next_id_].segment = segment;
  ids_[segment.chain] = next_id_;
  return next_id_++;
}

std::optional<SegmentHead> SegmentRegistry::find(int64_t id) const {
  const std::lock_guard guard(mutex_);
  const auto known = known_.find(id);
  if (known == known_.end()) return std::nullopt;
  return known->second.segment;
}

bool SegmentRegistry::forget(int64_t id) {
  const std::lock_guard guard(mutex_);
  const auto known = known_.find(id);
  if (known == known_.end()) return false;
  ids_.erase(known->second.segment.chain);
  known_.erase(known);
  std::erase(open_, id);
  return true;
}

std::shared_ptr<const SegmentFile> SegmentRegistry::file(int64_t id) const {
  const std::lock_guard guard(mutex_);
  const auto known = known_.find(id);
  return known == known_.end() ? nullptr : known->second.file;
}

void SegmentRegistry::keep_open(int64_t id, std::shared_ptr<const SegmentFile> file) {
  const std::lock_guard guard(mutex_);
  const auto known = known_.find(id);
  if (known == known_.end() || known->second.file) return;
  open_.push_back(id);
  known->second.file = std::move(file);
  if (open_.size() <= kMaxOpenFiles) return;
  known_[open_.front()].file.reset();
  open_.erase(open_.begin());
}

void SegmentRegistry::close_files() {
  const std::lock_guard guard(mutex_);
  for (const int64_t id : open_) known_[id].file.reset();
  open_.clear();
}

void SegmentRegistry::record_use(std::span<const int64_t> ids) {
  const std::lock_guard guard(mutex_);
  for (const int64_t id : ids)
    if (const auto known = known_.find(id); known != known_.end())
      uses_.push_back(known->second.segment.chain);
}

std::vector<Hash256> SegmentRegistry::take_uses() {
  const std::lock_guard guard(mutex_);
  return std::exchange(uses_, {});
}

bool SegmentRegistry::has_uses() const {
  const std::lock_guard guard(mutex_);
  return !uses_.empty();
}

}  // namespace dsv32
