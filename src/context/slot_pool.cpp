#include "context/slot_pool.h"

#include <algorithm>

#include "context/page_runs.h"

namespace dsv32 {

SlotPool::SlotPool(Backend& backend, const CachePlan& plan, int64_t first_layer, int64_t n_layers)
    : backend_(&backend),
      first_layer_(first_layer),
      page_bytes_(kPageTokens * plan.layout.row_bytes()),
      most_slots_(plan.buffer_pages() * kPageTokens),
      is_copy_(!plan.has_buffers() && plan.is_apart) {
  for (int64_t i = 0; i < n_layers; ++i)
    slots_.emplace_back(backend, Place::device, plan.n_slot_pages() * page_bytes_, "the slots of rows");
  states_ = {backend, Place::device, plan.max_seqs * n_layers * most_slots_ * 2, "the top-k buffers"};
}

int32_t* SlotPool::state(int64_t share, int64_t layer) const {
  return states_.data() + (share * std::ssize(slots_) + layer - first_layer_) * most_slots_ * 2;
}

TopkBuffer SlotPool::buffer(const Timeline& timeline, int64_t layer) const {
  if (timeline.is_resident()) return {};
  int32_t* state = this->state(timeline.share(), layer);
  return {static_cast<int32_t>(std::ssize(timeline.slot_pages()) * kPageTokens), state, state + most_slots_};
}

void SlotPool::reset(const Timeline& timeline) {
  const auto n_entries = static_cast<size_t>(most_slots_ * 2);
  std::vector<int32_t> fresh(slots_.size() * n_entries);
  for (size_t i = 0; i < slots_.size(); ++i) {
    int32_t* state = fresh.data() + i * n_entries;
    dsv32::reset(
        {static_cast<int32_t>(std::ssize(timeline.slot_pages()) * kPageTokens), state, state + most_slots_});
  }
  backend_->upload(state(timeline.share(), first_layer_), fresh.data(), fresh.size() * sizeof(int32_t));
}

void SlotPool::place(const Timeline& timeline, const RowPool& rows) {
  std::vector<StreamRows::Copy> copies;
  const std::vector<int32_t>& to = timeline.slot_pages();
  const std::vector<int32_t>& from = timeline.row_pages();
  for (size_t i = 0; i < slots_.size(); ++i)
    for (size_t begin = 0, end = 0; begin < to.size(); begin = end) {
      for (end = begin + 1; end < to.size() && to[end] == to[end - 1] + 1 && from[end] == from[end - 1] + 1;)
        ++end;
      copies.push_back({slots_[i].data() + to[begin] * page_bytes_,
                        rows.page(from[begin], first_layer_ + static_cast<int64_t>(i)),
                        (end - begin) * static_cast<size_t>(page_bytes_)});
    }
  backend_->stream_rows({copies.data(), std::ssize(copies)});
  backend_->stream_rows({});  // what comes now sees them
}

void SlotPool::publish(std::span<const PoolPage> pages, const RowPool& rows) {
  if (!is_copy_) return;
  for (size_t i = 0; i < slots_.size(); ++i)
    for_page_runs(pages, &PoolPage::row, [&](size_t begin, size_t end) {
      const int32_t first = pages[begin].row;
      backend_->upload(slots_[i].data() + first * page_bytes_,
                       rows.page(first, first_layer_ + static_cast<int64_t>(i)),
                       (end - begin) * static_cast<size_t>(page_bytes_));
    });
}

}  // namespace dsv32
