// A CPU backend that can pretend to have two separate memories, as a GPU has: then rows are mirrored, or
// streamed through windows, and in decode the link has a share of the experts in host memory.
#pragma once

#include "backend/cpu_backend.h"
#include "tests/support/cpu_link_share.h"
#include "tests/support/plain_lane.h"

namespace dsv32 {

class ApartBackend : public CpuBackend {
 public:
  explicit ApartBackend(bool is_apart) : CpuBackend(1), is_apart_(is_apart) {}
  bool works_in_host_memory() const override { return !is_apart_; }
  bool link_adds() const override { return is_apart_; }
  std::span<uint8_t> staging() override { return staging_; }
  std::unique_ptr<UploadLane> upload_lane() override { return std::make_unique<PlainLane>(*this); }
  void run_experts(const RunExperts& op) override {
    const auto compute = [this](const RunExperts& part) { CpuBackend::run_experts(part); };
    if (op.place == Place::host && op.role == Role::decode)
      return run_with_link_share(op, ShareWay::in_place, compute);
    if (op.n_tokens > 0) compute(op);
  }

 private:
  bool is_apart_;
  std::vector<uint8_t> staging_ = std::vector<uint8_t>(size_t{20} << 20);
};

}  // namespace dsv32
