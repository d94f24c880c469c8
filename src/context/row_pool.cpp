#include "context/row_pool.h"

#include "context/page_runs.h"

namespace dsv32 {

RowPool::RowPool(Backend& backend, const CachePlan& plan, int64_t first_layer, int64_t n_layers)
    : backend_(&backend), first_layer_(first_layer), page_bytes_(kPageTokens * plan.layout.row_bytes()) {
  const int64_t n_bytes = plan.n_row_pages() * page_bytes_;
  for (int64_t i = 0; i < n_layers; ++i) {
    rows_.emplace_back(backend, Place::host, n_bytes, "the latent rows");
    copies_.emplace_back(backend, Place::device, plan.resident_bytes() > 0 ? n_bytes : 0,
                         "the resident latent rows");
  }
}

uint8_t* RowPool::resident(int64_t layer) const {
  return backend_->works_in_host_memory() ? this->layer(layer) : copies_[index(layer)].data();
}

void RowPool::publish(std::span<const PoolPage> pages) {
  for (size_t i = 0; i < copies_.size(); ++i) {
    if (copies_[i].n() == 0) continue;
    for_page_runs(pages, &PoolPage::row, [&](size_t begin, size_t end) {
      const int64_t at = pages[begin].row * page_bytes_;
      backend_->upload(copies_[i].data() + at, rows_[i].data() + at,
                       (end - begin) * static_cast<size_t>(page_bytes_));
    });
  }
}

}  // namespace dsv32
