// The small dense operations: norms, rotation, Hadamard transform, e4m3 rounding, and the two element-wise
// ones.
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

// out = (x - mean) * rsqrt(var + eps) * weight + bias, f32
// A block a row; two passes for the sums, so that the variance does not cancel.
// In place as in rms_norm_kernel; a thread's first value stays in registers, and rows of 128 have no second.
// Bound by latency.
__global__ void layer_norm_kernel(LayerNorm op) {
  let_next_start();
  const float* x = op.x + blockIdx.x * op.width;
  float* out = op.out + blockIdx.x * op.width;
  const int64_t first = threadIdx.x, step = blockDim.x;
  const bool has_first = first < op.width;
  const float weight = has_first ? op.weight[first] : 0.0f, bias = has_first ? op.bias[first] : 0.0f;
  wait_for_inputs();
  const float value = has_first ? x[first] : 0.0f;
  float sum = value;
  for (int64_t i = first + step; i < op.width; i += step) sum += x[i];
  const float mean = block_sum(sum) / static_cast<float>(op.width);
  float squares = has_first ? (value - mean) * (value - mean) : 0.0f;
  for (int64_t i = first + step; i < op.width; i += step) squares += (x[i] - mean) * (x[i] - mean);
  const float factor = rsqrtf(block_sum(squares) / static_cast<float>(op.width) + op.eps);
  if (has_first) out[first] = (value - mean) * factor * weight + bias;
  for (int64_t i = first + step; i < op.width; i += step)
    out[i] = (x[i] - mean) * factor * op.weight[i] + op.bias[i];
}

// (a, b) -> (a cos - b sin, a sin + b cos) at angle pos * frequency, the angle rounded to f32 as model.py
// does A block a token; a thread one pair of one head after another. Full-range sincosf: angles reach a
// million radians. Nothing in an angle comes from a kernel: a thread's first sine and cosine are there before
// x is; with a whole number of rounds over the pairs they are those of all its heads. Bound by latency in
// decode, by bytes in prefill.
__global__ void rope_kernel(Rope op, int64_t pair_step, int64_t second) {
  let_next_start();
  const int64_t n_pairs = op.dim / 2;
  const float pos = static_cast<float>(__ldcg(op.step.pos + blockIdx.x));
  int64_t known_pair = threadIdx.x % n_pairs;
  float sine, cosine;
  sincosf(__fmul_rn(pos, op.frequencies[known_pair]), &sine, &cosine);
  wait_for_inputs();
  for (int64_t i = threadIdx.x; i < n_pairs * op.n_heads; i += blockDim.x) {
    const int64_t pair = i % n_pairs, head = i / n_pairs;
    float* x = op.x + blockIdx.x * op.token_stride + head * op.head_stride + pair * pair_step;
    if (pair != known_pair) sincosf(__fmul_rn(pos, op.frequencies[pair]), &sine, &cosine), known_pair = pair;
    const float a = x[0], b = x[second];
    x[0] = a * cosine - b * sine;
    x[second] = a * sine + b * cosine;
  }
}

// x = H x / sqrt(width), H the Sylvester matrix
// A block a row, a thread one butterfly of each of the log2(width) stages, in shared memory.
// The stages run in the order of the CPU's, so that the sums are the same bits.
// Bound by latency.
__global__ void hadamard_kernel(Hadamard op, float factor) {
  extern __shared__ float row[];
  let_next_start();
  wait_for_inputs();
  float* x = op.x + blockIdx.x * op.width;
  for (int64_t i = threadIdx.x; i < op.width; i += blockDim.x) row[i] = x[i];
  for (int64_t half = 1; half < op.width; half *= 2) {
    __syncthreads();
    for (int64_t i = threadIdx.x; i < op.width / 2; i += blockDim.x) {
      const int64_t at = i / half * 2 * half + i % half;
      const float a = row[at], b = row[at + half];
      row[at] = a + b;
      row[at + half] = a - b;
    }
  }
  __syncthreads();
  for (int64_t i = threadIdx.x; i < op.width; i += blockDim.x) x[i] = row[i] * factor;
}

