// The CPU pretending that its two memories are apart, as a GPU's are: rows are then mirrored, or streamed
// through windows.
#pragma once

#include "backend/cpu_backend.h"

namespace dsv32 {

class ApartBackend : public CpuBackend {
 public:
  explicit ApartBackend(bool is_apart) : CpuBackend(1), is_apart_(is_apart) {}
  bool works_in_host_memory() const override { return !is_apart_; }
  std::span<uint8_t> staging() override { return staging_; }

 private:
  bool is_apart_;
  std::vector<uint8_t> staging_ = std::vector<uint8_t>(size_t{20} << 20);
};

}  // namespace dsv32
