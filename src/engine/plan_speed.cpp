// All rates stand in two tables, of GPUs and of formats, and come from docs/performance.md.
#include "engine/plan.h"

#include <algorithm>

#include "base/text.h"

namespace dsv32 {
namespace {

constexpr double kGB = 1e9;

// layer_seconds: six layers take 1.07 ms at 4 096 tokens on an H200, of which 0.27 ms are not for weights.
// prompt_rate: measured with six and with twenty layers, times 0.87, the share of it that two devices with 61
// layers reach; an H100's is 0.95 of an H200's, and its links give 45 of 51 GB/s. The last row stands for
// GPUs that were not tried: half of an RTX 4090's memory rate, a fifth of an H100's products, PCIe 4.0.
constexpr GpuKind kGpus[] = {
    {"H200", uint64_t{143771} << 20, uint64_t{120} << 30, 45e-6, 2830, 45 * kGB, true},
    {"H100", uint64_t{81559} << 20, uint64_t{60} << 30, 45e-6, 2690, 45 * kGB, true},
    {"a GPU of less memory", 0, 0, 45e-6, 540, 22 * kGB, false},
};
constexpr double kSmallGpuRate = 500 * kGB;

// 15 to 30 threads read 111 to 163 GB/s from a Xeon's eight channels, by machine.
constexpr double kHostRate = 120 * kGB, kThreadRate = 8 * kGB;

// h200, h100: GB/s at which a token's weights are read, without the layers' own time, measured over six
// layers. host: the share of the host memory's rate that products of the CPU reach.
struct FormatRate {
  TensorType format;
  double h200, h100, host;
};
constexpr FormatRate kFormats[] = {
    {TensorType::q4_k, 3200, 2550, 1},
    {TensorType::q2_k, 2075, 1985, 0.92},
    {TensorType::q3_k, 1860, 1800, 1},
    {TensorType::iq4_xs, 2050, 2015, 1},
    {TensorType::iq3_xxs, 1415, 1405, 0.6},
    {TensorType::iq2_xxs, 1100, 1085, 0.57},
    {TensorType::mxfp4, 1375, 1375, 0.62},
    // GPU rates estimated from the instructions that a block takes, not timed in whole steps:
    {TensorType::q8_0, 3200, 2550, 1},
    {TensorType::q6_k, 2900, 2500, 1},
    {TensorType::q5_k, 2900, 2500, 1},
    {TensorType::iq3_s, 1350, 1350, 0.57},
    {TensorType::iq2_s, 1000, 1000, 0.57},
    {TensorType::iq2_xs, 1000, 1000, 0.59},
    {TensorType::iq1_m, 800, 800, 0.54},
    {TensorType::iq1_s, 800, 800, 0.46},
    {TensorType::nvfp4, 1375, 1375, 0.46},
    {TensorType::bf16, 3200, 2550, 1},
    {TensorType::f16, 3200, 2550, 1},
    {TensorType::f32, 3200, 2550, 1},
};
constexpr FormatRate kOthers = {TensorType::q4_0, 1375, 1375, 0.6};  // Q4_0 to Q5_1, IQ4_NL

const FormatRate& rate_of(TensorType format) {
  const auto found = std::ranges::find(kFormats, format, &FormatRate::format);
  return found == std::end(kFormats) ? kOthers : *found;
}

const GpuKind& kind_of(const MemoryInfo& device) {
  return *std::ranges::find_if(
      kGpus, [&](const GpuKind& kind) { return device.n_bytes_total >= kind.n_least_bytes; });
}

// Chunks go from device to device, one behind the other. On each device a chunk takes as long as its
// products, or as the transfer of the host's experts if that takes longer.
double prompt_seconds(const MemoryPlan& plan, const Machine& machine, int64_t n_prompt) {
  const auto n_chunk = static_cast<double>(std::min(plan.chunk, n_prompt));
  const auto n_devices = static_cast<double>(plan.stages.size());
  double once = 0, slowest = 0;
  for (size_t i = 0; i < plan.stages.size(); ++i) {
    const StagePlan& stage = plan.stages[i];
    const GpuKind& kind = kind_of(machine.devices[i]);
    uint64_t n_streamed = 0;
    for (auto l = static_cast<size_t>(stage.first_layer); l < static_cast<size_t>(stage.end_layer); ++l)
      n_streamed += plan.has_host_experts[l] ? machine.weights.layers[l].experts : 0;
    const double share = static_cast<double>(stage.end_layer - stage.first_layer) /
                         static_cast<double>(plan.has_host_experts.size());
    const double link_rate = std::min(kind.link_rate, kHostRate / n_devices);
    const double seconds =
        std::max(n_chunk * share / kind.prompt_rate, static_cast<double>(n_streamed) / link_rate);
    once += seconds, slowest = std::max(slowest, seconds);
  }
  const double n_chunks = static_cast<double>(n_prompt) / n_chunk;
  return once + (n_chunks - 1) * slowest;
}

}  // namespace

const GpuKind* find_gpu(const std::string& name) {
  for (const GpuKind& kind : kGpus)
    if (kind.is_measured && upper_case(name) == kind.name) return &kind;
  return nullptr;
}

std::optional<PlanSpeed> expected_speed(const ModelArgs& args, const MemoryPlan& plan, const Machine& machine,
                                        int n_threads, int64_t n_prompt) {
  if (args.n_layers != 61 || args.dim != 7168 || args.n_heads != 128 || args.n_routed_experts != 256 ||
      args.moe_inter_dim != 2048)
    return std::nullopt;
  const FormatRate& format = rate_of(machine.weights.format);
  PlanSpeed speed;
  speed.host_bytes_rate = std::min(kHostRate, n_threads * kThreadRate) * format.host;
  const uint64_t n_host = machine.is_apart ? plan.n_host_bytes_read : plan.n_bytes_read();
  speed.host_seconds = static_cast<double>(n_host) / speed.host_bytes_rate;
  for (size_t i = 0; machine.is_apart && i < plan.stages.size(); ++i) {
    const StagePlan& stage = plan.stages[i];
    const GpuKind& kind = kind_of(machine.devices[i]);
    const double rate = !kind.is_measured    ? std::min(kSmallGpuRate, format.h100 * kGB)
                        : &kind == &kGpus[0] ? format.h200 * kGB
                                             : format.h100 * kGB;
    if (i == 0) speed.gpu = &kind, speed.gpu_bytes_rate = rate;
    speed.gpu_seconds += static_cast<double>(stage.end_layer - stage.first_layer) * kind.layer_seconds +
                         static_cast<double>(stage.n_bytes_read) / rate;
  }
  speed.decode_rate = 1 / (speed.gpu_seconds + speed.host_seconds);
  if (machine.is_apart)
    speed.prompt_rate = static_cast<double>(n_prompt) / prompt_seconds(plan, machine, n_prompt);
  return speed;
}

}  // namespace dsv32
