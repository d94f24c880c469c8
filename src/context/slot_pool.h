// The top-k buffers of a run of layers: slots on the device and each buffer's LRU, allocated once and handed
// out.
//
// A share is one timeline's slots of every layer, known by its number. Where every row is resident there are
// none. Layers count from the model's first.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/backend.h"
#include "context/cache_plan.h"
#include "context/topk_buffer.h"

namespace dsv32 {

class SlotPool {
 public:
  SlotPool() = default;
  // Shares for max_seqs timelines, of the layers [first_layer, first_layer + n_layers). Throws Error{memory}.
  SlotPool(Backend& backend, const CachePlan& plan, int64_t first_layer, int64_t n_layers);

  // The layer's slots, [max_seqs, n_slots, row_bytes]; null where there are none.
  uint8_t* layer(int64_t layer) const { return slots_[static_cast<size_t>(layer - first_layer_)].data(); }
  int64_t first_slot(int64_t share) const { return share * n_slots_; }
  // The LRU of a share's slots of one layer, on the device.
  TopkBuffer buffer(int64_t share, int64_t layer) const;
  // All of a share's slots are empty.
  void reset(int64_t share);

 private:
  int32_t* state(int64_t share, int64_t layer) const;

  Backend* backend_ = nullptr;
  int64_t first_layer_ = 0, n_slots_ = 0;
  std::vector<Buffer<uint8_t>> slots_;  // [n_layers]
  Buffer<int32_t> states_;              // [max_seqs, n_layers, 2, n_slots] of each buffer: slot_pos, order
};

}  // namespace dsv32
