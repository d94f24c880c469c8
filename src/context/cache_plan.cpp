#include "context/cache_plan.h"

#include "context/topk_buffer.h"

namespace dsv32 {

uint64_t CachePlan::row_pool_bytes() const {
  return static_cast<uint64_t>(n_layers * n_row_pages() * kPageTokens * layout.row_bytes());
}

uint64_t CachePlan::resident_bytes() const { return is_apart && n_slots() == 0 ? row_pool_bytes() : 0; }

uint64_t CachePlan::key_pool_bytes() const {
  return static_cast<uint64_t>(n_layers * n_key_pages() * layout.key_page_bytes());
}

uint64_t CachePlan::buffer_bytes() const {
  return static_cast<uint64_t>(max_seqs * n_layers * n_slots() * (layout.row_bytes() + 2 * 4));
}

uint64_t CachePlan::window_bytes() const {
  return static_cast<uint64_t>(2 * window_pages() * kPageTokens * layout.row_bytes());
}

uint64_t CachePlan::table_bytes() const {
  const int64_t n_tables = window_pages() > 0 ? 3 : 2;
  const int64_t n_buffers = n_slots() > 0 ? n_layers * max_seqs : 0;
  return static_cast<uint64_t>(n_tables * max_seqs * context_pages()) * sizeof(int32_t) +
         static_cast<uint64_t>(max_seqs) * sizeof(int64_t) +
         static_cast<uint64_t>(n_buffers) * sizeof(TopkBuffer);
}

}  // namespace dsv32
