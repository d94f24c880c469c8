// The size of the cache, in tokens and pages, and the bytes that it takes.
//
// Pool size and context length are two numbers: all sequences and the prefix tree share the pool's pages, but
// a step's tables and windows need hold only one context.
#pragma once

#include <algorithm>
#include <cstdint>

#include "backend/cache_layout.h"
#include "backend/topk_buffer.h"

namespace dsv32 {

constexpr int64_t pages_for(int64_t n_tokens) { return (n_tokens + kPageTokens - 1) / kPageTokens; }

struct CachePlan {
  CacheLayout layout;
  bool is_apart = false;  // the device has its own memory
  int64_t n_layers = 0;
  int64_t pool_tokens = 0;     // of all sequences together
  int64_t max_context = 0;     // of one sequence
  int64_t n_draft_layers = 0;  // of n_layers, the last: the block for drafts
  int64_t max_seqs = 1;
  int64_t n_guesses = 0;    // the most that a decode step verifies of a sequence
  int64_t buffer_rows = 0;  // capacity B of a top-k buffer; 0: every row is resident, no buffers
  int64_t slot_tokens = 0;  // slots of all buffers together; 0: enough for max_seqs whole buffers

  static constexpr int64_t kMostStepGuesses = 24;  // of all sequences in a decode step
  // The most tokens of a decode step.
  int64_t max_step_tokens() const { return max_seqs + std::min(max_seqs * n_guesses, kMostStepGuesses); }
  // Of rows and of keys. The last page of each sequence may be partly filled, hence max_seqs - 1 more.
  int64_t n_pages() const { return pages_for(pool_tokens) + max_seqs - 1; }
  int64_t context_pages() const { return pages_for(max_context); }  // of one line of a step's page tables
  // Pages of one window: the most that a sequence's streamed rows take.
  int64_t window_pages() const { return is_apart && buffer_rows > 0 ? context_pages() : 0; }
  CachePlan of_layers(int64_t n) const {  // the same plan with n layers
    CachePlan plan = *this;
    plan.n_layers = n;
    return plan;
  }
  bool has_buffers() const { return buffer_rows > 0; }
  // The most slot pages of one sequence: a short one has a slot for every row, a longer one a buffer.
  int64_t buffer_pages() const { return has_buffers() ? pages_for(buffer_rows + 1) : 0; }
  // Slot pages of all sequences. Without buffers the slots of a device with its own memory are a copy of the
  // row pool.
  int64_t n_slot_pages() const {
    if (!has_buffers()) return is_apart ? n_pages() : 0;
    return slot_tokens ? pages_for(slot_tokens) : max_seqs * buffer_pages();
  }

  uint64_t row_pool_bytes() const {  // host
    return static_cast<uint64_t>(n_layers * n_pages() * row_page_bytes());
  }
  uint64_t key_pool_bytes() const {  // device
    return static_cast<uint64_t>(n_layers * n_pages() * layout.key_page_bytes());
  }
  uint64_t slot_bytes() const {  // device: slots, and the buffers' LRU state, two numbers for each slot
    const int64_t lru_bytes = 2 * max_seqs * buffer_pages() * kPageTokens * int64_t{sizeof(int32_t)};
    return static_cast<uint64_t>(n_layers * (n_slot_pages() * row_page_bytes() + lru_bytes));
  }
  uint64_t window_bytes() const {  // device: two windows, each with one layer's rows
    return static_cast<uint64_t>(2 * window_pages() * row_page_bytes());
  }
  uint64_t table_bytes() const {  // device: page tables, and a TopkBuffer for each token of a step and layer
    const int64_t n_entries = (has_buffers() ? 2 : 1) * max_step_tokens() * context_pages();
    const int64_t n_buffers = has_buffers() ? n_layers * max_step_tokens() : 0;
    return static_cast<uint64_t>(n_entries) * sizeof(int32_t) +
           static_cast<uint64_t>(n_buffers) * sizeof(TopkBuffer);
  }

 private:
  int64_t row_page_bytes() const { return kPageTokens * layout.row_bytes(); }
};

}  // namespace dsv32
