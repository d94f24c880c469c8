// Uploads on a stream of their own.
#pragma once

#include "backend/backend.h"
#include "cuda/launch.h"

namespace dsv32::cuda {

class StreamLane : public UploadLane {
 public:
  explicit StreamLane(int device) : device_(device) {
    CUDA_CHECK(cudaSetDevice(device_));
    CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }
  ~StreamLane() override {
    cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_);
  }
  void upload(void* device, const void* staged, size_t n_bytes) override {
    CUDA_CHECK(cudaSetDevice(device_));
    CUDA_CHECK(cudaMemcpyAsync(device, staged, n_bytes, cudaMemcpyHostToDevice, stream_));
  }
  void wait() override { CUDA_CHECK(cudaStreamSynchronize(stream_)); }

 private:
  const int device_;
  cudaStream_t stream_ = nullptr;
};

}  // namespace dsv32::cuda
