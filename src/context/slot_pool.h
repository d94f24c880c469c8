// Where a run of layers reads rows on the device: slots in pages of kPageTokens, and the LRU of buffers.
//
// A timeline that has a slot for each of its rows is resident: the row of position p lies in its slot p. A
// longer one has a top-k buffer in its slots. Slots are allocated once; who has which pages of them is said
// elsewhere (LatentCache). Without buffers they are a copy of the row pool, page for page, and on a backend
// that works in host memory there are none: the row pool serves. Layers count from the model's first.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "context/cache_plan.h"
#include "context/row_pool.h"
#include "context/timeline.h"
#include "context/topk_buffer.h"

namespace dsv32 {

class SlotPool {
 public:
  SlotPool() = default;
  // Of the layers [first_layer, first_layer + n_layers). Throws Error{memory}.
  SlotPool(Backend& backend, const CachePlan& plan, int64_t first_layer, int64_t n_layers);

  // The layer's slots, [n_pages, kPageTokens, row_bytes]; null where there are none.
  uint8_t* layer(int64_t layer) const { return slots_[static_cast<size_t>(layer - first_layer_)].data(); }
  // The LRU of a timeline's slots of one layer, on the device; of a resident one without slots.
  TopkBuffer buffer(const Timeline& timeline, int64_t layer) const;

  // Nothing is in the timeline's buffer.
  void reset(const Timeline& timeline);
  // The rows of a resident timeline come from the pool, as all work so far will have left them.
  void place(const Timeline& timeline, const RowPool& rows);
  // Without buffers: these pages of rows, which the host wrote, become what the device sees.
  void publish(std::span<const PoolPage> pages, const RowPool& rows);

 private:
  int32_t* state(int64_t share, int64_t layer) const;

  Backend* backend_ = nullptr;
  int64_t first_layer_ = 0, page_bytes_ = 0, most_slots_ = 0;  // of a buffer
  bool is_copy_ = false;                                       // of the row pool
  std::vector<Buffer<uint8_t>> slots_;                         // [n_layers]
  Buffer<int32_t> states_;  // [max_seqs, n_layers, 2, most_slots] of each buffer: slot_pos, order
};

}  // namespace dsv32
