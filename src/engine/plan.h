// The memory plan: what a model with a given context needs, and where, known before anything is allocated.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "context/latent_cache.h"
#include "weights/config.h"

namespace dsv32 {

struct EngineOptions {
  std::string model_path;
  std::string backend = "auto";
  int device = 0;     // which GPU
  int n_threads = 0;  // 0: all cores
  KvType kv_type = KvType::fp8;
  std::optional<int64_t> context;      // tokens; nothing: the model's, or what half of the free memory holds
  std::optional<int64_t> topk_buffer;  // rows of a sequence and layer on the device; nothing: all ("full")
  int64_t chunk = 512;                 // most prefill tokens of a step
};

struct MemoryPlan {
  CachePlan cache;
  int64_t chunk = 0;             // most tokens of a step
  uint64_t n_weight_bytes = 0;   // of the layers that run, used where the file is mapped
  uint64_t n_skipped_bytes = 0;  // in the file and not used (MTP blocks)
  uint64_t n_activation_bytes = 0;
};

// Throws Error{usage} when a flag does not fit the model: a context beyond the model's, a buffer smaller than
// top-k.
MemoryPlan make_plan(const ModelArgs& args, const EngineOptions& options, uint64_t n_host_bytes_free);

}  // namespace dsv32
