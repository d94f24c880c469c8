// A CPU backend that records steps: while a step is recorded, operations are stored with their params instead
// of being done. A replay does them with these params, whatever has changed since.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "backend/cpu_backend.h"

namespace dsv32 {

class RecordingBackend : public CpuBackend {
 public:
  RecordingBackend() : CpuBackend(1) {}

  int n_recorded = 0, n_replayed = 0;
  int n_kept = 0;  // recordings that still exist

  std::unique_ptr<Recording> record(const std::function<void()>& body) override {
    std::vector<Operation> operations;
    recorded_ = &operations;
    body();
    recorded_ = nullptr;
    ++n_recorded;
    return std::make_unique<Recorded>(*this, std::move(operations));
  }

  void embed(const Embed& op) override {
    take([this, op] { CpuBackend::embed(op); });
  }
  void rms_norm(const RmsNorm& op) override {
    take([this, op] { CpuBackend::rms_norm(op); });
  }
  void matmul(const Matmul& op) override {
    take([this, op] { CpuBackend::matmul(op); });
  }
  void matmul_gated(const GatedMatmul& op) override {
    take([this, op] { CpuBackend::matmul_gated(op); });
  }
  void matmul_heads(const MatmulHeads& op) override {
    take([this, op] { CpuBackend::matmul_heads(op); });
  }
  void add(const Add& op) override {
    take([this, op] { CpuBackend::add(op); });
  }
  void store_tokens(const StoreTokens& op) override {
    take([this, op] { CpuBackend::store_tokens(op); });
  }
  void turn_queries(const TurnQueries& op) override {
    take([this, op] { CpuBackend::turn_queries(op); });
  }
  void indexer_scores(const IndexerScores& op) override {
    take([this, op] { CpuBackend::indexer_scores(op); });
  }
  void quest_scores(const QuestScores& op) override {
    take([this, op] { CpuBackend::quest_scores(op); });
  }
  void select_topk(const SelectTopk& op) override {
    take([this, op] { CpuBackend::select_topk(op); });
  }
  void resolve(const Resolve& op) override {
    take([this, op] { CpuBackend::resolve(op); });
  }
  void fetch_latents(const FetchLatents& op) override {
    take([this, op] { CpuBackend::fetch_latents(op); });
  }
  void attend(const Attend& op) override {
    take([this, op] { CpuBackend::attend(op); });
  }
  void route_experts(const RouteExperts& op) override {
    take([this, op] { CpuBackend::route_experts(op); });
  }
  void run_experts(const RunExperts& op) override {
    take([this, op] { CpuBackend::run_experts(op); });
  }

 private:
  using Operation = std::function<void()>;

  class Recorded : public Recording {
   public:
    Recorded(RecordingBackend& backend, std::vector<Operation> operations)
        : backend_(backend), operations_(std::move(operations)) {
      ++backend_.n_kept;
    }
    ~Recorded() override { --backend_.n_kept; }
    void replay() override {
      for (const Operation& operation : operations_) operation();
      ++backend_.n_replayed;
    }

   private:
    RecordingBackend& backend_;
    std::vector<Operation> operations_;
  };

  void take(Operation operation) {
    if (recorded_)
      recorded_->push_back(std::move(operation));
    else
      operation();
  }

  std::vector<Operation>* recorded_ = nullptr;  // of the step that is being recorded
};

}  // namespace dsv32
