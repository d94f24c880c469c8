#include "context/segment_registry.h"

#include <algorithm>
#include <utility>

namespace dsv32 {
namespace {

constexpr size_t kMaxOpenFiles = 64;

}  // namespace

int64_t SegmentRegistry::add(const IndexEntry& entry) {
  const std::lock_guard guard(mutex_);
  const auto [place, is_new] = ids_.insert({entry.name, next_id_});
  if (is_new) known_[next_id_++].entry = entry;
  return place->second;
}

std::optional<IndexEntry> SegmentRegistry::find(int64_t id) const {
  const std::lock_guard guard(mutex_);
  const auto known = known_.find(id);
  if (known == known_.end()) return std::nullopt;
  return known->second.entry;
}

std::optional<IndexEntry> SegmentRegistry::forget(int64_t id) {
  const std::lock_guard guard(mutex_);
  const auto known = known_.find(id);
  if (known == known_.end()) return std::nullopt;
  IndexEntry entry = std::move(known->second.entry);
  gone_.insert(entry.name);
  ids_.erase(entry.name);
  known_.erase(known);
  std::erase(open_, id);
  return entry;
}

bool SegmentRegistry::is_gone(const std::string& name) const {
  const std::lock_guard guard(mutex_);
  return gone_.contains(name);
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
  known->second.file = std::move(file);
  open_.push_back(id);
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
  for (const int64_t id : ids) {
    const auto known = known_.find(id);
    if (known == known_.end()) continue;
    ++known->second.use.n_hits;
    known->second.use.order = ++n_uses_;
  }
}

std::vector<SegmentUse> SegmentRegistry::take_uses() {
  const std::lock_guard guard(mutex_);
  std::vector<SegmentUse> uses;
  for (auto& [id, known] : known_) {
    if (known.use.n_hits == 0) continue;
    uses.push_back(std::exchange(known.use, {}));
    uses.back().chain = known.entry.segment.chain;
  }
  std::ranges::sort(uses, {}, &SegmentUse::order);
  return uses;
}

bool SegmentRegistry::has_uses() const {
  const std::lock_guard guard(mutex_);
  return std::ranges::any_of(known_, [](const auto& known) { return known.second.use.n_hits > 0; });
}

void SegmentRegistry::change_pins(std::span<const int64_t> ids, int64_t change) {
  const std::lock_guard guard(mutex_);
  for (const int64_t id : ids)
    if (const auto known = known_.find(id); known != known_.end()) known->second.n_pins += change;
}

bool SegmentRegistry::is_pinned(const std::string& name) const {
  const std::lock_guard guard(mutex_);
  const auto id = ids_.find(name);
  return id != ids_.end() && known_.at(id->second).n_pins > 0;
}

}  // namespace dsv32
