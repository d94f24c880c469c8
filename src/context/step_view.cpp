#include "context/step_view.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace dsv32 {
namespace {

template <typename T>
bool is_same(const T& a, const T& b) {
  return std::memcmp(&a, &b, sizeof a) == 0;
}

}  // namespace

template <typename T>
void Table<T>::set_line(int64_t line, std::span<const T> values) {
  T* known = uploaded_.data() + line * width_;
  size_t begin = 0, end = values.size();
  while (begin < end && is_same(known[begin], values[begin])) ++begin;
  while (end > begin && is_same(known[end - 1], values[end - 1])) --end;
  if (begin == end) return;
  std::memcpy(known + begin, values.data() + begin, (end - begin) * sizeof(T));
  backend_->upload(buffer_.data() + line * width_ + static_cast<int64_t>(begin), known + begin,
                   (end - begin) * sizeof(T));
}

StepView::StepView(Backend& backend, const CachePlan& plan, int64_t first_layer, int64_t n_layers)
    : first_layer_(first_layer),
      n_layers_(n_layers),
      max_seqs_(plan.max_seqs),
      row_pages_(backend, max_seqs_, plan.context_pages()),
      key_pages_(backend, max_seqs_, plan.context_pages()),
      slot_pages_(backend, plan.has_buffers() ? max_seqs_ : 0, plan.context_pages()),
      buffers_(backend, plan.has_buffers() ? n_layers : 0, max_seqs_) {}

void StepView::set(std::span<Timeline* const> timelines) {
  for (size_t i = 0; i < timelines.size(); ++i) {
    row_pages_.set_line(static_cast<int64_t>(i), timelines[i]->row_pages());
    key_pages_.set_line(static_cast<int64_t>(i), timelines[i]->key_pages());
  }
}

void StepView::set_slots(std::span<Timeline* const> timelines, const SlotPool& slots) {
  for (size_t i = 0; i < timelines.size(); ++i)
    slot_pages_.set_line(static_cast<int64_t>(i), timelines[i]->slot_pages());
  if (std::ranges::all_of(timelines, &Timeline::is_resident)) return;
  for (int64_t layer = 0; layer < n_layers_; ++layer) {
    std::vector<TopkBuffer> buffers;
    for (const Timeline* timeline : timelines)
      buffers.push_back(slots.buffer(*timeline, first_layer_ + layer));
    buffers_.set_line(layer, buffers);
  }
}

void StepView::set_windows(std::span<Timeline* const> timelines, std::span<const int32_t> first_pages) {
  for (size_t i = 0; i < timelines.size(); ++i) {
    std::vector<int32_t> pages(timelines[i]->row_pages().size());
    std::iota(pages.begin(), pages.end(), first_pages[i]);
    slot_pages_.set_line(static_cast<int64_t>(i), pages);
  }
}

}  // namespace dsv32
