// The CPU as a Backend: every operation in its plainest form, threads over independent outputs.
//
// It is the oracle for other backends, so it follows the formulas in spec order and adds in a fixed order:
// the bits of a token's result depend neither on the other tokens of the step nor on the number of threads.
// Weights are used where the file is mapped. Not thread-safe: one caller at a time.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "backend/backend.h"
#include "backend/memory_budget.h"
#include "base/worker_pool.h"

namespace dsv32 {

class CpuBackend : public Backend {
 public:
  // n_threads: of its worker pool. Only limits.host counts: this backend's device is the host.
  explicit CpuBackend(int n_threads, const MemoryLimits& limits = {});

  const char* name() const override { return "cpu"; }
  std::string numerics() const override;
  bool works_in_host_memory() const override { return true; }
  bool roles_agree() const override { return true; }
  void* alloc(Place place, size_t n_bytes, const char* what) override;
  void free(Place place, void* memory) override;
  void upload(void* device, const void* host, size_t n_bytes) override;
  void download(void* host, const void* device, size_t n_bytes) override;
  MemoryInfo memory_info(Place place) const override;
  uint8_t* alloc_weights(Place place, size_t n_bytes, size_t n_part_bytes) override;
  void set_interrupt(const std::function<bool()>* is_interrupted) override {
    workers_.set_interrupt(is_interrupted);
  }
  std::unique_ptr<Recording> record(const std::function<void()>&) override { return nullptr; }
  void mark() override { marks_.push_back(std::chrono::steady_clock::now()); }
  std::vector<double> laps() override;

  // cpu_backend.cpp
  void embed(const Embed&) override;
  void rms_norm(const RmsNorm&) override;
  void layer_norm(const LayerNorm&) override;
  void rope(const Rope&) override;
  void hadamard(const Hadamard&) override;
  void matmul(const Matmul&) override;
  void matmul_heads(const MatmulHeads&) override;
  void add(const Add&) override;
  void silu_mul(const SiluMul&) override;
  // cpu_attention.cpp
  void quantize_fp8(const QuantizeFp8&) override;
  void stream_rows(const StreamRows&) override;
  void store_latents(const StoreLatents&) override;
  void store_index_keys(const StoreIndexKeys&) override;
  void indexer_scores(const IndexerScores&) override;
  void select_topk(const SelectTopk&) override;
  void resolve(const Resolve&) override;
  void fetch_latents(const FetchLatents&) override;
  void attend(const Attend&) override;
  // cpu_experts.cpp
  void route_experts(const RouteExperts&) override;
  void run_experts(const RunExperts&) override;
  // cpu_sampling.cpp
  void sample(const Sample&) override;

 private:
  MemoryBudget memory_;
  std::vector<Buffer<uint8_t>> weights_;
  WorkerPool workers_;
  std::vector<float> scratch_;  // of the operation that runs; kept so that it is not allocated at every step
  std::vector<std::chrono::steady_clock::time_point> marks_;
};

}  // namespace dsv32
