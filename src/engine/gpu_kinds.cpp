#include "engine/gpu_kinds.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/text.h"

namespace dsv32 {
namespace {

constexpr double kPcie4 = 31.5e9, kPcie5 = 63e9;

// Rates of the SXM forms of A100, H100, H200 and B200, and of the 600 W form of the RTX PRO 6000 (Blackwell).
// prompt_rate: measured with six and with twenty layers, times 0.87, the share of it that two devices with
// 61 layers reach; an H100's is 0.95 of an H200's.
constexpr GpuKind kKinds[] = {
    {"RTX3090", uint64_t{24576} << 20, 936e9, kPcie4, 71e12, 82 * 1.695e9, 0},
    {"RTX4090", uint64_t{24564} << 20, 1008e9, kPcie4, 165.2e12, 128 * 2.52e9, 0},
    {"RTX5090", uint64_t{32607} << 20, 1792e9, kPcie5, 209.5e12, 170 * 2.407e9, 0},
    {"RTXPRO6000", uint64_t{97887} << 20, 1792e9, kPcie5, 503.8e12, 188 * 2.617e9, 0},
    {"A100", uint64_t{81920} << 20, 2039e9, kPcie4, 312e12, 108 * 1.41e9, 0, true},
    {"H100", uint64_t{81559} << 20, 3350e9, kPcie5, 989e12, 132 * 1.83e9, 2690, true},
    {"H200", uint64_t{143771} << 20, 4800e9, kPcie5, 989e12, 132 * 1.83e9, 2830, true},
    {"B200", uint64_t{183359} << 20, 8000e9, kPcie5, 2250e12, 148 * 1.86e9, 0, true},
};

// As GpuKind::name.
std::string key_of(const std::string& name) { return upper_case(replaced(name, " ", "")); }

}  // namespace

std::span<const GpuKind> gpu_kinds() { return kKinds; }

const GpuKind* find_gpu(const std::string& name) {
  const std::string key = key_of(name);
  const auto* found = std::ranges::find_if(
      kKinds, [&](const GpuKind& kind) { return key == kind.name || "RTX" + key == kind.name; });
  return found == std::end(kKinds) ? nullptr : found;
}

const GpuKind& gpu_like(const std::string& name, uint64_t n_bytes) {
  const GpuKind* like = nullptr;
  for (const GpuKind& kind : kKinds) {
    const double n_of_kind = static_cast<double>(n_bytes) / static_cast<double>(kind.n_bytes);
    if (key_of(name).find(kind.name) != std::string::npos && n_of_kind > 0.9) return kind;
    if (std::abs(n_of_kind - 1) < 0.1 && (!like || kind.memory_rate < like->memory_rate)) like = &kind;
  }
  return like ? *like : *std::ranges::min_element(kKinds, {}, &GpuKind::memory_rate);
}

std::string gpu_table() {
  std::string text = "  name          MiB   GB/s  link, GB/s  fp16, TFLOP/s  clocks, GHz\n";
  for (const GpuKind& kind : kKinds)
    text += format("  %-10s %6lld %6.0f %11.1f %14.1f %12.0f\n", kind.name,
                   as_ll(static_cast<int64_t>(kind.n_bytes >> 20)), kind.memory_rate / 1e9,
                   kind.link_rate / 1e9, kind.tensor_rate / 1e12, kind.clock_rate / 1e9);
  return text;
}

}  // namespace dsv32
