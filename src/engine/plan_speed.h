// The speed to expect of a plan for the 671B model's shape: the bytes that each memory is read of, over the
// rates at which such memories were read, and the time that layers take besides.
//
// All rates stand in two tables, of GPUs and of formats, and come from docs/performance.md. Expected speeds
// lie within 15 % of those measured on four machines (tests/test_plan_speed.cpp).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/plan.h"

namespace dsv32 {

// Tokens of context at which a speed is reckoned, and of the prompt.
inline constexpr int64_t kSpeedContext = 4096, kSpeedPrompt = 32768;
// Of a machine that is not there.
inline constexpr int kServerThreads = 30;

struct GpuKind {
  const char* name;        // "H200"
  uint64_t n_bytes;        // as nvidia-smi reports it
  uint64_t n_least_bytes;  // a GPU of so many is taken for one
  double layer_seconds;    // of a token and layer, beside its weights: attention, index, launches
  double prompt_rate;      // tokens a second where all 61 layers are its own
  double link_rate;        // of weights in host memory, bytes a second
  bool is_measured;
};
// By its name in any case; null when there is none.
const GpuKind* find_gpu(const std::string& name);

struct PlanSpeed {
  double decode_rate = 0;  // tokens a second
  double prompt_rate = 0;  // 0: without a GPU none is known
  const GpuKind* gpu = nullptr;
  double gpu_seconds = 0, host_seconds = 0;        // of a decode token
  double gpu_bytes_rate = 0, host_bytes_rate = 0;  // of weights in this format, bytes a second
};

// For a prompt of n_prompt tokens, where so many threads read the host's memory. Nothing for models of other
// shapes: their layers were not timed.
std::optional<PlanSpeed> expected_speed(const ModelArgs& args, const MemoryPlan& plan, const Machine& machine,
                                        int n_threads = kServerThreads, int64_t n_prompt = kSpeedPrompt);

}  // namespace dsv32
