// Quest on the CPU: the bounds of a span of rows, and the spans' scores.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "backend/cpu_backend.h"
#include "backend/cpu_common.h"

namespace dsv32 {
namespace {

// The bounds of the span that holds position `pos` (backend/cache_layout.h).
uint8_t* span_bounds(const CacheView& cache, int64_t seq, int64_t pos) {
  const CacheLayout& layout = cache.layout;
  const int64_t row = row_number(cache.pages, cache, seq, pos);
  return cache.key_pages + row / kPageTokens * layout.key_page_bytes() + layout.bounds_offset() +
         row % kPageTokens / kSpanTokens * layout.span_bytes();
}

// Calls visit(tile, begin, end) for each tile of a row's values.
template <typename Visit>
void for_tiles(const CacheLayout& layout, const Visit& visit) {
  const int64_t n = layout.row_values();
  for (int64_t begin = 0, end, tile = 0; begin < n; begin = end, ++tile) {
    end = std::min(begin + kBoundTile, begin < layout.kv_lora_rank ? layout.kv_lora_rank : n);
    visit(tile, begin, end);
  }
}

// Rounds the bounds [2, row_values()] of a span to steps, and stores them.
void encode_bounds(const CacheLayout& layout, const std::vector<float>& bounds, uint8_t* out) {
  const int64_t n = layout.row_values();
  std::vector<int> codes(bounds.size());
  for_tiles(layout, [&](int64_t tile, int64_t begin, int64_t end) {
    float most = 0;
    for (int64_t i = begin; i < end; ++i)
      for (const int64_t at : {i, n + i}) most = std::max(most, std::fabs(bounds[static_cast<size_t>(at)]));
    const float step = most / kMostSteps, inverse = most > kLeastBound ? kMostSteps / most : 0;
    for (int64_t i = begin; i < end; ++i)
      for (const int64_t at : {i, n + i}) {
        const float steps = bounds[static_cast<size_t>(at)] * inverse;  // NaN: of rows that are not finite
        codes[static_cast<size_t>(at)] =
            (std::isnan(steps) ? 0 : static_cast<int>(std::nearbyint(steps))) + kZeroStep;
      }
    std::memcpy(out + layout.steps_offset() + tile * 4, &step, sizeof step);
  });
  for (size_t i = 0; i < codes.size() / 2; ++i)
    out[i] = static_cast<uint8_t>(codes[2 * i] + codes[2 * i + 1] * 16);
}

// Spans scored side by side; the values of their bounds lie side by side too.
constexpr int64_t kSpanTile = 16;

struct SpanTile {
  const CacheLayout& layout;
  std::vector<float> bounds, steps;  // [2, row_values(), kSpanTile] in steps; [n_steps(), kSpanTile]

