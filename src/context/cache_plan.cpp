#include "context/cache_plan.h"

#include "context/topk_buffer.h"

namespace dsv32 {

uint64_t CachePlan::row_pool_bytes() const {
  return static_cast<uint64_t>(n_layers * n_row_pages() * kPageTokens * layout.row_bytes());
}

uint64_t CachePlan::key_pool_bytes() const {
  return static_cast<uint64_t>(n_layers * n_key_pages() * layout.key_page_bytes());
}

uint64_t CachePlan::slot_bytes() const {
  const int64_t n_entries = max_seqs * buffer_pages() * kPageTokens;  // of slot_pos, and of order
  return static_cast<uint64_t>(n_layers) *
         (static_cast<uint64_t>(n_slot_pages() * kPageTokens * layout.row_bytes()) +
          static_cast<uint64_t>(2 * n_entries) * sizeof(int32_t));
}

uint64_t CachePlan::window_bytes() const {
  return static_cast<uint64_t>(2 * window_pages() * kPageTokens * layout.row_bytes());
}

uint64_t CachePlan::table_bytes() const {
  const int64_t n_tables = has_buffers() ? 3 : 2;
  const int64_t n_buffers = has_buffers() ? n_layers * max_seqs : 0;
  return static_cast<uint64_t>(n_tables * max_seqs * context_pages()) * sizeof(int32_t) +
         static_cast<uint64_t>(n_buffers) * sizeof(TopkBuffer);
}

}  // namespace dsv32
