// Streams and events of the device that is current when they are made, and uploads on a stream of their own.
#pragma once

#include "backend/backend.h"
#include "cuda/launch.h"

namespace dsv32::cuda {

class Stream {
 public:
  Stream() { CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~Stream() {
    cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_);
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator cudaStream_t() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

// A point in a stream for which other streams can wait.
class Event {
 public:
  Event() { CUDA_CHECK(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming)); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record(cudaStream_t stream) const { CUDA_CHECK(cudaEventRecord(event_, stream)); }
  void hold(cudaStream_t stream) const { CUDA_CHECK(cudaStreamWaitEvent(stream, event_)); }
  void wait() const { CUDA_CHECK(cudaEventSynchronize(event_)); }
  // Later work of `after` starts when the present work of `before` is done.
  void order(cudaStream_t before, cudaStream_t after) const { record(before), hold(after); }

 private:
  cudaEvent_t event_ = nullptr;
};

// `check` follows each wait; it throws what went wrong beside the stream.
class StreamMilestone : public Milestone {
 public:
  StreamMilestone(cudaStream_t stream, std::function<void()> check) : check_(std::move(check)) {
    event_.record(stream);
  }
  void wait() override { event_.wait(), check_(); }

 private:
  const Event event_;
  const std::function<void()> check_;
};

class StreamLane : public UploadLane {
 public:
  explicit StreamLane(int device) : device_(device) {}
  void upload(void* to, const void* staged, size_t n_bytes) override {
    CUDA_CHECK(cudaSetDevice(device_));
    CUDA_CHECK(cudaMemcpyAsync(to, staged, n_bytes, cudaMemcpyHostToDevice, stream_));
  }
  void wait() override { CUDA_CHECK(cudaStreamSynchronize(stream_)); }

 private:
  const int device_;
  Stream stream_;
};

}  // namespace dsv32::cuda
