// What a plan expects of GPUs, links and host memory, without drafts. Rates of GPUs stand in gpu_kinds.cpp,
// those of formats here; both, and the shares of them that are reached, come from docs/performance.md.
#include "engine/plan.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

namespace dsv32 {
namespace {

constexpr double kGB = 1e9;

// Of its links two H100 reach 45 of 63 GB/s each.
constexpr double kLinkShare = 45. / 63;

// Hopper's kernels: six layers take 1.07 ms at 4 096 tokens on an H200, of which 0.27 ms are not for weights.
constexpr double kHopperLayerSeconds = 45e-6;

// Other GPUs run the generic kernels, which only an H100 has run (CUDA_ARCHS=80on90, 2026-11-26). There a
// layer takes 47 us more, and prompts take 1.75 times as long. Elsewhere
// - weights come at the share of the memory's rate that an H100 reaches with Q4_K (2550 of 3350 GB/s), but no
//   faster than clocks allow: formats of few bits are bound by instructions, which an H200 shows;
// - a prompt's token takes its products at the tensor cores' rate, and in clocks what it takes besides on the
//   H100. The products: 73 GFLOP with weights, 35 of attention to 2 048 rows, 16 of scores of 16 384 keys.
constexpr double kMemoryShare = 2550. / 3350;
constexpr double kGenericLayerSeconds = kHopperLayerSeconds + 47e-6, kGenericPromptTimes = 1.75;
constexpr double kPromptWork = 124e9;

// In a team a layer takes so much more time than its bytes do: divided products are short, and members meet
// (two H200, 18 and 61 layers Q2_K, 2026-11-29). Prompts reach this share of all devices' rates (two H100, 18
// layers Q2_K, 2026-11-27).
constexpr double kTeamLayerSeconds = 20e-6, kTeamPromptShare = 0.9;

// Steps of several sequences read their weights at this share of one's rate on an H100 (18 layers Q2_K, 4 to
// 128 sequences); there instructions are the bound, so an H200 is as fast. From so many sequences on a team's
// layer takes longer: hidden states of all tokens are gathered, and each member reads all heads' matrices.
constexpr double kManyShare = 0.69, kTeamManySeconds = 115e-6;
constexpr int64_t kManyTokens = 8;

// h200, h100: GB/s at which a token's weights are read, without the layers' own time, measured over six to 61
// layers. Formats that are multiplied as integers were timed so on an H200 alone; an H100's rate is that of
// fp16 products. host: the share of the host memory's rate that products of the CPU reach.
struct FormatRate {
  TensorType format;
  double h200, h100, host;
};
constexpr FormatRate kFormats[] = {
    {TensorType::q4_k, 3200, 2550, 1},
    {TensorType::q2_k, 2700, 1985, 0.92},
    {TensorType::q3_k, 2250, 1800, 1},
    {TensorType::iq4_xs, 2850, 2015, 1},
    {TensorType::iq3_xxs, 1415, 1405, 0.6},
    {TensorType::iq2_xxs, 1100, 1085, 0.57},
    {TensorType::iq1_s, 835, 800, 0.46},
    {TensorType::mxfp4, 2700, 1375, 0.62},
    {TensorType::q8_0, 3900, 2550, 1},
    {TensorType::q6_k, 3000, 2500, 1},
    // GPU rates estimated from the instructions that a block takes, not timed in whole steps:
    {TensorType::q5_k, 2900, 2500, 1},
    {TensorType::iq4_nl, 2850, 1375, 0.6},
    {TensorType::iq3_s, 1350, 1350, 0.57},
    {TensorType::iq2_s, 1000, 1000, 0.57},
    {TensorType::iq2_xs, 1000, 1000, 0.59},
    {TensorType::iq1_m, 800, 800, 0.54},
    {TensorType::nvfp4, 1375, 1375, 0.46},
    {TensorType::bf16, 3200, 2550, 1},
    {TensorType::f16, 3200, 2550, 1},
    {TensorType::f32, 3200, 2550, 1},
};
constexpr FormatRate kOthers = {TensorType::q4_0, 1375, 1375, 0.6};  // Q4_0 to Q5_1

const FormatRate& rate_of(TensorType format) {
  const auto found = std::ranges::find(kFormats, format, &FormatRate::format);
  return found == std::end(kFormats) ? kOthers : *found;
}

const GpuKind& kind_of(const Machine& machine, size_t device) {
  return device < machine.gpus.size() ? *machine.gpus[device]
                                      : gpu_like("", machine.devices[device].n_bytes_total);
}

double generic_prompt_rate(const GpuKind& kind) {
  const GpuKind& ran = *find_gpu("H100");
  const double n_clocks =
      (kGenericPromptTimes / ran.prompt_rate - kPromptWork / ran.tensor_rate) * ran.clock_rate;
  return 1 / (kPromptWork / kind.tensor_rate + n_clocks / kind.clock_rate);
}

GpuRates rates_of(const GpuKind& kind, const FormatRate& format) {
  const GpuKind &h100 = *find_gpu("H100"), &h200 = *find_gpu("H200");
  const double link = kLinkShare * kind.link_rate;
  if (&kind == &h100 || &kind == &h200)
    return {(&kind == &h200 ? format.h200 : format.h100) * kGB, kManyShare * format.h100 * kGB,
            kHopperLayerSeconds, link, kind.prompt_rate};
  const double by_clocks = format.h200 * kGB * kind.clock_rate / h200.clock_rate,
               bytes = std::min(kMemoryShare * kind.memory_rate, by_clocks);
  return {bytes, kManyShare * bytes, kGenericLayerSeconds, link, generic_prompt_rate(kind)};
}

// How many times the experts of one token n tokens read, where all are chosen equally often.
double experts_times(const ModelArgs& args, int64_t n) {
  if (args.n_routed_experts == 0) return 1;
  const double share =
      static_cast<double>(args.n_activated_experts) / static_cast<double>(args.n_routed_experts);
  return (1 - std::pow(1 - share, static_cast<double>(n))) / share;
}

// Chunks go from device to device, one behind the other. On each device a chunk takes as long as its
// products, or as the transfer of the host's experts if that takes longer. A team divides each chunk.
double prompt_seconds(const MemoryPlan& plan, const Machine& machine, std::span<const GpuRates> rates,
                      int64_t n_prompt) {
  if (plan.is_team)
    return static_cast<double>(n_prompt) /
           (kTeamPromptShare * rates.front().prompt * static_cast<double>(plan.n_members()));
  const auto n_chunk = static_cast<double>(std::min(plan.chunk, n_prompt));
  const auto n_devices = static_cast<double>(plan.stages.size());
  double once = 0, slowest = 0;
  for (size_t i = 0; i < plan.stages.size(); ++i) {
    const StagePlan& stage = plan.stages[i];
    uint64_t n_streamed = 0;
    for (auto l = static_cast<size_t>(stage.first_layer); l < static_cast<size_t>(stage.end_layer); ++l)
      n_streamed += plan.has_host_experts[l] ? machine.weights.layers[l].experts : 0;
    const double share = static_cast<double>(plan.n_model_layers(stage)) /
                         static_cast<double>(plan.cache.n_layers - plan.cache.n_draft_layers);
    const double link_rate = std::min(rates[i].link, machine.host_rate.value_or(kHostRate) / n_devices);
    const double seconds =
        std::max(n_chunk * share / rates[i].prompt, static_cast<double>(n_streamed) / link_rate);
    once += seconds, slowest = std::max(slowest, seconds);
  }
  const double n_chunks = static_cast<double>(n_prompt) / n_chunk;
  return once + (n_chunks - 1) * slowest;
}

}  // namespace

bool has_known_speed(const ModelArgs& args) {
  return args.n_layers == 61 && args.dim == 7168 && args.n_heads == 128 && args.n_routed_experts == 256 &&
         args.moe_inter_dim == 2048;
}

PlanSpeed expected_speed(const ModelArgs& args, const MemoryPlan& plan, const Machine& machine,
                         int64_t n_seqs, int64_t n_prompt) {
  const FormatRate& format = rate_of(machine.weights.format);
  // With several stages as many groups of sequences are on their way, unless the host is the bound.
  const int64_t n_groups =
      plan.n_host_expert_bytes > 0 ? 1 : std::min(n_seqs, std::max<int64_t>(1, plan.n_stages()));
  const int64_t n_step = (n_seqs + n_groups - 1) / n_groups;
  const double n_times = experts_times(args, n_step);
  const double team_seconds = !plan.is_team ? 0 : n_step < kManyTokens ? kTeamLayerSeconds : kTeamManySeconds;
  PlanSpeed speed;
  std::vector<GpuRates> rates;
  double link_rate = std::numeric_limits<double>::infinity(), slowest = 0;
  for (size_t i = 0; machine.is_apart && i < plan.stages.size(); ++i) {
    const StagePlan& stage = plan.stages[i];
    rates.push_back(rates_of(kind_of(machine, i), format));
    link_rate = std::min(link_rate, rates[i].link);
    const double n_bytes = static_cast<double>(stage.n_bytes_read - stage.n_expert_bytes_read) +
                           n_times * static_cast<double>(stage.n_expert_bytes_read);
    const double seconds =
        static_cast<double>(plan.n_model_layers(stage)) * (rates[i].layer_seconds + team_seconds) +
        n_bytes / (n_step > 1 ? rates[i].many_bytes : rates[i].bytes);
    slowest = std::max(slowest, seconds);
    speed.gpu_seconds = plan.is_team ? slowest : speed.gpu_seconds + seconds;
  }
  const auto n_host = static_cast<double>(machine.is_apart ? plan.n_host_bytes_read : plan.n_bytes_read());
  const double host_rate = machine.host_rate.value_or(std::min(kHostRate, machine.n_threads * kThreadRate));
  speed.host_bytes_rate = host_rate * format.host;
  speed.host_seconds = n_times * n_host / speed.host_bytes_rate;
  // Beside the CPU's part; where the link is slow, the CPU waits for it.
  speed.host_seconds =
      std::max(speed.host_seconds, n_times * static_cast<double>(plan.n_link_bytes_read) / link_rate);
  speed.decode_rate = static_cast<double>(n_seqs) / std::max(speed.gpu_seconds + speed.host_seconds,
                                                             static_cast<double>(n_groups) * slowest);
  if (!machine.is_apart) return speed;
  speed.gpu = &kind_of(machine, 0), speed.rates = rates.front();
  speed.prompt_rate = static_cast<double>(n_prompt) / prompt_seconds(plan, machine, rates, n_prompt);
  return speed;
}

}  // namespace dsv32
