// The small dense operations: the norm of hidden states, and the two element-wise ones.
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
__global__ void gate_kernel(float* values, const float* up, const float* factors, GateScales scales,
                            int64_t n_values, int64_t width, bool is_aligned) {
  let_next_start();
  wait_for_inputs();
  const int64_t i = 4 * (blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x);
  if (is_aligned && i + 4 <= n_values) {
    const float4 u = *reinterpret_cast<const float4*>(up + i);
    float4& v = *reinterpret_cast<float4*>(values + i);
    v = {gated(v.x, u.x), gated(v.y, u.y), gated(v.z, u.z), gated(v.w, u.w)};
    return;
  }
  for (int64_t j = i; j < i + 4 && j < n_values; ++j) {
    float value = values[j], other = up[j];
    scale_pair(scales, j / width, value, other);
    values[j] = gated(value, other) * (factors ? factors[j / width] : 1.0f);
  }
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

void add(const Add& op, const Launch& launch) {
  if (op.n_values == 0) return;
  const bool is_aligned = (reinterpret_cast<uintptr_t>(op.x) | reinterpret_cast<uintptr_t>(op.y)) % 16 == 0;
  launch_kernel("add_kernel", add_kernel, {blocks_for(ceil_div(op.n_values, 4)), kThreads}, launch, op,
                is_aligned);
}

void gate(float* values, const float* up, const float* factors, const GateScales& scales, int64_t n_values,
          int64_t width, const Launch& launch) {
  if (n_values == 0) return;
  const bool is_aligned = !factors && !scales.pairs &&
                          (reinterpret_cast<uintptr_t>(values) | reinterpret_cast<uintptr_t>(up)) % 16 == 0;
  launch_kernel("gate_kernel", gate_kernel, {blocks_for(ceil_div(n_values, 4)), kThreads}, launch, values, up,
                factors, scales, n_values, width, is_aligned);
}

}  // namespace dsv32::cuda
