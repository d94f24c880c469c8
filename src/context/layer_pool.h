// Pages of one kind for a run of layers: latent rows on the host, index keys or slots of rows on the device.
//
// For each layer one contiguous array of pages; page p means the same tokens in every layer. So the gathers
// of one layer touch a narrow range, and one table serves all layers. Layers count from the model's first.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/backend.h"

namespace dsv32 {

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

}  // namespace dsv32
