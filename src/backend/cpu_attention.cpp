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

#include "backend/cpu_backend.h"
#include "backend/cpu_matmul.h"
#include "backend/cpu_threads.h"
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

// The number of the row in the pool that `pages` leads to.
int64_t row_number(const int32_t* pages, const CacheView& cache, int64_t seq, int64_t pos) {
  const PagedPlace place = find_place(pages, cache.max_pages, seq, pos);
  return place.page * kPageTokens + place.entry;
}

bool has_buffer(const CacheView& cache, int64_t seq) {
  return cache.buffers && cache.buffers[seq].n_slots > 0;
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

// x [n] to e4m3, with one scale per tile: ue8m0 when Scale is uint8_t, f32 when it is float.
template <class Scale>
void encode_e4m3(const float* x, int64_t n, uint8_t* values, uint8_t* scales) {
  for (int64_t begin = 0; begin < n; begin += kTileValues) {
    const int64_t end = std::min(begin + kTileValues, n);
    float amax = 0;
    for (int64_t i = begin; i < end; ++i) amax = std::fmax(amax, std::fabs(x[i]));
    const uint8_t bits = e4m3_tile_scale(amax);
    const float scale = ue8m0_to_f32(bits);
    for (int64_t i = begin; i < end; ++i) values[i] = f32_to_e4m3(x[i] / scale);
    std::memcpy(scales, sizeof(Scale) == 1 ? static_cast<const void*>(&bits) : &scale, sizeof(Scale));
    scales += sizeof(Scale);
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
    encode_e4m3<uint8_t>(c, rank, row, scales);
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

// scores[t, first + s] = sum over h of weight[h] * max(0, products[h, s]) for the keys that token t sees.
void sum_over_heads(const IndexerScores& op, int64_t t, int64_t first, int64_t n_keys, const float* products,
                    int64_t products_stride) {
  const int64_t n = std::min(n_keys, op.step.pos[t] + 1 - first);
  float* scores = op.scores + t * op.scores_stride + first;
  for (int64_t s = 0; s < n; ++s) scores[s] = 0;
  for (int64_t h = 0; h < op.n_heads; ++h) {
    const float weight = op.weights[t * op.n_heads + h] * op.weight_scale;
    const float* product = products + h * products_stride;
    for (int64_t s = 0; s < n; ++s) scores[s] += weight * std::max(0.0f, product[s]);
  }
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

// One head of one token over its decoded rows [n_selected, kv_lora_rank | qk_rope_head_dim]; scores
// [n_selected] is scratch.
void attend_head(const Attend& op, int64_t t, int64_t h, const float* rows, float* scores) {
  const int64_t rank = op.cache.layout.kv_lora_rank, rope_dim = op.cache.layout.qk_rope_head_dim;
  const int64_t n = op.n_selected[t], width = rank + rope_dim;
  const float* q_c = op.q_c + (t * op.n_heads + h) * rank;
  const float* q_pe = op.q_pe + t * op.q_pe_token_stride + h * op.q_pe_head_stride;
  float* o_c = op.o_c + (t * op.n_heads + h) * rank;
  float largest = -INFINITY, sum = 0;
  for (int64_t j = 0; j < n; ++j) {
    const float* row = rows + j * width;
    scores[j] = (cpu_dot(q_c, row, rank) + cpu_dot(q_pe, row + rank, rope_dim)) * op.scale;
    largest = std::fmax(largest, scores[j]);
  }
  std::fill_n(o_c, rank, 0.0f);
  for (int64_t j = 0; j < n; ++j) {
    const float weight = std::exp(scores[j] - largest);
    sum += weight;
    cpu_axpy(weight, rows + j * width, o_c, rank);
  }
  for (int64_t i = 0; i < rank; ++i) o_c[i] /= sum;
}

}  // namespace

void CpuBackend::quantize_fp8(const QuantizeFp8& op) {
  workers_.parallel_for(op.n_rows, worth_sharing(op.n_rows * op.width), [&](int64_t r) {
    encode_e4m3<float>(op.x + r * op.width, op.width, op.values + r * op.width,
                       reinterpret_cast<uint8_t*>(op.scales + r * CacheLayout::tiles(op.width)));
  });
}

void CpuBackend::stream_rows(const StreamRows& op) {
  for (int64_t i = 0; i < op.n_copies; ++i)
    std::memcpy(op.copies[i].to, op.copies[i].from, op.copies[i].n_bytes);
}

void CpuBackend::store_latents(const StoreLatents& op) {
  const CacheView& cache = op.cache;
  const CacheLayout& layout = cache.layout;
  const int64_t row_bytes = layout.row_bytes();
  workers_.parallel_for(op.step.n_tokens, worth_sharing(op.step.n_tokens * row_bytes), [&](int64_t t) {
    const int64_t seq = op.step.seq[t];
    const int32_t pos = op.step.pos[t];
    uint8_t* row = cache.rows + row_number(cache.row_pages, cache, seq, pos) * row_bytes;
    encode_row(layout, op.c + t * layout.kv_lora_rank, op.k_pe + t * op.k_pe_stride, row,
               key_entry(cache, seq, pos).scales);
    if (cache.slots == cache.rows) return;
    const int64_t slot = has_buffer(cache, seq) ? claim_newest(cache.buffers[seq], pos) : pos;
    std::memcpy(cache.slots + row_number(cache.slot_pages, cache, seq, slot) * row_bytes, row,
                static_cast<size_t>(row_bytes));
  });
}

void CpuBackend::store_index_keys(const StoreIndexKeys& op) {
  const CacheLayout& layout = op.cache.layout;
  const int64_t dim = layout.index_head_dim;
  workers_.parallel_for(op.step.n_tokens, worth_sharing(op.step.n_tokens * dim), [&](int64_t t) {
    const KeyEntry entry = key_entry(op.cache, op.step.seq[t], op.step.pos[t]);
    const float* key = op.k + t * dim;
    if (layout.kv_type == KvType::f32)
      std::memcpy(entry.key, key, static_cast<size_t>(dim) * 4);
    else
      encode_e4m3<float>(key, dim, entry.key, entry.key_scales);
  });
}

void CpuBackend::store_tokens(const StoreTokens& op) {
  const CacheLayout& layout = op.cache.layout;
  const int64_t n = op.step.n_tokens, rank = layout.kv_lora_rank, rope_dim = layout.qk_rope_head_dim,
                width = rank + rope_dim, dim = layout.index_head_dim;
  CpuBackend::rms_norm({op.qr, op.q_lora_rank, op.q_norm, op.norm_eps, op.qr, n, op.q_lora_rank});
  CpuBackend::rms_norm({op.kv, width, op.kv_norm, op.norm_eps, op.c, n, rank});
  float* k_pe = op.kv + rank;
  rope({op.step, RopeLayout::interleaved, k_pe, 1, 0, width, op.frequencies, rope_dim});
  store_latents({op.step, op.cache, op.c, k_pe, width});
  if (!op.k) return;
  layer_norm({op.k, op.k_norm, op.k_norm_bias, op.k_norm_eps, op.k, n, dim});
  rope({op.step, RopeLayout::half_split, op.k, 1, dim, dim, op.frequencies, rope_dim});
  scratch_.assign(op.k, op.k + n * dim);
  hadamard({scratch_.data(), n, dim});
  store_index_keys({op.step, op.cache, scratch_.data()});
}

void CpuBackend::turn_queries(const TurnQueries& op) {
  const int64_t n_heads = op.n_heads, width = op.head_dim, dim = op.index_dim,
                n_rows = op.step.n_tokens * op.n_index_heads;
  rope({op.step, RopeLayout::interleaved, op.q + width - op.rope_dim, n_heads, width, n_heads * width,
        op.frequencies, op.rope_dim});
  if (!op.index_q) return;
  rope({op.step, RopeLayout::half_split, op.index_q, op.n_index_heads, dim, op.n_index_heads * dim,
        op.frequencies, op.rope_dim});
  if (!op.turned) scratch_.resize(static_cast<size_t>(n_rows * dim));
  float* turned = op.turned ? op.turned : scratch_.data();
  std::copy_n(op.index_q, n_rows * dim, turned);
  hadamard({turned, n_rows, dim});
  if (op.turned_fp8) quantize_fp8({turned, op.turned_fp8, op.turned_scales, n_rows, dim});
}

// Keys are taken in blocks: decoded once, they are a weight matrix [n_keys, index_head_dim] for the queries
// of all tokens and heads, whose products are then weighted and summed over the heads in order.
void CpuBackend::indexer_scores(const IndexerScores& op) {
  constexpr int64_t kMostProducts = int64_t{1} << 22;
  const int64_t dim = op.cache.layout.index_head_dim, n_tokens = op.step.n_tokens,
                n_queries = n_tokens * op.n_heads;
  const int64_t n_block = std::clamp<int64_t>(kMostProducts / n_queries, 16, 1024);
  scratch_.resize(static_cast<size_t>(n_queries * dim + n_block * dim + n_queries * n_block));
  float* q = scratch_.data();              // [n_tokens, n_heads, dim]
  float* keys = q + n_queries * dim;       // [n_block, dim]
  float* products = keys + n_block * dim;  // [n_tokens, n_heads, n_block]
  decode_queries(op, q);
  WeightMatrix key_matrix{
      reinterpret_cast<const uint8_t*>(keys), TensorType::f32, 0, dim, 1, row_bytes(TensorType::f32, dim), 0};
  for (int64_t seq = 0; seq < op.step.n_seqs; ++seq) {
    int64_t n_visible = 0;
    for (int64_t t = 0; t < n_tokens; ++t)
      if (op.step.seq[t] == seq) n_visible = std::max<int64_t>(n_visible, op.step.pos[t] + 1);
    for (int64_t first = 0; first < n_visible; first += n_block) {
      const int64_t n_keys = key_matrix.n_rows = std::min(n_block, n_visible - first);
      workers_.parallel_for(n_keys, worth_sharing(n_keys * dim), [&](int64_t s) {
        decode_key(op.cache.layout, key_entry(op.cache, seq, first + s), keys + s * dim);
      });
      cpu_matmul({key_matrix, 0, q, dim, products, n_block, n_queries}, workers_);
      workers_.parallel_for(n_tokens, worth_sharing(n_queries * n_keys), [&](int64_t t) {
        if (op.step.seq[t] == seq)
          sum_over_heads(op, t, first, n_keys, products + t * op.n_heads * n_block, n_block);
      });
    }
  }
}

void CpuBackend::select_topk(const SelectTopk& op) {
  workers_.parallel_for(op.step.n_tokens, worth_sharing(op.step.n_tokens * op.step.max_pos), [&](int64_t t) {
    const int32_t n_visible = op.step.pos[t] + 1;
    const int32_t n = static_cast<int32_t>(std::min<int64_t>(op.topk, n_visible));
    int32_t* selected = op.selected + t * op.topk;
    op.n_selected[t] = n;
    if (n == n_visible)
      std::iota(selected, selected + n, 0);
    else
      select_one(op.scores + t * op.scores_stride, n_visible, n, selected);
  });
}

void CpuBackend::resolve(const Resolve& op) {
  const CacheView& cache = op.cache;
  workers_.parallel_for(op.step.n_tokens, worth_sharing(op.step.n_tokens * op.topk), [&](int64_t t) {
    const int64_t seq = op.step.seq[t];
    const int32_t* slots = op.selected + t * op.topk;
    std::vector<int32_t> in_buffer;
    op.n_misses[t] = 0;
    if (has_buffer(cache, seq)) {
      in_buffer.resize(static_cast<size_t>(op.topk));
      op.n_misses[t] = dsv32::resolve(cache.buffers[seq], slots, op.n_selected[t], in_buffer.data(),
                                      op.misses + t * op.topk);
      slots = in_buffer.data();
    }
    for (int32_t j = 0; j < op.n_selected[t]; ++j)
      op.row_ids[t * op.topk + j] = row_number(cache.slot_pages, cache, seq, slots[j]);
  });
  for (int64_t t = 0; t < op.step.n_tokens; ++t)
    if (has_buffer(cache, op.step.seq[t])) op.tally[0] += op.n_selected[t], op.tally[1] += op.n_misses[t];
}

void CpuBackend::fetch_latents(const FetchLatents& op) {
  const CacheView& cache = op.cache;
  const int64_t row_bytes = cache.layout.row_bytes();
  for (int64_t t = 0; t < op.step.n_tokens; ++t) {
    workers_.parallel_for(op.n_misses[t], worth_sharing(op.n_misses[t] * row_bytes), [&](int64_t m) {
      const int64_t j = t * op.topk + op.misses[t * op.topk + m];
      std::memcpy(cache.slots + op.row_ids[j] * row_bytes,
                  cache.rows + row_number(cache.row_pages, cache, op.step.seq[t], op.selected[j]) * row_bytes,
                  static_cast<size_t>(row_bytes));
    });
  }
}

// Tokens are taken in groups: first all their rows are decoded, then every head of every token of the group
// works alone.
void CpuBackend::attend(const Attend& op) {
  constexpr int64_t kMostDecoded = int64_t{1} << 22;  // values of a group's rows, unless one token has more
  const CacheLayout& layout = op.cache.layout;
  const int64_t width = layout.kv_lora_rank + layout.qk_rope_head_dim;
  const uint8_t* rows = op.cache.slots;
  const int64_t n_most = *std::max_element(op.n_selected, op.n_selected + op.step.n_tokens);
  const int64_t n_group = std::clamp<int64_t>(kMostDecoded / (n_most * width), 1, op.step.n_tokens);
  scratch_.resize(static_cast<size_t>(n_group * n_most * (width + op.n_heads)));
  float* decoded = scratch_.data();                    // [n_group, n_most, width]
  float* scores = decoded + n_group * n_most * width;  // [n_group, n_heads, n_most]
  for (int64_t first = 0; first < op.step.n_tokens; first += n_group) {
    const int64_t n = std::min(n_group, op.step.n_tokens - first);
    const bool is_shared = products_worth_sharing(n * n_most * width * op.n_heads);
    workers_.parallel_for(n * n_most, is_shared, [&](int64_t i) {
      const int64_t t = first + i / n_most, j = i % n_most, at = t * op.topk + j;
      if (j >= op.n_selected[t]) return;
      const int64_t seq = op.step.seq[t], pos = op.selected[at];
      const int64_t row = op.row_ids ? op.row_ids[at] : row_number(op.cache.slot_pages, op.cache, seq, pos);
      decode_row(layout, rows + row * layout.row_bytes(), key_entry(op.cache, seq, pos).scales,
                 decoded + i * width);
    });
    workers_.parallel_for(n * op.n_heads, is_shared, [&](int64_t i) {
      const int64_t in_group = i / op.n_heads;
      attend_head(op, first + in_group, i % op.n_heads, decoded + in_group * n_most * width,
                  scores + i * n_most);
    });
  }
}

}  // namespace dsv32
