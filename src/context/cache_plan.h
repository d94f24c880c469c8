// How much is remembered, and what that takes: the sizes that the cache is made with.
//
// The size of the pool and the length of a context are two numbers: the pool's pages are shared by all
// timelines and the prefix tree, a step's tables and windows need be no longer than one context.
#pragma once

#include <cstdint>

#include "backend/cache_layout.h"
#include "context/topk_buffer.h"

namespace dsv32 {

constexpr int64_t pages_for(int64_t n_tokens) { return (n_tokens + kPageTokens - 1) / kPageTokens; }

struct CachePlan {
  CacheLayout layout;
  bool is_apart = false;  // the device does not work in host memory
  int64_t n_layers = 0;
  int64_t pool_tokens = 0;  // of all timelines together
  int64_t key_tokens = 0;   // of those that are not suspended; 0: pool_tokens
  int64_t max_context = 0;  // of one timeline
  int64_t max_seqs = 1;
  int64_t buffer_rows = 0;  // capacity B of a top-k buffer; 0: every row is resident, no buffers
  int64_t slot_tokens = 0;  // slots of all buffers together; 0: those of max_seqs whole buffers

  // Of the two pools: of each timeline one page may be begun.
  int64_t n_row_pages() const { return pages_for(pool_tokens) + max_seqs - 1; }
  int64_t n_key_pages() const { return pages_for(key_tokens ? key_tokens : pool_tokens) + max_seqs - 1; }
  int64_t context_pages() const { return pages_for(max_context); }  // of a row of a step's tables
  // Most pages of a timeline whose rows are streamed.
  int64_t window_pages() const { return is_apart && buffer_rows > 0 ? context_pages() : 0; }
  CachePlan of_layers(int64_t n) const {  // the same of so many layers
    CachePlan plan = *this;
    plan.n_layers = n;
    return plan;
  }
  bool has_buffers() const { return buffer_rows > 0; }
  // Most pages of slots that one timeline has: its rows, if it is no longer, else its buffer.
  int64_t buffer_pages() const { return has_buffers() ? pages_for(buffer_rows + 1) : 0; }
  // Of all timelines: without buffers a copy of the rows, on a device that does not work where they are.
  int64_t n_slot_pages() const {
    if (!has_buffers()) return is_apart ? n_row_pages() : 0;
    return slot_tokens ? pages_for(slot_tokens) : max_seqs * buffer_pages();
  }

  uint64_t row_pool_bytes() const {  // host
    return static_cast<uint64_t>(n_layers * n_row_pages() * row_page_bytes());
  }
  uint64_t key_pool_bytes() const {  // device
    return static_cast<uint64_t>(n_layers * n_key_pages() * layout.key_page_bytes());
  }
  uint64_t slot_bytes() const {  // device: slots, and the LRU of buffers, two numbers for each slot
    const int64_t lru_bytes = 2 * max_seqs * buffer_pages() * kPageTokens * int64_t{sizeof(int32_t)};
    return static_cast<uint64_t>(n_layers * (n_slot_pages() * row_page_bytes() + lru_bytes));
  }
  uint64_t window_bytes() const {  // device: two layers' rows, when it is apart and there are buffers
    return static_cast<uint64_t>(2 * window_pages() * row_page_bytes());
  }
  uint64_t table_bytes() const {  // device: page tables, and the buffers of each timeline and layer
    const int64_t n_entries = (has_buffers() ? 3 : 2) * max_seqs * context_pages();
    const int64_t n_buffers = has_buffers() ? n_layers * max_seqs : 0;
    return static_cast<uint64_t>(n_entries) * sizeof(int32_t) +
           static_cast<uint64_t>(n_buffers) * sizeof(TopkBuffer);
  }

 private:
  int64_t row_page_bytes() const { return kPageTokens * layout.row_bytes(); }
};

}  // namespace dsv32
