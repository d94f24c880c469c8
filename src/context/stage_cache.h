// A stage's rows, keys and slots, of consecutive layers on one device, and how a step sees them.
//
// All rows lie in pinned host memory, and those elsewhere are copies. The device reads them in slots. A
// timeline with a slot for each of its rows is resident: the row of position p lies in its slot p. A longer
// one has a top-k buffer in its slots. Without buffers the slots are a copy of the row pool, page for page,
// and on a backend that works in host memory there are none: the row pool serves. In a prompt of a timeline
// that is not resident, one layer's rows are streamed into one of two windows while a step reads the other.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "context/cache_plan.h"
#include "context/timeline.h"
#include "context/topk_buffer.h"

namespace dsv32 {

// Pages of one kind for a run of layers. For each layer one contiguous array of pages; page p means the same
// tokens in every layer. So the gathers of one layer touch a narrow range, and one table serves all layers.
// Layers count from the model's first.
class LayerPool {
 public:
  // Of the layers [first_layer, end_layer). Throws Error{memory} naming `what`.
  LayerPool(Backend& backend, Place place, int64_t first_layer, int64_t end_layer, int64_t n_pages,
            int64_t page_bytes, const char* what)
      : first_layer_(first_layer), page_bytes_(page_bytes) {
    for (int64_t layer = first_layer; layer < end_layer; ++layer)
      layers_.emplace_back(backend, place, n_pages * page_bytes, what);
  }

  int64_t page_bytes() const { return page_bytes_; }
  // The layer's array, [n_pages, page_bytes]; null where there are no pages. Any thread may ask.
  uint8_t* layer(int64_t layer) const { return layers_[static_cast<size_t>(layer - first_layer_)].data(); }
  uint8_t* page(int32_t page, int64_t layer) const { return this->layer(layer) + page * page_bytes_; }

 private:
  int64_t first_layer_, page_bytes_;
  std::vector<Buffer<uint8_t>> layers_;
};

// Lines of equal width on the device, one for each timeline of a step or for each layer. It is kept on the
// host too, and only what has changed of a line is uploaded: from one decode step to the next that is
// nothing, or one page.
template <typename T>
class Table {
 public:
  Table(Backend& backend, int64_t n_lines, int64_t width)
      : backend_(backend),
        width_(width),
        buffer_(backend, Place::device, n_lines * width, "the page tables"),
        uploaded_(static_cast<size_t>(n_lines * width)) {}
  const T* line(int64_t i) const { return buffer_.data() + i * width_; }
  // The line begins with these values; what it has behind them does not matter.
  void set_line(int64_t line, std::span<const T> values);

 private:
  Backend& backend_;
  int64_t width_;
  Buffer<T> buffer_;
  std::vector<T> uploaded_;
};

class StageCache {
 public:
  // Of the layers [first_layer, end_layer). Throws Error{memory}.
  StageCache(Backend& backend, const CachePlan& plan, int64_t first_layer, int64_t end_layer);
  StageCache(const StageCache&) = delete;
  StageCache& operator=(const StageCache&) = delete;

  int64_t first_layer() const { return first_layer_; }
  int64_t end_layer() const { return end_layer_; }
  int64_t max_seqs() const { return plan_.max_seqs; }
  const LayerPool& rows() const { return rows_; }  // pages [kPageTokens, row_bytes]
  const LayerPool& keys() const { return keys_; }

  // The timelines of a step, in the order of its `seq` numbers. In a decode step each has one token; a
  // prompt's has one timeline, which held so many tokens before it.
  void begin_step(std::span<Timeline* const> timelines, int64_t n_held, Role role);
  // The step that runs looks rows up in top-k buffers.
  bool has_buffers() const { return has_buffers_; }
  // One layer as the operations of that step see it; valid until the next begin_step(). Layers are entered in
  // order.
  CacheView enter(int64_t layer);

  // The stage's layers of each page's keys [model's n_layers, key_page_bytes], to and from the host.
  // download_keys() waits for all work.
  void download_keys(std::span<const PoolPage> pages, std::span<std::vector<uint8_t>> keys);
  void upload_keys(std::span<const PoolPage> pages, std::span<const std::vector<uint8_t>> keys);
  // Without buffers: these pages of rows, which the host wrote, become what the device sees.
  void publish_rows(std::span<const PoolPage> pages);
  // The slots of a resident timeline get its rows from the pool, as all work so far will have left them.
  void fill_slots(const Timeline& timeline);
  // Nothing is in the timeline's buffer.
  void reset_buffer(const Timeline& timeline);

 private:
  // Rows of the pool that follow one another, and where they go in a window.
  struct Run {
    int64_t from_row, to_row, n_rows;
  };
  void begin_windows(const Timeline& timeline, int64_t n_held);
  void stream(int64_t layer);
  int32_t* state(int64_t share, int64_t layer) const;

  Backend& backend_;
  CachePlan plan_;
  int64_t first_layer_, end_layer_;
  int64_t row_bytes_, most_slots_;  // of a buffer
  LayerPool rows_, keys_, slots_;
  Buffer<int32_t> states_;  // [max_seqs, n_layers, 2, most_slots] of each buffer: slot_pos, order
  Buffer<uint8_t> windows_[2];
  std::vector<Run> runs_;  // the same in every layer
  std::vector<StreamRows::Copy> copies_;
  Table<int32_t> row_table_, key_table_, slot_table_;                 // [max_seqs, context_pages]
  Table<TopkBuffer> buffer_table_;                                    // [n_layers, max_seqs]
  enum class Source { rows, slots, windows } source_ = Source::rows;  // where the step that runs reads rows
  bool has_buffers_ = false;
};

}  // namespace dsv32
