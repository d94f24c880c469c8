// The CPU as a Backend: every operation in its plainest form, with independent outputs divided over threads.
//
// It is the reference for other backends, so it follows the formulas in spec order and adds in a fixed order:
// the bits of a token's result depend neither on the other tokens of the step nor on the number of threads.
// Weights are read from the mapped file. Not thread-safe: one caller at a time.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "backend/backend.h"
#include "backend/memory_budget.h"
#include "base/worker_pool.h"

namespace dsv32 {

// Which two values of a head are rotated together: interleaved in main attention, half-split in the indexer
// (model.py as corrected on 2025-11-17).
enum class RopeLayout { interleaved, half_split };  // (2i, 2i+1) | (i, i + dim/2)

class CpuBackend : public Backend {
 public:
  // n_threads: of the worker pool. Only limits.host is used: this backend's device is the host.
  explicit CpuBackend(int n_threads, const MemoryLimits& limits = {})
      : memory_(limits.host), workers_(n_threads) {}

  const char* name() const override { return "cpu"; }
  std::string numerics() const override;
  bool works_in_host_memory() const override { return true; }
  bool roles_agree() const override { return true; }
  bool can_team_with(const Backend& other) const override { return numerics() == other.numerics(); }
  void* alloc(Place place, size_t n_bytes, const char* what) override;
  void free(Place place, void* memory) override;
  void upload(void* device, const void* host, size_t n_bytes) override;
  void download(void* host, const void* device, size_t n_bytes) override;
  std::unique_ptr<Milestone> milestone() override { return std::make_unique<Milestone>(); }  // all is done
  MemoryInfo memory_info(Place place) const override;
  uint8_t* alloc_weights(Place place, size_t n_bytes, size_t n_part_bytes) override;
  void set_interrupt(const std::function<bool()>* is_interrupted) override {
    workers_.set_interrupt(is_interrupted);
  }
  void mark() override { marks_.push_back(std::chrono::steady_clock::now()); }
  std::vector<double> laps() override;

  // cpu_backend.cpp
  void embed(const Embed&) override;
  void rms_norm(const RmsNorm&) override;
  void matmul(const Matmul&) override;
  void matmul_gated(const GatedMatmul&) override;
  void matmul_heads(const MatmulHeads&) override;
  void gather(const Gather&) override;
  void add(const Add&) override;
  // cpu_attention.cpp
  void stream_rows(std::span<const RowCopy>) override;
  void save_rows(std::span<const RowCopy> copies) override { CpuBackend::stream_rows(copies); }
  void store_tokens(const StoreTokens&) override;
  void turn_queries(const TurnQueries&) override;
  void resolve(const Resolve&) override;
  void fetch_latents(const FetchLatents&) override;
  void attend(const Attend&) override;
  // cpu_indexer.cpp
  void indexer_scores(const IndexerScores&) override;
  void select_topk(const SelectTopk&) override;
  // cpu_quest.cpp
  void quest_scores(const QuestScores&) override;
  // cpu_experts.cpp
  void route_experts(const RouteExperts&) override;
  void run_experts(const RunExperts&) override;
  // cpu_sampling.cpp
  void sample(const Sample&) override;

  // The parts of store_tokens() and turn_queries(). cpu_backend.cpp
  // Rotates pair i of each head's first dim values by pos * frequencies[i], in place. x: [n_tokens, n_heads],
  // heads head_stride apart; frequencies [dim / 2].
  void rope(const StepTokens& step, RopeLayout layout, float* x, int64_t n_heads, int64_t head_stride,
            const float* frequencies, int64_t dim);
  // x [n_rows, width] = (x - mean) * rsqrt(var + eps) * weight + bias, per row.
  void layer_norm(float* x, int64_t n_rows, int64_t width, const float* weight, const float* bias, float eps);
  // Each row of x [n_rows, width] times the orthonormal Hadamard matrix in Sylvester order; width is a power
  // of two.
  void hadamard(float* x, int64_t n_rows, int64_t width);
  // cpu_attention.cpp
  // Converts x [n_rows, width] to e4m3 `values` with a power-of-two scale for each tile of kTileValues (rule:
  // base/numbers.h, e4m3_tile_scale): scales [n_rows, tiles(width)].
  void quantize_fp8(const float* x, int64_t n_rows, int64_t width, uint8_t* values, float* scales);
  template <typename Act>
  void in_turn(const StepTokens& step, const CacheView& cache, int64_t n_work, const Act& act);
  // Stores each token's row in the host pool and its scales in the key page, and copies the row to a slot:
  // its position's, or the one from claim_newest(). c [n_tokens, kv_lora_rank] after kv_norm; k_pe [n_tokens,
  // qk_rope_head_dim] after rope, rows k_pe_stride apart.
  void store_latents(const StepTokens& step, const CacheView& cache, const float* c, const float* k_pe,
                     int64_t k_pe_stride);
  // Stores each token's key in its key page, rounded as the layout says. k [n_tokens, index_head_dim] after
  // rope and Hadamard.
  void store_index_keys(const StepTokens& step, const CacheView& cache, const float* k);
  // cpu_quest.cpp
  // Stores the bounds of the spans that the step's tokens complete; all of their rows lie in the host pool.
  void store_bounds(const StepTokens& step, const CacheView& cache);

 private:
  MemoryBudget memory_;
  std::vector<Buffer<uint8_t>> weights_;
  WorkerPool workers_;
  std::vector<float> scratch_;  // of the current operation; kept to save allocations
  std::vector<std::chrono::steady_clock::time_point> marks_;
};

}  // namespace dsv32
