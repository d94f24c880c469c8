#include "context/cache_part.h"

#include <algorithm>

namespace dsv32 {

CachePart::CachePart(Backend& backend, const CachePlan& plan, int64_t first_layer, int64_t end_layer)
    : plan_(plan),
      first_layer_(first_layer),
      end_layer_(end_layer),
      rows_(backend, plan, first_layer, end_layer - first_layer),
      keys_(backend, plan, first_layer, end_layer - first_layer),
      slots_(backend, plan, first_layer, end_layer - first_layer),
      windows_(backend, plan, rows_, first_layer, end_layer),
      view_(backend, plan, first_layer, end_layer - first_layer) {}

// Decode reads slots. Prompts do where their timelines are resident; else the rows of all of them are
// streamed through windows, or read where they are.
void CachePart::begin_step(std::span<Timeline* const> timelines, std::span<const int64_t> n_held, Role role) {
  const auto n_long = std::ranges::count_if(timelines, [](const Timeline* t) { return !t->is_resident(); });
  const bool reads_slots = role == Role::decode || n_long == 0;
  has_buffers_ = reads_slots && n_long > 0;
  source_ = !reads_slots && windows_.are_there()      ? Source::windows
            : reads_slots && plan_.n_slot_pages() > 0 ? Source::slots
                                                      : Source::rows;
  view_.set(timelines);
  if (source_ == Source::slots) view_.set_slots(timelines, slots_);
  if (source_ == Source::windows) view_.set_windows(timelines, windows_.begin(timelines, n_held));
  passed_by_.clear();
  for (const Timeline* timeline : timelines)
    if (!reads_slots && timeline->is_resident()) passed_by_.push_back(timeline);
}

void CachePart::end_step() {
  for (const Timeline* timeline : passed_by_) slots_.place(*timeline, rows_);
}

CacheView CachePart::enter(int64_t layer) {
  CacheView view;
  view.layout = plan_.layout;
  view.rows = rows_.layer(layer);
  view.key_pages = keys_.layer(layer);
  view.row_pages = view.slot_pages = view_.row_pages();
  view.key_page_ids = view_.key_pages();
  view.max_pages = plan_.context_pages();
  view.slots = source_ == Source::rows    ? rows_.layer(layer)
               : source_ == Source::slots ? slots_.layer(layer)
                                          : windows_.enter(layer);
  if (source_ != Source::rows && plan_.has_buffers()) view.slot_pages = view_.slot_pages();
  if (has_buffers_) {
    view.buffers = view_.buffers(layer);
    view.most_slots = plan_.buffer_pages() * kPageTokens;
  }
  return view;
}

}  // namespace dsv32
