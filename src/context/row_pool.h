// The latent rows of a run of layers in pinned host memory: all rows, and whatever is elsewhere is a copy.
//
// Layer-major: for each layer one contiguous array, cut into pages of kPageTokens tokens; page p means the
// same tokens in every layer. So the gathers of one layer touch a narrow range, and one table serves all
// layers. Which pages are whose is said elsewhere (LatentCache). Layers count from the model's first.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/backend.h"
#include "context/cache_plan.h"

namespace dsv32 {

class RowPool {
 public:
  RowPool() = default;
  // Of the layers [first_layer, first_layer + n_layers). Throws Error{memory}.
  RowPool(Backend& backend, const CachePlan& plan, int64_t first_layer, int64_t n_layers);

  // The layer's host array, [n_pages, kPageTokens, row_bytes].
  uint8_t* layer(int64_t layer) const { return rows_[index(layer)].data(); }
  // A page's rows of one layer, [kPageTokens, row_bytes], 4096-aligned with V3.2's sizes. Any thread may ask.
  uint8_t* page(int32_t row_page, int64_t layer) const { return this->layer(layer) + row_page * page_bytes_; }

 private:
  size_t index(int64_t layer) const { return static_cast<size_t>(layer - first_layer_); }

  int64_t first_layer_ = 0, page_bytes_ = 0;
  std::vector<Buffer<uint8_t>> rows_;  // [n_layers]
};

}  // namespace dsv32