// values = e4m3(x / scale), scale = 2^ceil(log2(max(amax, 1e-4) / 448)) per tile of 128
// A warp a tile; a lane every 32nd value.
// Dividing by a power of two is exact, so the only rounding is e4m3's.
// Bound by latency.
__global__ void quantize_fp8_kernel(QuantizeFp8 op, int64_t n_tiles) {
  let_next_start();
  wait_for_inputs();
  const int64_t tile = (blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x) / 32;
  if (tile >= op.n_rows * n_tiles) return;
  const int64_t row = tile / n_tiles, begin = tile % n_tiles * kTileValues;
  const int64_t end = min(begin + kTileValues, op.width);
  const float* x = op.x + row * op.width;
  float amax = 0;
  for (int64_t i = begin + threadIdx.x % 32; i < end; i += 32) amax = fmaxf(amax, fabsf(x[i]));
  const float scale = from_ue8m0(tile_scale(warp_max(amax)));
  for (int64_t i = begin + threadIdx.x % 32; i < end; i += 32)
    op.values[row * op.width + i] = to_e4m3(x[i] / scale);
  if (threadIdx.x % 32 == 0) op.scales[tile] = scale;
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

// out = gate / (1 + e^-gate) * up. A thread a value. Bound by bytes.
__global__ void silu_mul_kernel(SiluMul op) {
  let_next_start();
  wait_for_inputs();
  const int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i < op.n_values) op.out[i] = op.gate[i] / (1.0f + expf(-op.gate[i])) * op.up[i];
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

void layer_norm(const LayerNorm& op, const Launch& launch) {
  if (op.n_rows == 0) return;
  launch_kernel("layer_norm_kernel", layer_norm_kernel, {static_cast<unsigned>(op.n_rows), 128}, launch, op);
}

void rope(const Rope& op, const Launch& launch) {
  if (op.step.n_tokens == 0 || op.n_heads == 0 || op.dim < 2) return;
  const bool is_interleaved = op.layout == RopeLayout::interleaved;
  launch_kernel("rope_kernel", rope_kernel, {static_cast<unsigned>(op.step.n_tokens), kThreads}, launch, op,
                is_interleaved ? 2 : 1, is_interleaved ? 1 : op.dim / 2);
}

void hadamard(const Hadamard& op, const Launch& launch) {
  if (op.n_rows == 0) return;
  const int n_threads = static_cast<int>(op.width >= 2 * kThreads ? kThreads
                                         : op.width > 64          ? op.width / 2
                                                                  : 32);
  launch_kernel("hadamard_kernel", hadamard_kernel,
                {static_cast<unsigned>(op.n_rows), n_threads, static_cast<size_t>(op.width) * sizeof(float)},
                launch, op, 1.0f / sqrtf(static_cast<float>(op.width)));
}

void quantize_fp8(const QuantizeFp8& op, const Launch& launch) {
  const int64_t n_tiles = CacheLayout::tiles(op.width);
  if (op.n_rows == 0) return;
  launch_kernel("quantize_fp8_kernel", quantize_fp8_kernel, {blocks_for(op.n_rows * n_tiles * 32), kThreads},
                launch, op, n_tiles);
}

void add(const Add& op, const Launch& launch) {
  if (op.n_values == 0) return;
  const bool is_aligned = (reinterpret_cast<uintptr_t>(op.x) | reinterpret_cast<uintptr_t>(op.y)) % 16 == 0;
  launch_kernel("add_kernel", add_kernel, {blocks_for(ceil_div(op.n_values, 4)), kThreads}, launch, op,
                is_aligned);
}

void silu_mul(const SiluMul& op, const Launch& launch) {
  if (op.n_values == 0) return;
  launch_kernel("silu_mul_kernel", silu_mul_kernel, {blocks_for(op.n_values), kThreads}, launch, op);
}

}  // namespace dsv32::cuda
