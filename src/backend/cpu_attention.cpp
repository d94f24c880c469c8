// Steps 1 to 5 of sparse attention on the CPU: store, score, select, resolve and fetch, attend.
//
// Rows are decoded to f32 once per token and shared by its heads. Selected positions are ascending, and sums
// run in that order, so that a row gives the same bits wherever it is read from.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>

#include <omp.h>

#include "backend/cpu_backend.h"
#include "backend/cpu_matmul.h"
#include "base/numbers.h"

namespace dsv32 {
namespace {

const std::array<float, 256> kE4m3Values = [] {
  std::array<float, 256> values{};
  for (size_t i = 0; i < values.size(); ++i) values[i] = e4m3_to_f32(static_cast<uint8_t>(i));
  return values;
}();

// A place in a paged pool: the page and the entry within it.
struct PagedPlace {
  int64_t page, entry;
};

PagedPlace find_place(const int32_t* pages, int64_t max_pages, int64_t seq, int64_t pos) {
  return {pages[seq * max_pages + pos / kPageTokens], pos % kPageTokens};
}

int64_t host_row(const CacheView& cache, int64_t seq, int64_t pos) {
  const PagedPlace place = find_place(cache.row_pages, cache.max_pages, seq, pos);
  return place.page * kPageTokens + place.entry;
}

// Where the scales, the key and the key's scales of one token lie.
struct KeyEntry {
  uint8_t* scales;      // [tiles(kv_lora_rank)] ue8m0
  uint8_t* key;         // [index_head_dim] e4m3 or f32
  uint8_t* key_scales;  // [tiles(index_head_dim)] f32
};

KeyEntry key_entry(const CacheView& cache, int64_t seq, int64_t pos) {
  const PagedPlace place = find_place(cache.key_page_ids, cache.max_pages, seq, pos);
  uint8_t* page = cache.key_pages + place.page * cache.layout.key_page_bytes();
  return {page + place.entry * cache.layout.scale_bytes(),
          page + cache.layout.keys_offset() + place.entry * cache.layout.key_bytes(),
          page + cache.layout.key_scales_offset() + place.entry * cache.layout.key_scale_bytes()};
}

// x [n] to e4m3, one ue8m0 scale per tile.
void encode_e4m3(const float* x, int64_t n, uint8_t* values, uint8_t* scales) {
  for (int64_t begin = 0; begin < n; begin += kTileValues) {
    const int64_t end = std::min(begin + kTileValues, n);
    float amax = 0;
    for (int64_t i = begin; i < end; ++i) amax = std::fmax(amax, std::fabs(x[i]));
    scales[begin / kTileValues] = e4m3_tile_scale(amax);
    const float scale = ue8m0_to_f32(scales[begin / kTileValues]);
    for (int64_t i = begin; i < end; ++i) values[i] = f32_to_e4m3(x[i] / scale);
  }
}

void encode_bf16(const float* x, int64_t n, uint8_t* out) {
  for (int64_t i = 0; i < n; ++i) {
    const uint16_t bits = f32_to_bf16(x[i]);
    std::memcpy(out + 2 * i, &bits, 2);
  }
}

void decode_bf16(const uint8_t* in, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, in + 2 * i, 2);
    out[i] = bf16_to_f32(bits);
  }
}

void encode_row(const CacheLayout& layout, const float* c, const float* k_pe, uint8_t* row, uint8_t* scales) {
  const int64_t rank = layout.kv_lora_rank, rope_dim = layout.qk_rope_head_dim;
  if (layout.kv_type == KvType::f32) {
    std::memcpy(row, c, static_cast<size_t>(rank) * 4);
    std::memcpy(row + rank * 4, k_pe, static_cast<size_t>(rope_dim) * 4);
    return;
  }
  if (layout.kv_type == KvType::fp8)
    encode_e4m3(c, rank, row, scales);
  else
    encode_bf16(c, rank, row);
  encode_bf16(k_pe, rope_dim, row + layout.latent_bytes());
}

// out [kv_lora_rank | qk_rope_head_dim] f32
void decode_row(const CacheLayout& layout, const uint8_t* row, const uint8_t* scales, float* out) {
  const int64_t rank = layout.kv_lora_rank, rope_dim = layout.qk_rope_head_dim;
  if (layout.kv_type == KvType::f32) {
    std::memcpy(out, row, static_cast<size_t>(rank + rope_dim) * 4);
    return;
  }
  if (layout.kv_type == KvType::bf16)
    decode_bf16(row, rank, out);
  else
    for (int64_t i = 0; i < rank; ++i) out[i] = kE4m3Values[row[i]] * ue8m0_to_f32(scales[i / kTileValues]);
  decode_bf16(row + layout.latent_bytes(), rope_dim, out + rank);
}

// out [index_head_dim] f32
void decode_key(const CacheLayout& layout, const KeyEntry& entry, float* out) {
  if (layout.kv_type == KvType::f32) {
    std::memcpy(out, entry.key, static_cast<size_t>(layout.index_head_dim) * 4);
    return;
  }
  for (int64_t i = 0; i < layout.index_head_dim; ++i) {
    float scale = 0;
    std::memcpy(&scale, entry.key_scales + i / kTileValues * 4, 4);
    out[i] = kE4m3Values[entry.key[i]] * scale;
  }
}

