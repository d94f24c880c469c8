#include "context/step_view.h"

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
      has_slots_(plan.n_slots() > 0),
      row_pages_(backend, max_seqs_, plan.context_pages()),
      key_pages_(backend, max_seqs_, plan.context_pages()),
      window_pages_(backend, plan.window_pages() > 0 ? max_seqs_ : 0, plan.context_pages()),
      first_slots_(backend, 1, max_seqs_),
      buffers_(backend, has_slots_ ? n_layers : 0, max_seqs_) {}

void StepView::set(std::span<Timeline* const> timelines, const SlotPool& slots) {
  for (size_t i = 0; i < timelines.size(); ++i) {
    row_pages_.set_line(static_cast<int64_t>(i), timelines[i]->row_pages());
    key_pages_.set_line(static_cast<int64_t>(i), timelines[i]->key_pages());
  }
  if (!has_slots_) return;
  std::vector<int64_t> first_slots;
  for (const Timeline* timeline : timelines) first_slots.push_back(slots.first_slot(timeline->share()));
  first_slots_.set_line(0, first_slots);
  for (int64_t layer = 0; layer < n_layers_; ++layer) {
    std::vector<TopkBuffer> buffers;
    for (const Timeline* timeline : timelines)
      buffers.push_back(slots.buffer(timeline->share(), first_layer_ + layer));
    buffers_.set_line(layer, buffers);
  }
}

void StepView::set_windows(std::span<Timeline* const> timelines, std::span<const int32_t> first_pages) {
  for (size_t i = 0; i < timelines.size(); ++i) {
    std::vector<int32_t> pages(timelines[i]->row_pages().size());
    std::iota(pages.begin(), pages.end(), first_pages[i]);
    window_pages_.set_line(static_cast<int64_t>(i), pages);
  }
}

}  // namespace dsv32