  explicit SpanTile(const CacheLayout& of)
      : layout(of),
        bounds(static_cast<size_t>(2 * of.row_values() * kSpanTile)),
        steps(static_cast<size_t>(of.n_steps() * kSpanTile)) {}
  void take(const uint8_t* of, int64_t s) {
    for (int64_t i = 0; i < 2 * layout.row_values(); ++i)
      bounds[static_cast<size_t>(i * kSpanTile + s)] =
          static_cast<float>((of[i / 2] >> i % 2 * 4 & 15) - kZeroStep);
    for (int64_t tile = 0; tile < layout.n_steps(); ++tile)
      std::memcpy(&steps[static_cast<size_t>(tile * kSpanTile + s)], of + layout.steps_offset() + tile * 4,
                  sizeof(float));
  }
  // sums[s] = sum over i of max(q_i * largest[s]_i, q_i * smallest[s]_i), i ascending. q [row_values()]
  void multiply(const float* q, float* sums) const {
    const float *largest = bounds.data(), *smallest = largest + layout.row_values() * kSpanTile;
    for_tiles(layout, [&](int64_t tile, int64_t begin, int64_t end) {
      float of_tile[kSpanTile] = {};
      for (int64_t i = begin; i < end; ++i) {
        const float* side = (q[i] > 0 ? largest : smallest) + i * kSpanTile;
        for (int64_t s = 0; s < kSpanTile; ++s) of_tile[s] += q[i] * side[s];
      }
      const float* step = steps.data() + tile * kSpanTile;
      for (int64_t s = 0; s < kSpanTile; ++s) sums[s] += of_tile[s] * step[s];
    });
  }
};

// Fills in a token's bounds for the spans [first, end), at most kSpanTile.
void bound_spans(const QuestScores& op, int64_t t, int64_t first, int64_t end) {
  const CacheLayout& layout = op.cache.layout;
  const int64_t rank = layout.kv_lora_rank, n_heads = op.n_heads;
  SpanTile tile(layout);
  for (int64_t p = first; p < end; ++p)
    tile.take(span_bounds(op.cache, op.step.seq[t], p * kSpanTokens), p - first);
  std::vector<float> q(static_cast<size_t>(layout.row_values()));
  for (int64_t h = 0; h < n_heads; ++h) {
    std::copy_n(op.q_c + (t * n_heads + h) * rank, rank, q.begin());
    std::copy_n(op.q_pe + t * op.q_pe_token_stride + h * op.q_pe_head_stride, layout.qk_rope_head_dim,
                q.begin() + rank);
    float sums[kSpanTile] = {};
    tile.multiply(q.data(), sums);
    float* bounds = op.bounds + (t * n_heads + h) * op.scores_stride + first;
    for (int64_t s = 0; s < end - first; ++s) bounds[s] = op.scale * sums[s];
  }
}

// scores[p] = sum over h of softmax(bounds[h])(p), h ascending. bounds [n_heads, stride] become exponentials.
void sum_shares(float* bounds, int64_t n_heads, int64_t stride, int64_t n_spans, float* scores) {
  std::fill_n(scores, n_spans, 0.0f);
  for (int64_t h = 0; h < n_heads; ++h) {
    float* of = bounds + h * stride;
    const float largest = *std::max_element(of, of + n_spans);
    float sum = 0;
    for (int64_t p = 0; p < n_spans; ++p) sum += of[p] = std::exp(of[p] - largest);
    for (int64_t p = 0; p < n_spans; ++p) scores[p] += of[p] / sum;
  }
}

}  // namespace

void CpuBackend::store_bounds(const StepTokens& step, const CacheView& cache) {
  const CacheLayout& layout = cache.layout;
  const int64_t n = layout.row_values(), rank = layout.kv_lora_rank;
  workers_.parallel_for(step.n_tokens, worth_sharing(step.n_tokens * n), [&](int64_t t) {
    const int64_t seq = step.seq[t], first = step.pos[t] + 1 - kSpanTokens;
    if (step.pos[t] % kSpanTokens != kSpanTokens - 1) return;
    const auto n_values = static_cast<size_t>(n);
    std::vector<float> row(static_cast<size_t>(padded(rank) + padded(layout.qk_rope_head_dim))),
        bounds(n_values, -std::numeric_limits<float>::infinity());
    bounds.resize(2 * n_values, std::numeric_limits<float>::infinity());
    for (int64_t pos = first; pos <= step.pos[t]; ++pos) {
      decode_row(layout, cache.rows + row_number(cache.pages, cache, seq, pos) * layout.row_bytes(),
                 key_entry(cache, seq, pos).scales, row.data());
      for (size_t i = 0; i < n_values; ++i) {
        const float value = row[i + (std::cmp_less(i, rank) ? 0 : static_cast<size_t>(padded(rank) - rank))];
        float &largest = bounds[i], &smallest = bounds[n_values + i];
        largest = std::max(largest, value), smallest = std::min(smallest, value);
      }
    }
    encode_bounds(layout, bounds, span_bounds(cache, seq, first));
  });
}

void CpuBackend::quest_scores(const QuestScores& op) {
  for (int64_t t = 0; t < op.step.n_tokens; ++t) {
    const int64_t n_spans = op.step.pos[t] / kSpanTokens, n_tiles = (n_spans + kSpanTile - 1) / kSpanTile;
    const int64_t n_products = n_spans * op.n_heads * op.cache.layout.row_values();
    workers_.parallel_for(n_tiles, products_worth_sharing(n_products), [&](int64_t tile) {
      bound_spans(op, t, tile * kSpanTile, std::min((tile + 1) * kSpanTile, n_spans));
    });
    if (n_spans > 0)
      sum_shares(op.bounds + t * op.n_heads * op.scores_stride, op.n_heads, op.scores_stride, n_spans,
                 op.scores + t * op.scores_stride);
  }
}

}  // namespace dsv32