// The queries as f32, whichever form they come in: [n_tokens * n_heads, index_head_dim].
void decode_queries(const IndexerScores& op, float* out) {
  const int64_t dim = op.cache.layout.index_head_dim, n_tiles = CacheLayout::tiles(dim);
  for (int64_t r = 0; r < op.step.n_tokens * op.n_heads; ++r)
    for (int64_t i = 0; i < dim; ++i)
      out[r * dim + i] =
          op.q ? op.q[r * dim + i]
               : kE4m3Values[op.q_fp8[r * dim + i]] * op.q_scales[r * n_tiles + i / kTileValues];
}

// Floats as integers that sort alike, with -0 equal to 0 and NaN below everything.
uint32_t rank_key(float score) {
  if (std::isnan(score)) return 0;
  const uint32_t bits = std::bit_cast<uint32_t>(score + 0.0f);  // -0 + 0 = 0
  return (bits & 0x80000000u) ? ~bits : bits | 0x80000000u;
}

void select_one(const float* scores, int32_t n_visible, int32_t topk, int32_t* selected) {
  std::vector<int32_t> positions(static_cast<size_t>(n_visible));
  std::iota(positions.begin(), positions.end(), 0);
  const auto is_better = [&](int32_t a, int32_t b) {
    const uint32_t key_a = rank_key(scores[a]), key_b = rank_key(scores[b]);
    return key_a != key_b ? key_a > key_b : a < b;
  };
  std::nth_element(positions.begin(), positions.begin() + (topk - 1), positions.end(), is_better);
  std::copy_n(positions.begin(), topk, selected);
  std::sort(selected, selected + topk);
}

}  // namespace

void CpuBackend::store_latents(const StoreLatents& op) {
  const CacheView& cache = op.cache;
  const CacheLayout& layout = cache.layout;
  const int64_t row_bytes = layout.row_bytes();
#pragma omp parallel for
  for (int64_t t = 0; t < op.step.n_tokens; ++t) {
    const int64_t seq = op.step.seq[t];
    const int32_t pos = op.step.pos[t];
    uint8_t* row = cache.rows + host_row(cache, seq, pos) * row_bytes;
    encode_row(layout, op.c + t * layout.kv_lora_rank, op.k_pe + t * op.k_pe_stride, row,
               key_entry(cache, seq, pos).scales);
    if (!cache.slots) continue;
    const int64_t slot = claim_newest(cache.buffers[seq], pos);
    std::memcpy(cache.slots + (cache.first_slots[seq] + slot) * row_bytes, row,
                static_cast<size_t>(row_bytes));
  }
}

void CpuBackend::store_index_keys(const StoreIndexKeys& op) {
  const CacheLayout& layout = op.cache.layout;
  const int64_t dim = layout.index_head_dim;
#pragma omp parallel for
  for (int64_t t = 0; t < op.step.n_tokens; ++t) {
    const KeyEntry entry = key_entry(op.cache, op.step.seq[t], op.step.pos[t]);
    const float* key = op.k + t * dim;
    if (layout.kv_type == KvType::f32) {
      std::memcpy(entry.key, key, static_cast<size_t>(dim) * 4);
      continue;
    }
    std::vector<uint8_t> scales(static_cast<size_t>(CacheLayout::tiles(dim)));
    encode_e4m3(key, dim, entry.key, scales.data());
    for (size_t tile = 0; tile < scales.size(); ++tile) {
      const float scale = ue8m0_to_f32(scales[tile]);
      std::memcpy(entry.key_scales + tile * 4, &scale, 4);
    }
  }
}

// Every key is decoded once and meets the queries of all tokens that may see it.
void CpuBackend::indexer_scores(const IndexerScores& op) {
  const int64_t dim = op.cache.layout.index_head_dim, n_tokens = op.step.n_tokens;
  const int64_t n_query_values = n_tokens * op.n_heads * dim;
  scratch_.resize(static_cast<size_t>(n_query_values + dim * omp_get_max_threads()));
  const float* q = scratch_.data();
  decode_queries(op, scratch_.data());
  for (int64_t seq = 0; seq < op.step.n_seqs; ++seq) {
    int32_t last_pos = -1;
    for (int64_t t = 0; t < n_tokens; ++t)
      if (op.step.seq[t] == seq) last_pos = std::max(last_pos, op.step.pos[t]);
#pragma omp parallel for
    for (int32_t s = 0; s <= last_pos; ++s) {
      float* key = scratch_.data() + n_query_values + omp_get_thread_num() * dim;
      decode_key(op.cache.layout, key_entry(op.cache, seq, s), key);
      for (int64_t t = 0; t < n_tokens; ++t) {
        if (op.step.seq[t] != seq || op.step.pos[t] < s) continue;
        float score = 0;
        for (int64_t h = 0; h < op.n_heads; ++h) {
          const float weight = op.weights[t * op.n_heads + h] * op.weight_scale;
          score += weight * std::fmax(0.0f, cpu_dot(q + (t * op.n_heads + h) * dim, key, dim));
        }
        op.scores[t * op.scores_stride + s] = score;
      }
    }
  }
}

