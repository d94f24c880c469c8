// The small dense operations: norms, rotation, Hadamard transform, e4m3 rounding, and the two element-wise ones.
//
// Each is bound by launch latency in decode and by reading its input once in prefill; none is worth more than one pass.
#include "cuda/common.cuh"
#include "cuda/kernels.h"

namespace dsv32::cuda {
namespace {

constexpr int kThreads = 256;

// out = x * rsqrt(mean(x^2) + eps) * weight, f32
// A block a row; each thread every 256th value.
// x and out may be the same row: every thread reads its values before the sum is known and writes the same ones after.
// Bound by bytes: the row is read twice, the second time from L1.
__global__ void rms_norm_kernel(RmsNorm op) {
  const float* x = op.x + blockIdx.x * op.x_stride;
  float* out = op.out + blockIdx.x * op.width;
  float sum = 0;
  for (int64_t i = threadIdx.x; i < op.width; i += blockDim.x) sum += x[i] * x[i];
  const float factor = rsqrtf(block_sum(sum) / static_cast<float>(op.width) + op.eps);
  for (int64_t i = threadIdx.x; i < op.width; i += blockDim.x) out[i] = x[i] * factor * op.weight[i];
}

// out = (x - mean) * rsqrt(var + eps) * weight + bias, f32
// A block a row; two passes for the sums, so that the variance does not cancel.
// In place as in rms_norm_kernel.
// Bound by latency: rows of 128 values.
__global__ void layer_norm_kernel(LayerNorm op) {
  const float* x = op.x + blockIdx.x * op.width;
  float* out = op.out + blockIdx.x * op.width;
  float sum = 0;
  for (int64_t i = threadIdx.x; i < op.width; i += blockDim.x) sum += x[i];
  const float mean = block_sum(sum) / static_cast<float>(op.width);
  float squares = 0;
  for (int64_t i = threadIdx.x; i < op.width; i += blockDim.x) squares += (x[i] - mean) * (x[i] - mean);
  const float factor = rsqrtf(block_sum(squares) / static_cast<float>(op.width) + op.eps);
  for (int64_t i = threadIdx.x; i < op.width; i += blockDim.x)
    out[i] = (x[i] - mean) * factor * op.weight[i] + op.bias[i];
}

// (a, b) -> (a cos - b sin, a sin + b cos) at angle pos * frequency, the angle rounded to f32 as model.py does
// A block a token; a thread one pair of one head after another.
// Full-range sincosf: angles reach a million radians.
// Bound by latency in decode, by the arithmetic of sincosf in prefill.
__global__ void rope_kernel(Rope op, int64_t pair_step, int64_t second) {
  const int64_t n_pairs = op.dim / 2;
  const float pos = static_cast<float>(op.step.pos[blockIdx.x]);
  for (int64_t i = threadIdx.x; i < n_pairs * op.n_heads; i += blockDim.x) {
    const int64_t pair = i % n_pairs, head = i / n_pairs;
    float* x = op.x + blockIdx.x * op.token_stride + head * op.head_stride + pair * pair_step;
    float sine, cosine;
    sincosf(__fmul_rn(pos, op.frequencies[pair]), &sine, &cosine);
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
  const int64_t tile = (blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x) / 32;
  if (tile >= op.n_rows * n_tiles) return;
  const int64_t row = tile / n_tiles, begin = tile % n_tiles * kTileValues;
  const int64_t end = min(begin + kTileValues, op.width);
  const float* x = op.x + row * op.width;
  float amax = 0;
  for (int64_t i = begin + threadIdx.x % 32; i < end; i += 32) amax = fmaxf(amax, fabsf(x[i]));
  const float scale = from_ue8m0(tile_scale(warp_max(amax)));
  for (int64_t i = begin + threadIdx.x % 32; i < end; i += 32) op.values[row * op.width + i] = to_e4m3(x[i] / scale);
  if (threadIdx.x % 32 == 0) op.scales[tile] = scale;
}

// y += x. A thread a value. Bound by bytes.
__global__ void add_kernel(Add op) {
  const int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i < op.n_values) op.y[i] += op.x[i];
}

// out = gate / (1 + e^-gate) * up. A thread a value. Bound by bytes.
__global__ void silu_mul_kernel(SiluMul op) {
  const int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i < op.n_values) op.out[i] = op.gate[i] / (1.0f + expf(-op.gate[i])) * op.up[i];
}

unsigned blocks_for(int64_t n_values) { return static_cast<unsigned>(ceil_div(n_values, kThreads)); }

}  // namespace

void rms_norm(const RmsNorm& op, const Launch& launch) {
  if (op.n_rows == 0) return;
  const int n_threads = op.width >= 4096 ? 1024 : kThreads;
  rms_norm_kernel<<<static_cast<unsigned>(op.n_rows), n_threads, 0, launch.stream>>>(op);
  check_launch("rms_norm_kernel");
}

void layer_norm(const LayerNorm& op, const Launch& launch) {
  if (op.n_rows == 0) return;
  layer_norm_kernel<<<static_cast<unsigned>(op.n_rows), 128, 0, launch.stream>>>(op);
  check_launch("layer_norm_kernel");
}

void rope(const Rope& op, const Launch& launch) {
  if (op.step.n_tokens == 0) return;
  const bool is_interleaved = op.layout == RopeLayout::interleaved;
  rope_kernel<<<static_cast<unsigned>(op.step.n_tokens), kThreads, 0, launch.stream>>>(
      op, is_interleaved ? 2 : 1, is_interleaved ? 1 : op.dim / 2);
  check_launch("rope_kernel");
}

void hadamard(const Hadamard& op, const Launch& launch) {
  if (op.n_rows == 0) return;
  const int n_threads = static_cast<int>(op.width >= 2 * kThreads ? kThreads : op.width > 64 ? op.width / 2 : 32);
  hadamard_kernel<<<static_cast<unsigned>(op.n_rows), n_threads, static_cast<size_t>(op.width) * sizeof(float),
                    launch.stream>>>(op, 1.0f / sqrtf(static_cast<float>(op.width)));
  check_launch("hadamard_kernel");
}

void quantize_fp8(const QuantizeFp8& op, const Launch& launch) {
  const int64_t n_tiles = CacheLayout::tiles(op.width);
  if (op.n_rows == 0) return;
  quantize_fp8_kernel<<<blocks_for(op.n_rows * n_tiles * 32), kThreads, 0, launch.stream>>>(op, n_tiles);
  check_launch("quantize_fp8_kernel");
}

void add(const Add& op, const Launch& launch) {
  if (op.n_values == 0) return;
  add_kernel<<<blocks_for(op.n_values), kThreads, 0, launch.stream>>>(op);
  check_launch("add_kernel");
}

void silu_mul(const SiluMul& op, const Launch& launch) {
  if (op.n_values == 0) return;
  silu_mul_kernel<<<blocks_for(op.n_values), kThreads, 0, launch.stream>>>(op);
  check_launch("silu_mul_kernel");
}

}  // namespace dsv32::cuda
