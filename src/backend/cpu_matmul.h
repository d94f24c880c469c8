// Products of stored weight rows with f32 activations on the CPU, straight from the GGUF blocks.
//
// The bits of y[t, r] depend only on row r and on x[t, :]; never on n_tokens, on the number of threads, or on
// how rows are divided. Instruction sets add in different orders, so machines with different ones may differ
// in the last bits (cpu_instruction_set).
//
// Activations stay f32, except that with AVX-512 VNNI most formats (vnni_kernels_of) round x to integers of
// 23 bits with one power of two for each 256 columns: the error is at most 2^-22 of the largest |x| among
// these (and 2^-123). Relative to sum over c of |W[r, c] * x[t, c]|, errors are below 1e-6 for x of ordinary
// spread. If x[t] has an infinity or a NaN, no y[t, r] is finite.
#pragma once

#include <hwy/aligned_allocator.h>

#include <span>
#include <string>
#include <vector>

#include "backend/ops.h"
#include "base/worker_pool.h"

namespace dsv32 {

struct CpuKernels;

// Activations prepared for products with weights of one type and width, for callers that divide the products
// themselves. x [n_tokens, n_cols], rows x_stride floats apart.
class CpuActivations {
 public:
  // Does not read x yet. Throws Error{memory}.
  CpuActivations(const WeightMatrix& weight, const float* x, int64_t x_stride, int64_t n_tokens);

  // Step i < n_steps() is some columns of one token. Each step must be prepared once, by any thread.
  int64_t n_steps() const { return n_token_steps_ * n_tokens_; }
  void prepare(int64_t i);
  const float* token(int64_t t) const { return floats_.get() + t * n_floats_; }
  std::vector<const float*> tokens() const;  // all

 private:
  const CpuKernels& kernels_;
  const float* x_;
  int64_t x_stride_, n_cols_, n_tokens_, n_token_steps_, n_floats_;
  hwy::AlignedFreeUniquePtr<float[]> floats_;
};

// y[i * y_stride + r - row_begin] = row r of W[mat] times tokens[i], prepared by CpuActivations for a matrix
// of this type and width; on the calling thread.
void cpu_multiply_rows(const WeightMatrix& weight, int64_t mat, int64_t row_begin, int64_t row_end,
                       std::span<const float* const> tokens, float* y, int64_t y_stride);

// The name of the kernels that run on this CPU, such as "AVX3_DL+VNNI". Kernels of another name give other
// bits.
std::string cpu_instruction_set();

// y[t] = W @ x[t], rows divided over the workers; `plus` and `sum` are ignored. Throws Error{memory}.
void cpu_matmul(const Matmul& op, WorkerPool& workers);

// sum over i of a[i] * b[i], f32, always in the same order.
float cpu_dot(const float* a, const float* b, int64_t n);

// y[i] += scale * x[i]
void cpu_axpy(float scale, const float* x, float* y, int64_t n);

}  // namespace dsv32
