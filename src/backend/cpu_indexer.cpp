// Steps 2 and 3 of sparse attention on the CPU: score positions, select the best.
//
// Keys are transposed in tiles, so that kKeyTile positions lie side by side. A tile is decoded once for the
// queries of all tokens and heads.
#include <hwy/aligned_allocator.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "backend/cpu_attention_kernels.h"
#include "backend/cpu_backend.h"
#include "backend/cpu_common.h"

namespace dsv32 {
namespace {

// Decodes one query, f32 or e4m3, to f32: out [padded index_head_dim].
void decode_query(const IndexerScores& op, int64_t query, float* out) {
  const int64_t dim = op.cache.layout.index_head_dim;
  std::fill(out + dim, out + padded(dim), 0.0f);
  if (op.q) std::copy_n(op.q + query * dim, dim, out);
  for (int64_t i = 0; !op.q && i < dim; i += kTileValues)
    cpu_decode_e4m3(op.q_fp8 + query * dim + i, std::min(kTileValues, dim - i),
                    op.q_scales[query * CacheLayout::tiles(dim) + i / kTileValues], out + i);
}

// kKeyTile keys, scored side by side, from position `first` on; keys from `end` on are undefined.
class KeyTile {
 public:
  explicit KeyTile(int64_t dim)
      : dim_(dim),
        bytes_(static_cast<size_t>(kKeyTile * padded(dim))),
        scales_(static_cast<size_t>(kKeyTile * CacheLayout::tiles(dim))),
        keys_(hwy::AllocateAligned<float>(static_cast<size_t>(padded(dim) * kKeyTile))) {}

  void decode(const CacheView& cache, int64_t seq, int64_t first, int64_t end) {
    for (int64_t s = 0; s < kKeyTile; ++s) {
      if (first + s < end) take(cache.layout, key_entry(cache, seq, first + s), s);
    }
    if (cache.layout.kv_type != KvType::f32)
      cpu_decode_keys(bytes_.data(), padded(dim_), scales_.data(), keys_.get());
  }
  const float* keys() const { return keys_.get(); }  // [padded dim, kKeyTile]

 private:
  void take(const CacheLayout& layout, const KeyEntry& entry, int64_t s) {
    if (layout.kv_type == KvType::f32) {
      for (int64_t i = 0; i < dim_; ++i)
        std::memcpy(keys_.get() + i * kKeyTile + s, entry.key + i * 4, sizeof(float));
      return;
    }
    std::memcpy(bytes_.data() + s * padded(dim_), entry.key, static_cast<size_t>(dim_));
    for (int64_t i = 0; i < CacheLayout::tiles(dim_); ++i)
      std::memcpy(scales_.data() + i * kKeyTile + s, entry.key_scales + i * 4, sizeof(float));
  }

  int64_t dim_;
  std::vector<uint8_t> bytes_;  // [kKeyTile, padded dim]
  std::vector<float> scales_;   // [tiles, kKeyTile]
  hwy::AlignedFreeUniquePtr<float[]> keys_;
};

// Selects the spans of n_together positions with the largest scores and the one of `pos`, together at most
// topk positions. Returns how many these are.
int32_t select_spans(const float* scores, int32_t pos, int32_t n_together, int32_t topk, int32_t* selected) {
  std::vector<int32_t> spans(static_cast<size_t>(topk / n_together - 1));
  cpu_select_largest(scores, pos / n_together, std::ssize(spans), spans.data());
  spans.push_back(pos / n_together);
  int32_t* end = selected;
  for (const int32_t span : spans)
    for (int32_t i = 0; i < n_together && span * n_together + i <= pos; ++i) *end++ = span * n_together + i;
  return static_cast<int32_t>(end - selected);
}

}  // namespace

void CpuBackend::indexer_scores(const IndexerScores& op) {
  const int64_t dim = op.cache.layout.index_head_dim, n_tokens = op.step.n_tokens, n_heads = op.n_heads,
                n_queries = n_tokens * n_heads;
  float* q = aligned(scratch_, n_queries * (padded(dim) + 1));  // [n_tokens, n_heads, padded dim]
  float* weights = q + n_queries * padded(dim);                 // [n_tokens, n_heads]
  workers_.parallel_for(n_queries, worth_sharing(n_queries * dim), [&](int64_t i) {
    decode_query(op, i, q + i * padded(dim));
    weights[i] = op.weights[i] * op.weight_scale;
  });
  for (int64_t seq = 0; seq < op.step.n_seqs; ++seq) {
    int64_t n_visible = 0;
    for (int64_t t = 0; t < n_tokens; ++t)
      if (op.step.seq[t] == seq) n_visible = std::max<int64_t>(n_visible, op.step.pos[t] + 1);
    const bool is_shared = products_worth_sharing(n_queries * n_visible * dim);
    workers_.parallel_for((n_visible + kKeyTile - 1) / kKeyTile, is_shared, [&](int64_t i) {
      const int64_t first = i * kKeyTile;
      KeyTile tile(dim);
      tile.decode(op.cache, seq, first, std::min(first + kKeyTile, n_visible));
      for (int64_t t = 0; t < n_tokens; ++t) {
        const int64_t n = std::min<int64_t>(kKeyTile, op.step.pos[t] + 1 - first);
        if (op.step.seq[t] != seq || n <= 0) continue;
        float unseen[kKeyTile], *scores = op.scores + t * op.scores_stride + first;
        cpu_score_keys(tile.keys(), padded(dim), q + t * n_heads * padded(dim), weights + t * n_heads,
                       n_heads, n, n == kKeyTile ? scores : unseen);
        if (n < kKeyTile) std::copy_n(unseen, n, scores);
      }
    });
  }
}

void CpuBackend::select_topk(const SelectTopk& op) {
  workers_.parallel_for(op.step.n_tokens, worth_sharing(op.step.n_tokens * op.step.max_pos), [&](int64_t t) {
    const int32_t n_visible = op.step.pos[t] + 1 - op.first;
    const int32_t n = static_cast<int32_t>(std::min<int64_t>(op.topk, n_visible));
    int32_t* selected = op.selected + t * op.topk;
    op.n_selected[t] = n;
    if (n == n_visible) {
      std::iota(selected, selected + n, op.first);
    } else if (op.n_together > 1) {
      op.n_selected[t] = select_spans(op.scores + t * op.scores_stride, op.step.pos[t],
                                      static_cast<int32_t>(op.n_together), n, selected);
    } else {
      cpu_select_largest(op.scores + t * op.scores_stride + op.first, n_visible, n, selected);
      for (int32_t i = 0; i < n; ++i) selected[i] += op.first;
    }
  });
}

}  // namespace dsv32
