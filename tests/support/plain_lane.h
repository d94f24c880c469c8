// An upload lane over a backend's ordinary uploads.
#pragma once

#include "backend/backend.h"

namespace dsv32 {

class PlainLane : public UploadLane {
 public:
  explicit PlainLane(Backend& backend) : backend_(backend) {}
  void upload(void* device, const void* staged, size_t n_bytes) override {
    backend_.upload(device, staged, n_bytes);
  }
  void wait() override { backend_.download(nullptr, nullptr, 0); }

 private:
  Backend& backend_;
};

}  // namespace dsv32
