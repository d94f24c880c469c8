#include "context/cache_part.h"

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

// A backend that works in host memory reads a prefill step's rows where they are, buffers or not.
void CachePart::begin_step(std::span<Timeline* const> timelines, Role role) {
  const bool has_buffers = !timelines.front()->is_resident();
  source_ = has_buffers && role == Role::decode   ? Source::slots
            : has_buffers && windows_.are_there() ? Source::windows
                                                  : Source::resident;
  view_.set(timelines, slots_);
  if (source_ == Source::windows) view_.set_windows(timelines, windows_.begin(timelines));
}

CacheView CachePart::enter(int64_t layer) {
  CacheView view;
  view.layout = plan_.layout;
  view.rows = rows_.layer(layer);
  view.key_pages = keys_.layer(layer);
  view.row_pages = view.resident_pages = view_.row_pages();
  view.key_page_ids = view_.key_pages();
  view.max_pages = plan_.context_pages();
  if (source_ == Source::resident) {
    view.resident = rows_.resident(layer);
  } else if (source_ == Source::windows) {
    view.resident = windows_.enter(layer);
    view.resident_pages = view_.window_pages();
  } else {
    view.slots = slots_.layer(layer);
    view.n_slots = plan_.n_slots();
    view.first_slots = view_.first_slots();
    view.buffers = view_.buffers(layer);
  }
  return view;
}

}  // namespace dsv32