void CpuBackend::select_topk(const SelectTopk& op) {
#pragma omp parallel for schedule(dynamic)
  for (int64_t t = 0; t < op.step.n_tokens; ++t) {
    const int32_t n_visible = op.step.pos[t] + 1;
    const int32_t n = static_cast<int32_t>(std::min<int64_t>(op.topk, n_visible));
    int32_t* selected = op.selected + t * op.topk;
    op.n_selected[t] = n;
    if (n == n_visible)
      std::iota(selected, selected + n, 0);
    else
      select_one(op.scores + t * op.scores_stride, n_visible, n, selected);
  }
}

void CpuBackend::resolve(const Resolve& op) {
  const CacheView& cache = op.cache;
  if (!cache.slots) {
#pragma omp parallel for
    for (int64_t t = 0; t < op.step.n_tokens; ++t) {
      for (int32_t j = 0; j < op.n_selected[t]; ++j)
        op.row_ids[t * op.topk + j] = host_row(cache, op.step.seq[t], op.selected[t * op.topk + j]);
      op.n_misses[t] = 0;
    }
    return;
  }
  std::vector<int32_t> slots(static_cast<size_t>(op.topk));
  for (int64_t t = 0; t < op.step.n_tokens; ++t) {
    const int64_t seq = op.step.seq[t];
    op.n_misses[t] = dsv32::resolve(cache.buffers[seq], op.selected + t * op.topk, op.n_selected[t],
                                    slots.data(), op.misses + t * op.topk);
    for (int32_t j = 0; j < op.n_selected[t]; ++j)
      op.row_ids[t * op.topk + j] = cache.first_slots[seq] + slots[static_cast<size_t>(j)];
    op.tally[0] += op.n_selected[t];
    op.tally[1] += op.n_misses[t];
  }
}

void CpuBackend::fetch_latents(const FetchLatents& op) {
  const CacheView& cache = op.cache;
  const int64_t row_bytes = cache.layout.row_bytes();
  for (int64_t t = 0; t < op.step.n_tokens; ++t) {
#pragma omp parallel for
    for (int32_t m = 0; m < op.n_misses[t]; ++m) {
      const int64_t j = t * op.topk + op.misses[t * op.topk + m];
      std::memcpy(cache.slots + op.row_ids[j] * row_bytes,
                  cache.rows + host_row(cache, op.step.seq[t], op.selected[j]) * row_bytes,
                  static_cast<size_t>(row_bytes));
    }
  }
}

void CpuBackend::attend(const Attend& op) {
  const CacheLayout& layout = op.cache.layout;
  const int64_t rank = layout.kv_lora_rank, rope_dim = layout.qk_rope_head_dim, width = rank + rope_dim;
  const uint8_t* rows = op.cache.slots ? op.cache.slots : op.cache.rows;
  int64_t n_most = 0;
  for (int64_t t = 0; t < op.step.n_tokens; ++t) n_most = std::max<int64_t>(n_most, op.n_selected[t]);
  scratch_.resize(static_cast<size_t>(n_most * (width + op.n_heads)));
  float* decoded = scratch_.data();              // [n_selected, width]
  float* all_scores = decoded + n_most * width;  // [n_heads, n_selected]
#pragma omp parallel
  for (int64_t t = 0; t < op.step.n_tokens; ++t) {
    const int64_t n = op.n_selected[t];
    const int64_t first = t * op.topk;
#pragma omp for
    for (int64_t j = 0; j < n; ++j)
      decode_row(layout, rows + op.row_ids[first + j] * layout.row_bytes(),
                 key_entry(op.cache, op.step.seq[t], op.selected[first + j]).scales, decoded + j * width);
#pragma omp for
    for (int64_t h = 0; h < op.n_heads; ++h) {
      const float* q_c = op.q_c + (t * op.n_heads + h) * rank;
      const float* q_pe = op.q_pe + t * op.q_pe_token_stride + h * op.q_pe_head_stride;
      float* scores = all_scores + h * n_most;
      float* o_c = op.o_c + (t * op.n_heads + h) * rank;
      float largest = -INFINITY, sum = 0;
      for (int64_t j = 0; j < n; ++j) {
        const float* row = decoded + j * width;
        scores[j] = (cpu_dot(q_c, row, rank) + cpu_dot(q_pe, row + rank, rope_dim)) * op.scale;
        largest = std::fmax(largest, scores[j]);
      }
      std::fill_n(o_c, rank, 0.0f);
      for (int64_t j = 0; j < n; ++j) {
        const float weight = std::exp(scores[j] - largest);
        sum += weight;
        cpu_axpy(weight, decoded + j * width, o_c, rank);
      }
      for (int64_t i = 0; i < rank; ++i) o_c[i] /= sum;
    }
  }
}

}  // namespace dsv32
