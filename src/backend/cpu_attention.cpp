// Steps 1, 4 and 5 of sparse attention on the CPU: store, resolve and fetch, attend.
//
// A row is decoded to f32 once for all tokens of a group that select it. Sums run in ascending order of
// positions, so the bits do not depend on where a row lies.
#include <hwy/aligned_allocator.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "backend/cpu_attention_kernels.h"
#include "backend/cpu_backend.h"
#include "backend/cpu_common.h"
#include "base/numbers.h"

namespace dsv32 {
namespace {

bool has_buffer(const CacheView& cache, int64_t seq) {
  return cache.buffers && cache.buffers[seq].n_slots > 0;
}

// Whether token t goes on with the buffer of the token before.
bool shares_buffer(const StepTokens& step, const CacheView& cache, int64_t t) {
  return t > 0 && has_buffer(cache, step.seq[t]) &&
         cache.buffers[step.seq[t]].slot_pos == cache.buffers[step.seq[t - 1]].slot_pos;
}

// Converts x [n] to e4m3 with one scale per tile: ue8m0 if Scale is uint8_t, f32 if it is float.
template <class Scale>
void encode_e4m3(const float* x, int64_t n, uint8_t* values, uint8_t* scales) {
  for (int64_t begin = 0; begin < n; begin += kTileValues) {
    const int64_t end = std::min(begin + kTileValues, n);
    float amax = 0;
    for (int64_t i = begin; i < end; ++i) amax = std::max(amax, std::fabs(x[i]));  // ignores NaN
    const uint8_t bits = e4m3_tile_scale(amax);
    const float scale = ue8m0_to_f32(bits), inverse = 1.0f / scale;  // powers of two
    for (int64_t i = begin; i < end; ++i) values[i] = f32_to_e4m3(x[i] * inverse);
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

// The distinct rows that some consecutive tokens attend to.
class RowGroup {
 public:
  struct Row {
    int64_t seq, pos, number;  // number: the row's in cache.slots
  };

  explicit RowGroup(const Attend& op) : op_(op), place_of_(static_cast<size_t>(op.step.max_pos) + 1) {}

  // Refills the group with tokens from `first` on: at least one, and as many as n_most_rows allows.
  void gather(int64_t first, int64_t n_most_rows) {
    rows_.clear(), places_.clear();
    first_of_seq_ = 0, end_ = first_ = first;
    for (int64_t seq = -1; end_ < op_.step.n_tokens; ++end_) {
      const int64_t n = op_.n_selected[end_];
      if (end_ > first_ && std::ssize(rows_) + n > n_most_rows) return;
      if (op_.step.seq[end_] != seq) first_of_seq_ = std::ssize(rows_);
      seq = op_.step.seq[end_];
      for (int64_t j = 0; j < n; ++j) places_.push_back(place_of(end_, j));
      places_.resize(static_cast<size_t>((end_ + 1 - first_) * op_.topk));
    }
  }

  int64_t first() const { return first_; }
  int64_t n_tokens() const { return end_ - first_; }
  const std::vector<Row>& rows() const { return rows_; }
  // [n_selected] indices into rows().
  const int32_t* places(int64_t token) const { return places_.data() + (token - first_) * op_.topk; }

 private:
  // place_of_ may be stale: an entry is valid only if the row at that place has the same position.
  int32_t place_of(int64_t token, int64_t j) {
    const int64_t at = token * op_.topk + j, pos = op_.selected[at], seq = op_.step.seq[token];
    int32_t& place = place_of_[static_cast<size_t>(pos)];
    if (place >= first_of_seq_ && place < std::ssize(rows_) && rows_[static_cast<size_t>(place)].pos == pos)
      return place;
    place = static_cast<int32_t>(rows_.size());
    rows_.push_back(
        {seq, pos, op_.row_ids ? op_.row_ids[at] : row_number(op_.cache.slot_pages, op_.cache, seq, pos)});
    return place;
  }

  const Attend& op_;
  std::vector<int32_t> place_of_;  // [max_pos + 1]
  std::vector<Row> rows_;
  std::vector<int32_t> places_;
  int64_t first_ = 0, end_ = 0, first_of_seq_ = 0;
};

// Attention of n_heads heads of token t, from head `first` on. decoded [group.rows(), padded rank | padded
// rope_dim].
void attend_heads(const Attend& op, const RowGroup& group, const float* decoded, int64_t t, int64_t first,
                  int64_t n_heads) {
  const int64_t rank = op.cache.layout.kv_lora_rank, rope_dim = op.cache.layout.qk_rope_head_dim;
  const int64_t n = op.n_selected[t], width = padded(rank) + padded(rope_dim);
  std::vector<const float*> rows(static_cast<size_t>(n));
  for (int64_t j = 0; j < n; ++j) rows[static_cast<size_t>(j)] = decoded + group.places(t)[j] * width;
  const auto scratch =
      hwy::AllocateAligned<float>(static_cast<size_t>(n_heads * (width + kAttentionBlock + padded(rank))));
  float *q = scratch.get(), *weights = q + n_heads * width, *out = weights + n_heads * kAttentionBlock;
  if (width != rank + rope_dim) std::fill_n(q, n_heads * width, 0.0f);
  for (int64_t i = 0; i < n_heads; ++i) {
    const int64_t h = first + i;
    std::copy_n(op.q_c + (t * op.n_heads + h) * rank, rank, q + i * width);
    std::copy_n(op.q_pe + t * op.q_pe_token_stride + h * op.q_pe_head_stride, rope_dim,
                q + i * width + padded(rank));
  }
  float* o_c = op.o_c + (t * op.n_heads + first) * rank;
  const bool is_padded = padded(rank) != rank;
  cpu_attend({rows.data(), n, width, padded(rank), q, n_heads, op.scale, weights, is_padded ? out : o_c});
  for (int64_t i = 0; is_padded && i < n_heads; ++i)
    std::copy_n(out + i * padded(rank), rank, o_c + i * rank);
}

}  // namespace

void decode_row(const CacheLayout& layout, const uint8_t* row, const uint8_t* scales, float* out) {
  const int64_t rank = layout.kv_lora_rank, rope_dim = layout.qk_rope_head_dim;
  float* k_pe = out + padded(rank);
  std::fill(out + rank, k_pe, 0.0f);
  std::fill(k_pe + rope_dim, k_pe + padded(rope_dim), 0.0f);
  if (layout.kv_type == KvType::f32) {
    std::memcpy(out, row, static_cast<size_t>(rank) * 4);
    std::memcpy(k_pe, row + rank * 4, static_cast<size_t>(rope_dim) * 4);
    return;
  }
  if (layout.kv_type == KvType::bf16)
    cpu_decode_bf16(row, rank, out);
  else
    for (int64_t i = 0; i < rank; i += kTileValues)
      cpu_decode_e4m3(row + i, std::min(kTileValues, rank - i), ue8m0_to_f32(scales[i / kTileValues]),
                      out + i);
  cpu_decode_bf16(row + layout.latent_bytes(), rope_dim, k_pe);
}

void CpuBackend::quantize_fp8(const float* x, int64_t n_rows, int64_t width, uint8_t* values, float* scales) {
  workers_.parallel_for(n_rows, worth_sharing(n_rows * width), [&](int64_t r) {
    encode_e4m3<float>(x + r * width, width, values + r * width,
                       reinterpret_cast<uint8_t*>(scales + r * CacheLayout::tiles(width)));
  });
}

void CpuBackend::stream_rows(std::span<const RowCopy> copies) {
  for (const auto& [to, from, n_bytes] : copies) std::memcpy(to, from, n_bytes);
}

// act(t) for each token; tokens of the same buffer one after the other.
template <typename Act>
void CpuBackend::in_turn(const StepTokens& step, const CacheView& cache, int64_t n_work, const Act& act) {
  workers_.parallel_for(step.n_tokens, worth_sharing(n_work), [&](int64_t t) {
    if (shares_buffer(step, cache, t)) return;
    do act(t);
    while (++t < step.n_tokens && shares_buffer(step, cache, t));
  });
}

void CpuBackend::store_latents(const StepTokens& step, const CacheView& cache, const float* c,
                               const float* k_pe, int64_t k_pe_stride) {
  const int64_t row_bytes = cache.layout.row_bytes();
  in_turn(step, cache, step.n_tokens * row_bytes, [&](int64_t t) {
    const int64_t seq = step.seq[t];
    const int32_t pos = step.pos[t];
    uint8_t *in_pool = nullptr, *in_slot = nullptr;
    if (cache.rows) in_pool = cache.rows + row_number(cache.pages, cache, seq, pos) * row_bytes;
    if (cache.slots != cache.rows) {
      const int64_t slot = has_buffer(cache, seq) ? claim_newest(cache.buffers[seq], pos) : pos;
      in_slot = cache.slots + row_number(cache.slot_pages, cache, seq, slot) * row_bytes;
    }
    encode_row(cache.layout, c + t * cache.layout.kv_lora_rank, k_pe + t * k_pe_stride,
               in_pool ? in_pool : in_slot, key_entry(cache, seq, pos).scales);
    if (in_pool && in_slot) std::memcpy(in_slot, in_pool, static_cast<size_t>(row_bytes));
  });
}

void CpuBackend::store_index_keys(const StepTokens& step, const CacheView& cache, const float* k) {
  const int64_t dim = cache.layout.index_head_dim;
  workers_.parallel_for(step.n_tokens, worth_sharing(step.n_tokens * dim), [&](int64_t t) {
    const KeyEntry entry = key_entry(cache, step.seq[t], step.pos[t]);
    const float* key = k + t * dim;
    if (cache.layout.kv_type == KvType::f32)
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
  rope(op.step, RopeLayout::interleaved, k_pe, 1, width, op.frequencies, rope_dim);
  store_latents(op.step, op.cache, op.c, k_pe, width);
  if (layout.has_bounds) store_bounds(op.step, op.cache);
  for (const Matmul& product : op.products()) CpuBackend::matmul(product);
  if (!op.k) return;
  layer_norm(op.k, n, dim, op.k_norm, op.k_norm_bias, op.k_norm_eps);
  rope(op.step, RopeLayout::half_split, op.k, 1, dim, op.frequencies, rope_dim);
  scratch_.assign(op.k, op.k + n * dim);
  hadamard(scratch_.data(), n, dim);
  store_index_keys(op.step, op.cache, scratch_.data());
}

void CpuBackend::turn_queries(const TurnQueries& op) {
  const int64_t n_heads = op.n_heads, width = op.head_dim, dim = op.index_dim,
                n_rows = op.step.n_tokens * op.n_index_heads;
  rope(op.step, RopeLayout::interleaved, op.q + width - op.rope_dim, n_heads, width, op.frequencies,
       op.rope_dim);
  if (op.absorb.weight.data) CpuBackend::matmul_heads(op.absorb);
  if (!op.index_q) return;
  rope(op.step, RopeLayout::half_split, op.index_q, op.n_index_heads, dim, op.frequencies, op.rope_dim);
  if (!op.turned) scratch_.resize(static_cast<size_t>(n_rows * dim));
  float* turned = op.turned ? op.turned : scratch_.data();
  std::copy_n(op.index_q, n_rows * dim, turned);
  hadamard(turned, n_rows, dim);
  if (op.turned_fp8) quantize_fp8(turned, n_rows, dim, op.turned_fp8, op.turned_scales);
}

void CpuBackend::resolve(const Resolve& op) {
  const CacheView& cache = op.cache;
  in_turn(op.step, cache, op.step.n_tokens * op.topk, [&](int64_t t) {
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
                  cache.rows + row_number(cache.pages, cache, op.step.seq[t], op.selected[j]) * row_bytes,
                  static_cast<size_t>(row_bytes));
    });
  }
}

// Takes tokens in groups: first decodes their rows, each once, then computes kHeads heads of a token at a
// time.
void CpuBackend::attend(const Attend& op) {
  constexpr int64_t kMostDecoded = int64_t{1} << 22;  // values of a group's rows; one token may exceed it
  constexpr int64_t kHeads = 8;                       // heads that share the rows in the first caches
  const CacheLayout& layout = op.cache.layout;
  const int64_t width = padded(layout.kv_lora_rank) + padded(layout.qk_rope_head_dim);
  const int64_t n_parts = (op.n_heads + kHeads - 1) / kHeads;
  RowGroup group(op);
  for (int64_t first = 0; first < op.step.n_tokens; first += group.n_tokens()) {
    group.gather(first, kMostDecoded / width);
    const auto n_rows = std::ssize(group.rows());
    float* decoded = aligned(scratch_, n_rows * width);
    workers_.parallel_for(n_rows, worth_sharing(n_rows * width), [&](int64_t i) {
      const auto& [seq, pos, number] = group.rows()[static_cast<size_t>(i)];
      decode_row(layout, op.cache.slots + number * layout.row_bytes(), key_entry(op.cache, seq, pos).scales,
                 decoded + i * width);
    });
    const bool is_shared = products_worth_sharing(group.n_tokens() * op.topk * width * op.n_heads);
    workers_.parallel_for(group.n_tokens() * n_parts, is_shared, [&](int64_t i) {
      const int64_t t = first + i / n_parts, h = i % n_parts * kHeads;
      attend_heads(op, group, decoded, t, h, std::min(kHeads, op.n_heads - h));
    });
  }
}

}  // namespace dsv32
