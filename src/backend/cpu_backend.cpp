// Memory and the dense operations of the CPU backend.
#include "backend/cpu_backend.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include <gnu/libc-version.h>
#include <sys/mman.h>

#include "backend/cpu_common.h"
#include "backend/cpu_matmul.h"
#include "backend/team.h"
#include "base/error.h"
#include "base/host_memory.h"
#include "base/numbers.h"
#include "base/text.h"

namespace dsv32 {
namespace {

// An allocation begins with its size, in one cache line, so that free() can unmap it.
constexpr size_t kHeaderBytes = 128;

// Raise it when a change of these sources changes the bits of rows or keys; tests/test_row_digests.cpp
// detects that.
constexpr int kNumericsEpoch = 4;

using FourFloats [[gnu::vector_size(16), gnu::aligned(4), gnu::may_alias]] = float;

// A round of a Hadamard transform: values `half` apart become their sum and their difference.
template <class Value>
[[gnu::always_inline]] inline void butterflies(Value* x, int64_t n, int64_t half) {
  for (int64_t begin = 0; begin + half < n; begin += 2 * half)
    for (int64_t i = begin; i < begin + half; ++i) {
      const Value a = x[i], b = x[i + half];
      x[i] = a + b;
      x[i + half] = a - b;
    }
}

}  // namespace

// The bits depend on the instruction set, which decides the order of sums, and on the C library's exp, sin
// and cos.
std::string CpuBackend::numerics() const {
  return format("cpu/%s/glibc-%s/epoch-%d", cpu_instruction_set().c_str(), gnu_get_libc_version(),
                kNumericsEpoch);
}

// Anonymous mappings are zeroed, and a page costs memory only once it is written.
void* CpuBackend::alloc(Place place, size_t n_bytes, const char* what) {
  const size_t n_mapped = n_bytes + kHeaderBytes;
  void* mapped = n_mapped < n_bytes || !memory_.holds(n_bytes)
                     ? MAP_FAILED
                     : mmap(nullptr, n_mapped, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED)
    fail_memory(what, n_bytes, memory_info(place).n_bytes_free,
                "a smaller context (-c) needs less, a larger --host-mem allows more");
  memory_.take(n_bytes);
  std::memcpy(mapped, &n_mapped, sizeof n_mapped);
  return static_cast<uint8_t*>(mapped) + kHeaderBytes;
}

void CpuBackend::free(Place, void* memory) {
  void* mapped = static_cast<uint8_t*>(memory) - kHeaderBytes;
  size_t n_mapped = 0;
  std::memcpy(&n_mapped, mapped, sizeof n_mapped);
  memory_.give(n_mapped - kHeaderBytes);
  munmap(mapped, n_mapped);
}

uint8_t* CpuBackend::alloc_weights(Place place, size_t n_bytes, size_t) {
  constexpr size_t kPastWeights = 256;
  return weights_.emplace_back(*this, place, static_cast<int64_t>(n_bytes + kPastWeights), "the weights")
      .data();
}

void CpuBackend::upload(void* device, const void* host, size_t n_bytes) {
  if (n_bytes) std::memcpy(device, host, n_bytes);
}

void CpuBackend::download(void* host, const void* device, size_t n_bytes) {
  if (n_bytes) std::memcpy(host, device, n_bytes);
}

MemoryInfo CpuBackend::memory_info(Place) const {
  return {total_host_memory(), memory_.n_bytes_allowed(available_host_memory()), memory_.n_bytes_used()};
}

std::vector<double> CpuBackend::laps() {
  std::vector<double> seconds;
  for (size_t i = 1; i < marks_.size(); ++i)
    seconds.push_back(std::chrono::duration<double>(marks_[i] - marks_[i - 1]).count());
  marks_.clear();
  return seconds;
}

void CpuBackend::embed(const Embed& op) {
  const int64_t dim = op.table.n_cols;
  workers_.parallel_for(op.step.n_tokens, worth_sharing(op.step.n_tokens * dim), [&](int64_t t) {
    dequantize_row(op.table.type, op.table.row(0, op.step.tokens[t]), op.out + t * dim, dim);
  });
}

void CpuBackend::rms_norm(const RmsNorm& op) {
  const int64_t out_stride = op.out_stride ? op.out_stride : op.width;
  workers_.parallel_for(op.n_rows, worth_sharing(op.n_rows * op.width), [&](int64_t r) {
    const float* x = op.x + r * op.x_stride;
    float* out = op.out + r * out_stride;
    const float mean_square = cpu_dot(x, x, op.width) / static_cast<float>(op.width);
    const float factor = 1.0f / std::sqrt(mean_square + op.eps);
    for (int64_t i = 0; i < op.width; ++i) out[i] = x[i] * factor * op.weight[i];
  });
}

void CpuBackend::layer_norm(float* all, int64_t n_rows, int64_t width, const float* weight, const float* bias,
                            float eps) {
  workers_.parallel_for(n_rows, worth_sharing(n_rows * width), [&](int64_t r) {
    float* x = all + r * width;
    float sum = 0, sum_of_squares = 0;
    for (int64_t i = 0; i < width; ++i) sum += x[i];
    const float mean = sum / static_cast<float>(width);
    for (int64_t i = 0; i < width; ++i) sum_of_squares += (x[i] - mean) * (x[i] - mean);
    const float factor = 1.0f / std::sqrt(sum_of_squares / static_cast<float>(width) + eps);
    for (int64_t i = 0; i < width; ++i) x[i] = (x[i] - mean) * factor * weight[i] + bias[i];
  });
}

void CpuBackend::rope(const StepTokens& step, RopeLayout layout, float* x, int64_t n_heads,
                      int64_t head_stride, const float* frequencies, int64_t dim) {
  const int64_t n_pairs = dim / 2;
  const bool interleaved = layout == RopeLayout::interleaved;
  const int64_t first_step = interleaved ? 2 : 1, second = interleaved ? 1 : n_pairs;
  workers_.parallel_for(step.n_tokens, worth_sharing(step.n_tokens * n_heads * dim), [&](int64_t t) {
    for (int64_t i = 0; i < n_pairs; ++i) {
      const float angle = static_cast<float>(step.pos[t]) * frequencies[i];  // f32, as model.py
      const float cosine = std::cos(angle), sine = std::sin(angle);
      for (int64_t h = 0; h < n_heads; ++h) {
        float* pair = x + (t * n_heads + h) * head_stride + i * first_step;
        const float a = pair[0], b = pair[second];
        pair[0] = a * cosine - b * sine;
        pair[second] = a * sine + b * cosine;
      }
    }
  });
}

void CpuBackend::hadamard(float* all, int64_t n_rows, int64_t width) {
  const float factor = 1.0f / std::sqrt(static_cast<float>(width));
  workers_.parallel_for(n_rows, worth_sharing(n_rows * width), [&](int64_t r) {
    float* x = all + r * width;
    butterflies(x, width, 1);
    butterflies(x, width, 2);
    for (int64_t half = 4; half < width; half *= 2)
      butterflies(reinterpret_cast<FourFloats*>(x), width / 4, half / 4);
    for (int64_t i = 0; i < width; ++i) x[i] *= factor;
  });
}

void CpuBackend::matmul(const Matmul& op) {
  const int64_t n_values = op.n_tokens * op.weight.n_rows;
  cpu_matmul(op, workers_);
  if (op.plus) add({op.plus, op.y, n_values});
  if (op.sum) add({op.y, op.sum, n_values});
}

void CpuBackend::matmul_gated(const GatedMatmul& op) {
  const int64_t n_values = op.n_tokens * op.w1.n_rows;
  cpu_matmul({op.w1, op.x, op.w1.n_cols, op.y, op.n_tokens}, workers_);
  cpu_matmul({op.w3, op.x, op.w3.n_cols, op.up, op.n_tokens}, workers_);
  workers_.parallel_for(n_values, worth_sharing(n_values),
                        [&](int64_t i) { op.y[i] = cpu_silu_mul(op.y[i], op.up[i], op.scales); });
}

void CpuBackend::matmul_heads(const MatmulHeads& op) {
  const int64_t n_heads = op.weight.n_mats, n_rows = op.weight.n_rows;
  const bool is_shared = products_worth_sharing(op.n_tokens * n_heads * n_rows * op.weight.n_cols);
  workers_.parallel_for(n_heads, is_shared, [&](int64_t h) {
    CpuActivations x(op.weight, op.x + h * op.x_head_stride, op.x_token_stride, op.n_tokens);
    for (int64_t i = 0; i < x.n_steps(); ++i) x.prepare(i);
    cpu_multiply_rows(op.weight, h, 0, n_rows, x.tokens(), op.y + h * n_rows, n_heads * n_rows);
  });
}

// Each member copies what the others have; nobody goes on before all have copied.
void CpuBackend::gather(const Gather& op) {
  constexpr size_t kWord = 4;
  const std::span<const void* const> all = op.member.team->meet(op.member.number, &op);
  const auto [n_rows, width] = std::pair(op.pieces[0].n_rows, op.pieces[0].width);
  const int64_t first_wanted = op.is_to_owners ? op.member.begin(n_rows) : 0,
                end_wanted = op.is_to_owners ? op.member.end(n_rows) : n_rows;
  for (size_t m = 0; m < all.size(); ++m) {
    const auto& from = *static_cast<const Gather*>(all[m]);
    for (size_t k = 0; k < std::size(op.pieces); ++k) {
      const Gather::Piece &its = from.pieces[k], &own = op.pieces[k];
      const bool by_rows = own.is_by_rows;
      const int64_t first_row = by_rows ? from.member.begin(own.n_rows) : 0,
                    end_row = by_rows ? from.member.end(own.n_rows) : own.n_rows,
                    first = by_rows ? 0 : from.member.begin(own.width),
                    n = by_rows ? own.width : from.member.end(own.width) - first;
      for (int64_t row = std::max(first_row, k == 0 ? first_wanted : 0);
           row < std::min(end_row, k == 0 ? end_wanted : own.n_rows); ++row)
        std::memmove(
            static_cast<uint8_t*>(own.whole) + static_cast<size_t>(row * own.width + first) * kWord,
            static_cast<const uint8_t*>(its.part) + static_cast<size_t>((row - first_row) * n) * kWord,
            static_cast<size_t>(n) * kWord);
    }
  }
  op.member.team->meet(op.member.number, nullptr);
  const int64_t at = first_wanted * width;
  if (op.sum)
    CpuBackend::add({static_cast<const float*>(op.pieces[0].whole) + at, op.sum + at,
                     (end_wanted - first_wanted) * width});
  if (op.norm.out) CpuBackend::rms_norm(op.norm);
}

void CpuBackend::add(const Add& op) {
  workers_.parallel_for(op.n_values, worth_sharing(op.n_values), [&](int64_t i) { op.y[i] += op.x[i]; });
}

}  // namespace dsv32
