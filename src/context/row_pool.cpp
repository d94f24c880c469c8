#include "context/row_pool.h"

namespace dsv32 {

RowPool::RowPool(Backend& backend, const CachePlan& plan, int64_t first_layer, int64_t n_layers)
    : first_layer_(first_layer), page_bytes_(kPageTokens * plan.layout.row_bytes()) {
  for (int64_t i = 0; i < n_layers; ++i)
    rows_.emplace_back(backend, Place::host, plan.n_row_pages() * page_bytes_, "the latent rows");
}

}  // namespace dsv32
