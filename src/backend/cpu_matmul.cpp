// The products of one target at a time (everything between HWY_BEFORE_NAMESPACE and HWY_AFTER_NAMESPACE is
// compiled once per instruction set), and the division of a matrix over tokens, rows and threads.
//
// A product of a row and a token is always the same chain of operations: step after step into sixteen lanes,
// then the tree over the lanes. Dividing rows or grouping tokens changes which products run together, never
// what one of them does.
#include "backend/cpu_matmul.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "backend/cpu_kernels.h"
#include "backend/cpu_threads.h"
#include "base/error.h"

// SSSE3 machines without SSE4 are gone; SVE's registers have no size at compile time, and NEON serves there.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu_matmul.cpp"
#include <hwy/foreach_target.h>

#include <hwy/aligned_allocator.h>
#include <hwy/highway.h>

#include "backend/cpu_formats-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dsv32 {
namespace HWY_NAMESPACE {

constexpr int kRows = CpuKernels::kRows;

// F: of cpu_formats-inl.h. Several tokens share the weights, and a token's operations do not depend on their
// number.
template <class F>
struct VectorFormat {
  using Block = typename F::Block;
  static constexpr size_t kStepBytes = F::kBlocks * sizeof(Block);

  static void prepare_step(const float* x, int n_values, float* out) {
    std::memcpy(out, x, static_cast<size_t>(n_values) * sizeof(float));
    std::memset(out + n_values, 0, static_cast<size_t>(F::kValues - n_values) * sizeof(float));
  }

  // One step of kRows rows. All are unpacked before the first is read again: what was stored in pieces is
  // then in the cache, and loads need not wait for the store queue.
  template <int T>
  static HWY_INLINE void step(const uint8_t* const* at, const float* const* x, Floats (*sums)[T]) {
    typename F::Stage stages[kRows];
    for (int r = 0; r < kRows; ++r) F::unpack(reinterpret_cast<const Block*>(at[r]), stages[r]);
    for (int r = 0; r < kRows; ++r) {
      // With a stage, registers are too few to keep x in from row to row: it must not be loaded early.
      if constexpr (!std::is_empty_v<typename F::Stage>) __asm__ volatile("" ::: "memory");
      add_products<T>(reinterpret_cast<const Block*>(at[r]), stages[r], x, sums[r]);
    }
  }

  template <int T>
  static HWY_INLINE void add_products(const Block* at, const typename F::Stage& stage, const float* const* x,
                                      Floats* sums) {
    HWY_UNROLL((kParts > 2 ? 1 : 4))  // code for four parts is long enough
    for (int begin = 0; begin < F::kValues; begin += 64) {
      Floats inner[T];
      DSV32_UNROLL for (int t = 0; t < T; ++t) inner[t] = zeros();
      DSV32_UNROLL for (int i = begin; i < begin + 64; i += 16) {
        const Floats weights = F::weights(at, stage, i);
        DSV32_UNROLL
        for (int t = 0; t < T; ++t) inner[t] = mul_add(weights, load_floats(x[t] + i), inner[t]);
      }
      DSV32_UNROLL for (int t = 0; t < T; ++t) sums[t] = add(sums[t], inner[t]);
    }
  }

  template <int T>
  static void rows_times_tokens(const uint8_t* const* rows, size_t row_bytes, const float* const* x,
                                float* sums) {
    Floats lanes[kRows][T];
    const uint8_t* at[kRows];
    const float* x_at[T];
    for (int r = 0; r < kRows; ++r)
      for (int t = 0; t < T; ++t) lanes[r][t] = zeros();
    for (int r = 0; r < kRows; ++r) at[r] = rows[r];
    for (int t = 0; t < T; ++t) x_at[t] = x[t];
    const size_t ahead = prefetch_distance(rows);
    size_t left = row_bytes;
    for (; left >= kStepBytes; left -= kStepBytes) {
      for (int r = 0; r < kRows; ++r) prefetch_weights(at[r] + ahead, kStepBytes);
      step<T>(at, x_at, lanes);
      for (int r = 0; r < kRows; ++r) at[r] += kStepBytes;
      for (int t = 0; t < T; ++t) x_at[t] += F::kValues;
    }
    if (left > 0) {
      alignas(64) uint8_t padded[kRows][kStepBytes] = {};
      for (int r = 0; r < kRows; ++r) std::memcpy(padded[r], at[r], left);
      for (int r = 0; r < kRows; ++r) at[r] = padded[r];
      step<T>(at, x_at, lanes);
    }
    for (int r = 0; r < kRows; ++r)
      for (int t = 0; t < T; ++t) sums[r * T + t] = sum_of_lanes(lanes[r][t]);
  }

