// The index keys and the rows' scales of a run of layers, in pages on the device.
//
// Layer-major, like the rows, with page numbers of their own: the two pools are of two memories. Layers count
// from the model's first.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "context/cache_plan.h"
#include "context/page_pool.h"

namespace dsv32 {

class KeyPool {
 public:
  KeyPool() = default;
  // Of the layers [first_layer, first_layer + n_layers). Throws Error{memory}.
  KeyPool(Backend& backend, const CachePlan& plan, int64_t first_layer, int64_t n_layers);

  // The layer's array, [n_pages, key_page_bytes].
  uint8_t* layer(int64_t layer) const { return keys_[static_cast<size_t>(layer - first_layer_)].data(); }

  // This pool's layers of each page's keys [model's n_layers, key_page_bytes], to and from the host.
  // download() waits for all work.
  void download(std::span<const PoolPage> pages, std::span<std::vector<uint8_t>> keys);
  void upload(std::span<const PoolPage> pages, std::span<const std::vector<uint8_t>> keys);

 private:
  uint8_t* page(const PoolPage& page, int64_t layer) const {
    return this->layer(layer) + page.key * page_bytes_;
  }

  Backend* backend_ = nullptr;
  int64_t first_layer_ = 0, page_bytes_ = 0;
  std::vector<Buffer<uint8_t>> keys_;  // [n_layers]
};

}  // namespace dsv32
