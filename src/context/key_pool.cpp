#include "context/key_pool.h"

#include <cstring>

#include "context/page_runs.h"

namespace dsv32 {

KeyPool::KeyPool(Backend& backend, const CachePlan& plan, int64_t first_layer, int64_t n_layers)
    : backend_(&backend), first_layer_(first_layer), page_bytes_(plan.layout.key_page_bytes()) {
  for (int64_t i = 0; i < n_layers; ++i)
    keys_.emplace_back(backend, Place::device, plan.n_key_pages() * page_bytes_, "the index keys");
}

void KeyPool::download(std::span<const PoolPage> pages, std::span<std::vector<uint8_t>> keys) {
  const auto n_bytes = static_cast<size_t>(page_bytes_);
  std::vector<uint8_t> run(pages.size() * n_bytes);
  for (int64_t layer = first_layer_; layer < first_layer_ + std::ssize(keys_); ++layer)
    for_page_runs(pages, &PoolPage::key, [&](size_t begin, size_t end) {
      backend_->download(run.data(), page(pages[begin], layer), (end - begin) * n_bytes);
      for (size_t i = begin; i < end; ++i)
        std::memcpy(keys[i].data() + static_cast<size_t>(layer) * n_bytes, run.data() + (i - begin) * n_bytes,
                    n_bytes);
    });
  backend_->download(nullptr, nullptr, 0);  // also of a model without keys
}

void KeyPool::upload(std::span<const PoolPage> pages, std::span<const std::vector<uint8_t>> keys) {
  const auto n_bytes = static_cast<size_t>(page_bytes_);
  std::vector<uint8_t> run(pages.size() * n_bytes);
  for (int64_t layer = first_layer_; layer < first_layer_ + std::ssize(keys_); ++layer)
    for_page_runs(pages, &PoolPage::key, [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i)
        std::memcpy(run.data() + (i - begin) * n_bytes, keys[i].data() + static_cast<size_t>(layer) * n_bytes,
                    n_bytes);
      backend_->upload(page(pages[begin], layer), run.data(), (end - begin) * n_bytes);
    });
}

}  // namespace dsv32