  static constexpr CpuKernels kKernels = {F::kValues, F::kValues, prepare_step, rows_times_tokens<1>,
                                          rows_times_tokens<CpuKernels::kTokens>};
};

float dot(const float* a, const float* b, int64_t n) {
  Floats sums[4] = {zeros(), zeros(), zeros(), zeros()};
  int64_t i = 0;
  for (; i + 64 <= n; i += 64) {
    DSV32_UNROLL
    for (int k = 0; k < 4; ++k)
      sums[k] = mul_add(load_floats_anywhere(a + i + 16 * k), load_floats_anywhere(b + i + 16 * k), sums[k]);
  }
  for (; i + 16 <= n; i += 16)
    sums[0] = mul_add(load_floats_anywhere(a + i), load_floats_anywhere(b + i), sums[0]);
  if (i < n) {
    alignas(64) float padded[2][16] = {};
    std::memcpy(padded[0], a + i, static_cast<size_t>(n - i) * sizeof(float));
    std::memcpy(padded[1], b + i, static_cast<size_t>(n - i) * sizeof(float));
    sums[1] = mul_add(load_floats(padded[0]), load_floats(padded[1]), sums[1]);
  }
  return sum_of_lanes(add(add(sums[0], sums[1]), add(sums[2], sums[3])));
}

void axpy(float scale, const float* x, float* y, int64_t n) {
  const Floats factor = broadcast(scale);
  int64_t i = 0;
  for (; i + 16 <= n; i += 16)
    store_floats(mul_add(factor, load_floats_anywhere(x + i), load_floats_anywhere(y + i)), y + i);
  if (i < n) {
    alignas(64) float padded[2][16] = {};
    std::memcpy(padded[0], x + i, static_cast<size_t>(n - i) * sizeof(float));
    std::memcpy(padded[1], y + i, static_cast<size_t>(n - i) * sizeof(float));
    store_floats(mul_add(factor, load_floats(padded[0]), load_floats(padded[1])), padded[1]);
    std::memcpy(y + i, padded[1], static_cast<size_t>(n - i) * sizeof(float));
  }
}

const char* target_name() { return hwy::TargetName(HWY_TARGET); }

const CpuKernels* kernels_of(TensorType type) {
  switch (type) {
    case TensorType::f32: return &VectorFormat<FloatFormat<float>>::kKernels;
    case TensorType::f16: return &VectorFormat<FloatFormat<hwy::float16_t>>::kKernels;
    case TensorType::bf16: return &VectorFormat<FloatFormat<hwy::bfloat16_t>>::kKernels;
    case TensorType::q4_0: return &VectorFormat<SmallBlockFormat<BlockQ4_0>>::kKernels;
    case TensorType::q4_1: return &VectorFormat<SmallBlockFormat<BlockQ4_1>>::kKernels;
    case TensorType::q5_0: return &VectorFormat<SmallBlockFormat<BlockQ5_0>>::kKernels;
    case TensorType::q5_1: return &VectorFormat<SmallBlockFormat<BlockQ5_1>>::kKernels;
    case TensorType::q8_0: return &VectorFormat<SmallBlockFormat<BlockQ8_0>>::kKernels;
    case TensorType::iq4_nl: return &VectorFormat<SmallBlockFormat<BlockIQ4_NL>>::kKernels;
    case TensorType::mxfp4: return &VectorFormat<Fp4Format<BlockMXFP4>>::kKernels;
    case TensorType::nvfp4: return &VectorFormat<Fp4Format<BlockNVFP4>>::kKernels;
    case TensorType::q2_k: return &VectorFormat<BlockFormat<BlockQ2_K>>::kKernels;
    case TensorType::q3_k: return &VectorFormat<BlockFormat<BlockQ3_K>>::kKernels;
    case TensorType::q4_k: return &VectorFormat<BlockFormat<BlockQ4_K>>::kKernels;
    case TensorType::q5_k: return &VectorFormat<BlockFormat<BlockQ5_K>>::kKernels;
    case TensorType::q6_k: return &VectorFormat<BlockFormat<BlockQ6_K>>::kKernels;
    case TensorType::iq1_s: return &VectorFormat<BlockFormat<BlockIQ1_S>>::kKernels;
    case TensorType::iq1_m: return &VectorFormat<BlockFormat<BlockIQ1_M>>::kKernels;
    case TensorType::iq2_xxs: return &VectorFormat<BlockFormat<BlockIQ2_XXS>>::kKernels;
    case TensorType::iq2_xs: return &VectorFormat<BlockFormat<BlockIQ2_XS>>::kKernels;
    case TensorType::iq2_s: return &VectorFormat<BlockFormat<BlockIQ2_S>>::kKernels;
    case TensorType::iq3_xxs: return &VectorFormat<BlockFormat<BlockIQ3_XXS>>::kKernels;
    case TensorType::iq3_s: return &VectorFormat<BlockFormat<BlockIQ3_S>>::kKernels;
    case TensorType::iq4_xs: return &VectorFormat<BlockFormat<BlockIQ4_XS>>::kKernels;
  }
  return nullptr;
}

}  // namespace HWY_NAMESPACE
}  // namespace dsv32
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace dsv32 {
namespace {

HWY_EXPORT(kernels_of);
HWY_EXPORT(target_name);
HWY_EXPORT(dot);
HWY_EXPORT(axpy);

constexpr int kRows = CpuKernels::kRows;
constexpr int kTokens = CpuKernels::kTokens;

// Prepared activations of this many tokens stay in the second-level cache while rows pass by (16 x 7168
// floats: 448 KiB).
constexpr int64_t kTokenChunk = 16;

const CpuKernels& kernels_of(const WeightMatrix& weight) {
  assert(weight.row_bytes >= row_bytes(weight.type, weight.n_cols));
  const CpuKernels* kernels = vnni_kernels_of(weight.type);
  if (kernels == nullptr) kernels = HWY_DYNAMIC_DISPATCH(kernels_of)(weight.type);
  assert(kernels != nullptr);
  return *kernels;
}

void multiply_rows(const CpuMatmul& args, const CpuActivations& x, int64_t row_begin, int64_t row_end) {
  for (int64_t chunk = 0; chunk < args.n_tokens; chunk += kTokenChunk) {
    const float* tokens[kTokenChunk];
    const int64_t n = std::min(kTokenChunk, args.n_tokens - chunk);
    for (int64_t t = 0; t < n; ++t) tokens[t] = x.token(chunk + t);
    cpu_multiply_rows(args.weight, args.mat, row_begin, row_end, {tokens, static_cast<size_t>(n)},
                      args.y + chunk * args.y_stride + row_begin, args.y_stride);
  }
}

// Rows that a thread takes at a time: whole tiles, few enough that every thread gets several shares. The
// first tile of a share comes without warning, so shares are long; but when tokens pass over them more than
// once, they stay in the second-level cache.
int64_t rows_at_a_time(int64_t n_rows, int64_t n_tokens, int n_threads) {
  const int64_t most = n_tokens <= kTokenChunk ? 256 : 32;
  return std::clamp<int64_t>(n_rows / (4 * n_threads) / kRows * kRows, kRows, most);
}

}  // namespace

std::string cpu_instruction_set() {
  const std::string name = HWY_DYNAMIC_DISPATCH(target_name)();
  return vnni_kernels_of(TensorType::q8_0) ? name + "+VNNI" : name;
}

CpuActivations::CpuActivations(const WeightMatrix& weight, const float* x, int64_t x_stride, int64_t n_tokens)
    : kernels_(kernels_of(weight)),
      x_(x),
      x_stride_(x_stride),
      n_cols_(weight.n_cols),
      n_tokens_(n_tokens),
      n_steps_((n_cols_ + kernels_.step_values - 1) / kernels_.step_values),
      n_floats_(n_steps_ * kernels_.step_floats),
      floats_(hwy::AllocateAligned<float>(static_cast<size_t>(std::max<int64_t>(n_tokens, 1) * n_floats_))) {
  if (!floats_)
    fail(ErrorKind::memory,
         format("no memory for the activations of %lld tokens", static_cast<long long>(n_tokens)),
         "a smaller batch of tokens needs less");
}

void CpuActivations::prepare(int64_t u) {
  const int64_t t = u / n_steps_, begin = u % n_steps_ * kernels_.step_values;
  const int64_t n = std::min<int64_t>(kernels_.step_values, n_cols_ - begin);
  kernels_.prepare_step(x_ + t * x_stride_ + begin, static_cast<int>(n),
                        floats_.get() + u * kernels_.step_floats);
}

// In tiles of kRows and kTokens. What is missing to a full tile is computed from the last row or token and
// dropped.
void cpu_multiply_rows(const WeightMatrix& weight, int64_t mat, int64_t row_begin, int64_t row_end,
                       std::span<const float* const> tokens, float* y, int64_t y_stride) {
  assert(weight.data != nullptr && mat >= 0 && mat < weight.n_mats);
  const CpuKernels& kernels = kernels_of(weight);
  const size_t n_row_bytes = dsv32::row_bytes(weight.type, weight.n_cols);
  const auto n_tokens = static_cast<int64_t>(tokens.size());
  for (int64_t row = row_begin; row < row_end; row += kRows)
    for (int64_t token = 0; token < n_tokens; token += kTokens) {
      const uint8_t* rows[kRows];
      const float* x[kTokens];
      float sums[kRows * kTokens];
      for (int64_t r = 0; r < kRows; ++r) rows[r] = weight.row(mat, std::min(row + r, row_end - 1));
      for (int64_t t = 0; t < kTokens; ++t)
        x[t] = tokens[static_cast<size_t>(std::min(token + t, n_tokens - 1))];
      const int64_t n_t = n_tokens - token == 1 ? 1 : kTokens;
      (n_t == 1 ? kernels.one_token : kernels.many_tokens)(rows, n_row_bytes, x, sums);
      for (int64_t t = 0; t < std::min(n_t, n_tokens - token); ++t)
        for (int64_t r = 0; r < std::min<int64_t>(kRows, row_end - row); ++r)
          y[(token + t) * y_stride + row + r - row_begin] = sums[r * n_t + t];
    }
}

void cpu_matmul_rows(const CpuMatmul& args, int64_t row_begin, int64_t row_end) {
  CpuActivations x(args.weight, args.x, args.x_stride, args.n_tokens);
  for (int64_t u = 0; u < x.n_units(); ++u) x.prepare(u);
  multiply_rows(args, x, row_begin, row_end);
}

void cpu_matmul(const CpuMatmul& args, WorkerPool& workers) {
  CpuActivations x(args.weight, args.x, args.x_stride, args.n_tokens);
  const int64_t n_rows = args.weight.n_rows;
  const bool is_shared = products_worth_sharing(n_rows * args.weight.n_cols * args.n_tokens);
  workers.parallel_for(x.n_units(), is_shared, [&](int64_t u) { x.prepare(u); });
  const int64_t chunk = rows_at_a_time(n_rows, args.n_tokens, workers.n_threads());
  workers.parallel_for((n_rows + chunk - 1) / chunk, is_shared, [&](int64_t c) {
    multiply_rows(args, x, c * chunk, std::min((c + 1) * chunk, n_rows));
  });
}

float cpu_dot(const float* a, const float* b, int64_t n) { return HWY_DYNAMIC_DISPATCH(dot)(a, b, n); }

void cpu_axpy(float scale, const float* x, float* y, int64_t n) {
  HWY_DYNAMIC_DISPATCH(axpy)(scale, x, y, n);
}

}  // namespace dsv32

#endif  // HWY_ONCE
