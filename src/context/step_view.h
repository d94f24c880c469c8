// The tables of one step on one device: for each of its timelines the pages of rows, keys and slots, and the
// top-k buffer.
//
// [timelines of a step, pages of a context], never the whole pool's. A table is kept on the host too, and
// only what has changed of a timeline's line is uploaded: from one decode step to the next that is nothing,
// or one page.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "context/cache_plan.h"
#include "context/slot_pool.h"
#include "context/timeline.h"

namespace dsv32 {

// Lines of equal width on the device.
template <typename T>
class Table {
 public:
  Table() = default;
  Table(Backend& backend, int64_t n_lines, int64_t width)
      : backend_(&backend),
        width_(width),
        buffer_(backend, Place::device, n_lines * width, "the page tables"),
        uploaded_(static_cast<size_t>(n_lines * width)) {}
  const T* data() const { return buffer_.data(); }
  // The line begins with these values; what it has behind them does not matter.
  void set_line(int64_t line, std::span<const T> values);

 private:
  Backend* backend_ = nullptr;
  int64_t width_ = 0;
  Buffer<T> buffer_;
  std::vector<T> uploaded_;
};

class StepView {
 public:
  StepView() = default;
  // For the layers [first_layer, first_layer + n_layers). Throws Error{memory}.
  StepView(Backend& backend, const CachePlan& plan, int64_t first_layer, int64_t n_layers);

  // The timelines of a step, in the order of its `seq` numbers.
  void set(std::span<Timeline* const> timelines);
  // Where their slots are, and the buffers of those that have one.
  void set_slots(std::span<Timeline* const> timelines, const SlotPool& slots);
  // In place of slots: where each timeline's pages begin in a window.
  void set_windows(std::span<Timeline* const> timelines, std::span<const int32_t> first_pages);

  const int32_t* row_pages() const { return row_pages_.data(); }  // [max_seqs, context_pages]
  const int32_t* key_pages() const { return key_pages_.data(); }  // [max_seqs, context_pages]
  // [max_seqs, context_pages] of the pool of slots, or of the windows.
  const int32_t* slot_pages() const { return slot_pages_.data(); }
  // [max_seqs] the LRU of each timeline's slots of this layer.
  const TopkBuffer* buffers(int64_t layer) const {
    return buffers_.data() + (layer - first_layer_) * max_seqs_;
  }

 private:
  int64_t first_layer_ = 0, n_layers_ = 0, max_seqs_ = 0;
  Table<int32_t> row_pages_, key_pages_, slot_pages_;
  Table<TopkBuffer> buffers_;  // a line a layer
};

}  // namespace dsv32
