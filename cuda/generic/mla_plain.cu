// Sparse MLA for any sizes and every kv type, without tensor cores: for small models, odd shapes and f32
// rows.
//
// One CTA per token and head: warps score 32 rows at a time, then every thread adds these rows to its
// columns.
#include "cuda/mla.cuh"

namespace dsv32::cuda {
namespace {

constexpr int kPlainRows = 32;  // rows between two updates of the running softmax
constexpr int kPlainThreads = 256;

// Loads byte by byte: with an odd rank an fp8 row's k_pe is not aligned.
DSV32_DEVICE float load_bf16(const uint8_t* p) {
  return __uint_as_float(static_cast<uint32_t>(p[0]) << 16 | static_cast<uint32_t>(p[1]) << 24);
}

template <KvType kKv>
DSV32_DEVICE float latent_value(const uint8_t* row, const uint8_t* scales, int64_t i) {
  if constexpr (kKv == KvType::fp8) return from_e4m3(row[i]) * from_ue8m0(scales[i / kTileValues]);
  if constexpr (kKv == KvType::bf16) return load_bf16(row + 2 * i);
  return reinterpret_cast<const float*>(row)[i];
}

template <KvType kKv>
DSV32_DEVICE float rope_value(const uint8_t* row, const CacheLayout& layout, int64_t i) {
  const uint8_t* k_pe = row + layout.latent_bytes();
  if constexpr (kKv == KvType::f32) return reinterpret_cast<const float*>(k_pe)[i];
  return load_bf16(k_pe + 2 * i);
}

// o_c = sum_j softmax(scale (q_c . c_j + q_pe . k_pe_j)) c_j over the selected rows j. CTA: one token and
// head; a warp scores rows warp, warp + 8, ... of 32, a thread has columns thread, thread + 256, ... Every
// thread keeps the running maximum and sum. Bound by L2 reads of the rows, once per head.
template <KvType kKv>
__global__ void __launch_bounds__(kPlainThreads) mla_plain_kernel(const Attend op) {
  extern __shared__ __align__(16) float values[];
  const CacheLayout& layout = op.cache.layout;
  const int64_t rank = layout.kv_lora_rank;
  float* q = values;                        // [rank + qk_rope_head_dim]
  float* o = values + layout.row_values();  // [rank]
  __shared__ const uint8_t* rows[kPlainRows];
  __shared__ const uint8_t* scales[kPlainRows];
  __shared__ float scores[kPlainRows];
  let_next_start();
  wait_for_inputs();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t t = blockIdx.x / op.n_heads, head = blockIdx.x % op.n_heads, seq = op.step.seq[t];
  const int n = op.n_selected[t];
  for (int64_t i = threadIdx.x; i < layout.row_values(); i += kPlainThreads)
    q[i] = i < rank ? op.q_c[(t * op.n_heads + head) * rank + i]
                    : op.q_pe[t * op.q_pe_token_stride + head * op.q_pe_head_stride + i - rank];
  for (int64_t i = threadIdx.x; i < rank; i += kPlainThreads) o[i] = 0;

  float largest = -INFINITY, sum = 0;
  for (int first = 0; first < n; first += kPlainRows) {
    const int n_here = min(kPlainRows, n - first);
    __syncthreads();  // the previous 32 rows are done
    if (threadIdx.x < n_here) {
      const RowPlace place = find_row(op, t, first + static_cast<int>(threadIdx.x), n);
      rows[threadIdx.x] = op.cache.slots + place.id * layout.row_bytes();
      if (kKv == KvType::fp8)
        scales[threadIdx.x] =
            key_page(op.cache, seq, place.pos) + place.pos % kPageTokens * layout.scale_bytes();
    }
    __syncthreads();
    for (int i = warp; i < n_here; i += kPlainThreads / 32) {
      float score = 0;
      for (int64_t d = lane; d < rank; d += 32) score += q[d] * latent_value<kKv>(rows[i], scales[i], d);
      for (int64_t d = lane; d < layout.qk_rope_head_dim; d += 32)
        score += q[rank + d] * rope_value<kKv>(rows[i], layout, d);
      score = warp_sum(score);
      if (lane == 0) scores[i] = score * op.scale;
    }
    __syncthreads();
    float largest_here = largest;
    for (int i = 0; i < n_here; ++i) largest_here = fmaxf(largest_here, scores[i]);
    const float factor = largest_here == largest ? 1.0f : expf(largest - largest_here);
    largest = largest_here;
    sum *= factor;
    for (int i = 0; i < n_here; ++i) sum += expf(scores[i] - largest);
    for (int64_t d = threadIdx.x; d < rank; d += kPlainThreads) {
      float value = o[d] * factor;
      for (int i = 0; i < n_here; ++i)
        value += expf(scores[i] - largest) * latent_value<kKv>(rows[i], scales[i], d);
      o[d] = value;
    }
  }
  for (int64_t d = threadIdx.x; d < rank; d += kPlainThreads)
    op.o_c[(t * op.n_heads + head) * rank + d] = sum == 0 ? 0.0f : o[d] / sum;
}

}  // namespace

void attend_plain(const Attend& op, const Launch& launch) {
  const CacheLayout& layout = op.cache.layout;
  const int64_t rank = layout.kv_lora_rank, n_shared_bytes = (rank + layout.row_values()) * 4;
  if (n_shared_bytes > 47 * 1024)
    fail(ErrorKind::internal, format("attend: a rank of %ld is more than this kernel takes", rank));
  const auto kernel = layout.kv_type == KvType::f32    ? mla_plain_kernel<KvType::f32>
                      : layout.kv_type == KvType::bf16 ? mla_plain_kernel<KvType::bf16>
                                                       : mla_plain_kernel<KvType::fp8>;
  launch_kernel(kernel, {op.step.n_tokens * op.n_heads, kPlainThreads, n_shared_bytes}, launch, op);
}

}  // namespace dsv32::cuda
