// The rows, keys and slots of one stage, and a step's view of them.
//
// All rows lie in pinned host memory; the device reads copies in slots. A sequence with a slot for each of
// its rows is resident: the row of position p lies in its slot p. A longer sequence uses its slots as a top-k
// buffer. Without buffers the slots are a copy of the row pool, page for page; a backend that works in host
// memory then has no slots and reads the row pool. In prefill of a sequence that is not resident, the next
// layer's rows are streamed into one of two windows while the step reads the other.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "backend/topk_buffer.h"
#include "context/cache_plan.h"
#include "context/cached_sequence.h"

namespace dsv32 {

// Pages of one kind for consecutive layers. Each layer has one contiguous array of pages; page p means the
// same tokens in every layer. So the gathers of one layer touch a narrow range, and one page table serves all
// layers. Layer numbers are the model's.
class LayerPool {
 public:
  // For the layers [first_layer, end_layer). Throws Error{memory} naming `what`.
  LayerPool(Backend& backend, Place place, int64_t first_layer, int64_t end_layer, int64_t n_pages,
            int64_t page_bytes, const char* what)
      : first_layer_(first_layer), page_bytes_(page_bytes) {
    for (int64_t layer = first_layer; layer < end_layer; ++layer)
      layers_.emplace_back(backend, place, n_pages * page_bytes, what);
  }

  int64_t page_bytes() const { return page_bytes_; }
  // The layer's array, [n_pages, page_bytes]; null if there are no pages. Any thread may call this.
  uint8_t* layer(int64_t layer) const { return layers_[static_cast<size_t>(layer - first_layer_)].data(); }
  uint8_t* page(int32_t page, int64_t layer) const { return this->layer(layer) + page * page_bytes_; }

 private:
  int64_t first_layer_, page_bytes_;
  std::vector<Buffer<uint8_t>> layers_;
};

// A table on the device: lines of equal width, one for each token of a decode step or for each layer. A copy
// on the host shows which part of a line has changed; only that is uploaded: from one decode step to the next
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
  // Sets the first values of the line; the values behind them are not read.
  void set_line(int64_t line, std::span<const T> values);

 private:
  Backend& backend_;
  int64_t width_;
  Buffer<T> buffer_;
  std::vector<T> uploaded_;
};

class StageCache {
 public:
  // For the layers [first_layer, end_layer). first_member: of the team, whose rows this one shares; or null.
  // Throws Error{memory}.
  StageCache(Backend& backend, const CachePlan& plan, int64_t first_layer, int64_t end_layer,
             StageCache* first_member = nullptr);
  StageCache(const StageCache&) = delete;
  StageCache& operator=(const StageCache&) = delete;

  int64_t first_layer() const { return first_layer_; }
  int64_t end_layer() const { return end_layer_; }
  const CachePlan& plan() const { return plan_; }
  const LayerPool& rows() const {
    return first_member_ ? first_member_->rows_ : rows_;
  }  // pages [kPageTokens, row_bytes]
  const LayerPool& keys() const { return keys_; }

  // Takes the sequences of a step, in the order of its `seq` numbers: in decode that of each token; in
  // prefill there is one sequence, which held n_held tokens before the step and gets n_new. The step enters
  // no layer before `first`.
  void begin_step(std::span<CachedSequence* const> sequences, int64_t n_held, int64_t n_new, Role role,
                  int64_t first);
  // Whether the current step looks up rows in top-k buffers.
  bool has_buffers() const { return has_buffers_; }
  // The view of one layer for that step's operations, valid until the next begin_step(). Enter layers in
  // order.
  CacheView enter(int64_t layer);
  // In a team the view for storing the step's tokens: the first member alone writes rows to the pool, a
  // prompt's by save_rows() after storing them.
  CacheView storing(const CacheView& view) const;
  void save_rows(const CacheView& view);

  // Copy this stage's layers of each page's keys [the model's n_layers, key_page_bytes] to and from the host.
  // download_keys() waits for all work; of a team the first member copies, and the others only wait.
  void download_keys(std::span<const PoolPage> pages, std::span<std::vector<uint8_t>> keys);
  void upload_keys(std::span<const PoolPage> pages, std::span<const std::vector<uint8_t>> keys);
  // Without buffers: copies these pages of rows, which the host wrote, to the device's slots.
  void publish_rows(std::span<const PoolPage> pages);
  // Fills the slots of a resident sequence with its rows from the pool, after all work enqueued so far.
  void fill_slots(const CachedSequence& sequence);
  // Empties the sequence's buffer.
  void reset_buffer(const CachedSequence& sequence);

 private:
  // Consecutive rows of the pool, and their place in a window.
  struct Run {
    int64_t from_row, to_row, n_rows;
  };
  void begin_windows(const CachedSequence& sequence, int64_t n_held);
  uint8_t* pinned_rows(int64_t layer) const;
  void stream(int64_t layer);
  int32_t* state(int64_t sequence, int64_t layer) const;

  Backend& backend_;
  StageCache* const first_member_;
  CachePlan plan_;
  int64_t first_layer_, end_layer_;
  int64_t row_bytes_, most_slots_;  // most_slots_: of a buffer
  LayerPool rows_, keys_, slots_;
  Buffer<int32_t> states_;  // [max_seqs, n_layers, 2, most_slots]: each buffer's slot_pos and order
  Buffer<uint8_t> windows_[2];
  std::vector<Run> runs_;  // the same in every layer
  // A prompt's step: its sequence, and the positions of its tokens.
  const CachedSequence* prompt_ = nullptr;
  int64_t prompt_begin_ = 0, prompt_end_ = 0;
  std::vector<RowCopy> copies_;
  Table<int32_t> page_table_, slot_table_;                            // [max_step_tokens, context_pages]
  Table<TopkBuffer> buffer_table_;                                    // [n_layers, max_step_tokens]
  enum class Source { rows, slots, windows } source_ = Source::rows;  // where the current step reads rows
  bool has_buffers_ = false;
};

}  // namespace dsv32
