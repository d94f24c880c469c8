// One sequence in the cache: its tokens, the pages of their rows and keys, and the slots that rows are read
// from.
//
// Only LatentCache changes it; its owner may read it. It holds pages for all its tokens, and perhaps more.
// The rows and keys of its tokens are never written again.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/cache_layout.h"
#include "context/page_pool.h"

namespace dsv32 {

// Tokens [begin, end) of a sequence; 0 <= begin.
struct TokenRun {
  int64_t begin = 0, end = 0;
  bool operator==(const TokenRun&) const = default;
};

// A flag beside the id in a history: decode made this token's row, whose bits differ from prefill's.
constexpr int32_t kMadeByDecode = 1 << 30;

class CachedSequence {
 public:
  const std::vector<int32_t>& tokens() const { return tokens_; }
  int64_t n_tokens() const { return std::ssize(tokens_); }
  // The tokens, with kMadeByDecode where decode made the row. Only equal histories have equal rows.
  const std::vector<int32_t>& history() const { return history_; }
  const std::vector<int32_t>& pages() const { return pages_; }  // of rows and of keys
  PoolPage page(int64_t i) const { return {pages_[static_cast<size_t>(i)]}; }
  // Pages of slots, if there are buffers: as many as pages, or those of its buffer.
  const std::vector<int32_t>& slot_pages() const { return slot_pages_; }
  int32_t n_slots() const { return static_cast<int32_t>(std::ssize(slot_pages_) * kPageTokens); }
  // Every row has its own slot: decode neither looks rows up nor fetches.
  bool is_resident() const { return is_resident_; }
  // Whether the device still has the hidden state of the last token, from which the block for drafts goes on.
  bool has_hidden() const { return has_hidden_; }
  // Which part of the buffers' state, and of the last hidden states, is its own.
  int64_t number() const { return number_; }

 private:
  friend class LatentCache;
  std::vector<int32_t> tokens_, history_, pages_, slot_pages_;
  int64_t most_slot_pages_ = 0;
  int64_t n_claimed_ = 0;  // positions below it may lie in the buffer, also those of tokens that were cut off
  bool is_resident_ = true, has_hidden_ = false;
  int64_t number_ = 0;
};

}  // namespace dsv32
