// The small dense operations: the norm of hidden states, what the queries go through, and the two
// element-wise ones.
//
// Each is bound by launch latency in decode and by reading its input once in prefill; none is worth more than
// one pass.
#include "cuda/common.cuh"
#include "cuda/kernels.h"

namespace dsv32::cuda {
namespace {

constexpr int kThreads = 256;

constexpr int kNormThreads = 512, kHeld = 16;  // values of a row that a thread keeps in registers

// out = x * rsqrt(mean(x^2) + eps) * weight, f32
// A block a row; each thread every blockDim-th value, the first kHeld of them in registers, the others read
// twice. x and out may be the same row: every thread reads its values before the sum is known and writes the
// same ones after. Bound by latency in decode, by bytes in prefill.
__global__ void __launch_bounds__(kNormThreads) rms_norm_kernel(RmsNorm op) {
  let_next_start();
  const float* x = op.x + blockIdx.x * op.x_stride;
  float* out = op.out + blockIdx.x * op.width;
  const int first = threadIdx.x, step = blockDim.x, width = static_cast<int>(op.width);
  float weights[kHeld], values[kHeld];
#pragma unroll
  for (int k = 0; k < kHeld; ++k)
    if (first + k * step < width) weights[k] = op.weight[first + k * step];
  wait_for_inputs();
#pragma unroll
  for (int k = 0; k < kHeld; ++k) values[k] = first + k * step < width ? x[first + k * step] : 0.0f;
  float sum = 0;
#pragma unroll
  for (int k = 0; k < kHeld; ++k) sum += values[k] * values[k];
  for (int i = first + kHeld * step; i < width; i += step) sum += x[i] * x[i];
  const float factor = rsqrtf(block_sum(sum) / static_cast<float>(width) + op.eps);
#pragma unroll
  for (int k = 0; k < kHeld; ++k)
    if (first + k * step < width) out[first + k * step] = values[k] * factor * weights[k];
  for (int i = first + kHeld * step; i < width; i += step) out[i] = x[i] * factor * op.weight[i];
}

// See TurnQueries.
// Grid (tokens, blocks of 32 heads of q, then of 8 index heads). Of q a thread has one pair of one head after
// another; an index head is a warp's, in shared memory.
// (a, b) -> (a cos - b sin, a sin + b cos) at angle pos * frequency, the angle rounded to f32 as model.py
// does, full-range sincosf: angles reach a million radians. The Hadamard stages run in the order of the
// CPU's, and dividing by a power of two is exact: the only rounding is e4m3's. With a whole number of rounds
// over the pairs a thread's first sine and cosine are those of all its heads. Bound by latency in decode, by
// bytes in prefill.
constexpr int kTurnHeads = 32, kIndexHeads = kThreads / 32;

__device__ void turn_heads(const TurnQueries& op, int64_t t, int64_t first_head) {
  const int64_t n_pairs = op.rope_dim / 2, n_heads = min(op.n_heads - first_head, int64_t{kTurnHeads});
  const float pos = static_cast<float>(__ldcg(op.step.pos + t));
  int64_t known_pair = threadIdx.x % n_pairs;
  float sine, cosine;
  sincosf(__fmul_rn(pos, op.frequencies[known_pair]), &sine, &cosine);
  wait_for_inputs();
  float* q = op.q + (t * op.n_heads + first_head) * op.head_dim + (op.head_dim - op.rope_dim);
  for (int64_t i = threadIdx.x; i < n_pairs * n_heads; i += blockDim.x) {
    const int64_t pair = i % n_pairs;
    float* x = q + i / n_pairs * op.head_dim + 2 * pair;
    if (pair != known_pair) sincosf(__fmul_rn(pos, op.frequencies[pair]), &sine, &cosine), known_pair = pair;
    const float a = x[0], b = x[1];
    x[0] = a * cosine - b * sine;
    x[1] = a * sine + b * cosine;
  }
}

// x [dim] of a warp, in shared memory, times the orthonormal Hadamard matrix.
__device__ void transform(float* x, int64_t dim) {
  const int lane = threadIdx.x % 32;
  hadamard_stages(x, dim, lane, 32, [] { __syncwarp(); });
  const float factor = 1.0f / sqrtf(static_cast<float>(dim));
  for (int64_t i = lane; i < dim; i += 32) x[i] *= factor;
  __syncwarp();
}

__device__ void turn_index_head(const TurnQueries& op, int64_t t, int64_t head, float* x) {
  const int64_t dim = op.index_dim, n_pairs = op.rope_dim / 2, row = t * op.n_index_heads + head,
                n_tiles = CacheLayout::tiles(dim);
  const int lane = threadIdx.x % 32;
  const float pos = static_cast<float>(op.step.pos[t]);
  float* q = op.index_q + row * dim;
  for (int64_t i = lane; i < dim; i += 32) x[i] = q[i];
  __syncwarp();
  for (int64_t i = lane; i < n_pairs; i += 32) {
    float sine, cosine;
    sincosf(__fmul_rn(pos, op.frequencies[i]), &sine, &cosine);
    const float a = x[i], b = x[i + n_pairs];
    q[i] = x[i] = a * cosine - b * sine;
    q[i + n_pairs] = x[i + n_pairs] = a * sine + b * cosine;
  }
  transform(x, dim);
  if (op.turned)
    for (int64_t i = lane; i < dim; i += 32) op.turned[row * dim + i] = x[i];
  if (!op.turned_fp8) return;
  for (int64_t tile = 0; tile < n_tiles; ++tile) {
    const int64_t begin = tile * kTileValues, end = min(begin + kTileValues, dim);
    float amax = 0;
    for (int64_t i = begin + lane; i < end; i += 32) amax = fmaxf(amax, fabsf(x[i]));
    const float scale = from_ue8m0(tile_scale(warp_max(amax)));
    for (int64_t i = begin + lane; i < end; i += 32) op.turned_fp8[row * dim + i] = to_e4m3(x[i] / scale);
    if (lane == 0) op.turned_scales[row * n_tiles + tile] = scale;
  }
}

__global__ void turn_queries_kernel(TurnQueries op, int n_blocks) {
  extern __shared__ float rows[];
  let_next_start();
  const int64_t t = blockIdx.x;
  const int block = static_cast<int>(blockIdx.y), warp = threadIdx.x / 32;
  if (block < n_blocks) return turn_heads(op, t, int64_t{block} * kTurnHeads);
  wait_for_inputs();
  const int64_t head = int64_t{block - n_blocks} * kIndexHeads + warp;
  if (head < op.n_index_heads) turn_index_head(op, t, head, rows + warp * op.index_dim);
}

// y += x. A thread four values, or what is left at the end. Bound by bytes.
__global__ void add_kernel(Add op, bool is_aligned) {
  let_next_start();
  wait_for_inputs();
  const int64_t i = 4 * (blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x);
  if (is_aligned && i + 4 <= op.n_values) {
    const float4 x = *reinterpret_cast<const float4*>(op.x + i);
    float4& y = *reinterpret_cast<float4*>(op.y + i);
    y = {y.x + x.x, y.y + x.y, y.z + x.z, y.w + x.w};
    return;
  }
  for (int64_t j = i; j < i + 4 && j < op.n_values; ++j) op.y[j] += op.x[j];
}

__device__ __forceinline__ float gated(float value, float up) { return value / (1.0f + expf(-value)) * up; }

// A thread four values, or what is left at the end. Bound by bytes.
__global__ void gate_kernel(float* values, const float* up, const float* factors, int64_t n_values,
                            int64_t width, bool is_aligned) {
  let_next_start();
  wait_for_inputs();
  const int64_t i = 4 * (blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x);
  if (is_aligned && i + 4 <= n_values) {
    const float4 u = *reinterpret_cast<const float4*>(up + i);
    float4& v = *reinterpret_cast<float4*>(values + i);
    v = {gated(v.x, u.x), gated(v.y, u.y), gated(v.z, u.z), gated(v.w, u.w)};
    return;
  }
  for (int64_t j = i; j < i + 4 && j < n_values; ++j)
    values[j] = gated(values[j], up[j]) * (factors ? factors[j / width] : 1.0f);
}

unsigned blocks_for(int64_t n_values) { return static_cast<unsigned>(ceil_div(n_values, kThreads)); }

}  // namespace

void rms_norm(const RmsNorm& op, const Launch& launch) {
  if (op.n_rows == 0) return;
  if (op.width > INT32_MAX / 2) fail(ErrorKind::internal, "rms_norm: rows of a billion values");
  const int n_threads = op.width > 8 * 128 ? kNormThreads : 128;
  launch_kernel("rms_norm_kernel", rms_norm_kernel, {static_cast<unsigned>(op.n_rows), n_threads}, launch,
                op);
}

void turn_queries(const TurnQueries& op, const Launch& launch) {
  if (op.step.n_tokens == 0 || op.rope_dim < 2) return;
  const int64_t n_blocks = ceil_div(op.n_heads, kTurnHeads),
                n_index_blocks = op.index_q ? ceil_div(op.n_index_heads, kIndexHeads) : 0;
  const size_t n_bytes = op.index_q ? static_cast<size_t>(kIndexHeads * op.index_dim) * sizeof(float) : 0;
  if (n_bytes > 48 << 10) fail(ErrorKind::internal, "index heads of more than 1536 values");
  const dim3 blocks(static_cast<unsigned>(op.step.n_tokens),
                    static_cast<unsigned>(n_blocks + n_index_blocks));
  launch_kernel("turn_queries_kernel", turn_queries_kernel, {blocks, kThreads, n_bytes}, launch, op,
                static_cast<int>(n_blocks));
}

void add(const Add& op, const Launch& launch) {
  if (op.n_values == 0) return;
  const bool is_aligned = (reinterpret_cast<uintptr_t>(op.x) | reinterpret_cast<uintptr_t>(op.y)) % 16 == 0;
  launch_kernel("add_kernel", add_kernel, {blocks_for(ceil_div(op.n_values, 4)), kThreads}, launch, op,
                is_aligned);
}

void gate(float* values, const float* up, const float* factors, int64_t n_values, int64_t width,
          const Launch& launch) {
  if (n_values == 0) return;
  const bool is_aligned =
      !factors && (reinterpret_cast<uintptr_t>(values) | reinterpret_cast<uintptr_t>(up)) % 16 == 0;
  launch_kernel("gate_kernel", gate_kernel, {blocks_for(ceil_div(n_values, 4)), kThreads}, launch, values, up,
                factors, n_values, width, is_aligned);
}

}  // namespace dsv32::cuda
