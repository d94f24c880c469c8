// The size of the window through which a device receives experts in host memory in prefill
// (RunExperts::window).
//
// A window begins with a ring of experts' weights and ends with the scratch memory of the products. The more
// tokens are computed at once, the less often all experts are uploaded; the larger the ring, the longer
// uploads go on beside other work.
#pragma once

#include <algorithm>
#include <cstdint>

#include "backend/expert_ops.h"

namespace dsv32 {

// The largest numbers of all layers of a device that have experts in host memory.
struct ExpertShape {
  int64_t n_experts = 0, n_activated = 0, dim = 0, inter_dim = 0;
};

inline ExpertShape shape_of(const RunExperts& op) {
  return {op.w1.n_mats, op.n_activated, op.w1.n_cols, op.w1.n_rows};
}

constexpr uint64_t round_up(uint64_t n, uint64_t unit) { return (n + unit - 1) / unit * unit; }

// Scratch memory of the products of n tokens computed at once: n_bytes_fixed + n * n_bytes_token.
struct ExpertScratch {
  // Columns of y that are summed together: the fewest, and the number whose tiles fill a large device.
  static constexpr int64_t kFewestColumns = 256, kColumns = 1024;
  // fp16 rows are padded to a multiple of this width.
  static constexpr int64_t kStep = 64;

  uint64_t n_bytes_fixed, n_bytes_token;

  explicit constexpr ExpertScratch(const ExpertShape& shape, int64_t n_columns = kColumns) {
    const auto padded = [](int64_t n) { return round_up(static_cast<uint64_t>(n), kStep); };
    // Each expert's place, count and last tile; losses by alignment.
    n_bytes_fixed = static_cast<uint64_t>(shape.n_experts) * 20 + 16 * 256;
    // For each use: its hidden row, its output, entries of three lists and a part of a tile.
    const uint64_t n_bytes_use =
        2 * padded(shape.inter_dim) + 4 * static_cast<uint64_t>(std::min(shape.dim, n_columns)) + 13;
    n_bytes_token = 2 * padded(shape.dim) + 4 + static_cast<uint64_t>(shape.n_activated) * n_bytes_use;
  }
  constexpr uint64_t n_bytes(int64_t n_tokens) const {
    return n_bytes_fixed + static_cast<uint64_t>(n_tokens) * n_bytes_token;
  }
};

// In the ring the matrices of a stack are contiguous, and each stack is aligned to this.
constexpr uint64_t kRingAlignment = 256;

// The bytes of an expert's w1, w3 and w2 in the ring.
inline uint64_t expert_ring_bytes(const ExpertStacks& stacks) {
  uint64_t n_bytes = 0;
  for (const WeightMatrix* w : {&stacks.w1, &stacks.w3, &stacks.w2})
    n_bytes += round_up(static_cast<uint64_t>(w->n_rows) * w->row_bytes, kRingAlignment);
  return n_bytes;
}

// The bytes of a window for n_tokens computed at once, with a ring of n_ring_bytes. The ring must hold at
// least two experts (expert_ring_bytes) of any layer; 64 experts keep the link busy beside attention.
inline uint64_t expert_window_bytes(const ExpertShape& shape, int64_t n_tokens, uint64_t n_ring_bytes) {
  return round_up(n_ring_bytes, kRingAlignment) +
         round_up(ExpertScratch(shape).n_bytes(n_tokens), kRingAlignment);
}

}  // namespace dsv32
