// Recorded steps as CUDA graphs.
#pragma once

#include "cuda/host_experts.h"

namespace dsv32::cuda {

// A recorded step. If a graph is destroyed while it runs, the driver frees it when it is done.
class Graph : public Recording {
 public:
  Graph(int device, cudaStream_t stream, cudaGraphExec_t graph, HostExperts* host)
      : device_(device),
        stream_(stream),
        graph_(graph),
        host_(host),
        n_posts_(host ? host->take_posts() : 0) {}
  ~Graph() override { cudaGraphExecDestroy(graph_); }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  void replay() override {
    CUDA_CHECK(cudaSetDevice(device_));
    CUDA_CHECK(cudaGraphLaunch(graph_, stream_));
    if (n_posts_ > 0) host_->expect(n_posts_);
  }

 private:
  int device_;
  cudaStream_t stream_;
  cudaGraphExec_t graph_;
  HostExperts* host_;
  int64_t n_posts_;  // of one replay
};

// While it exists, what a stream is given is recorded instead of done. Nothing of it is left unless finish()
// makes a graph of it.
class Capture {
 public:
  explicit Capture(cudaStream_t stream) : stream_(stream) {
    CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  }
  ~Capture() {
    if (is_open_) cudaStreamEndCapture(stream_, &recorded_);
    if (recorded_) cudaGraphDestroy(recorded_);
    if (is_open_) cudaGetLastError();
  }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  // host: takes part in the recorded work, or null. Throws Error{device}.
  std::unique_ptr<Recording> finish(int device, HostExperts* host) {
    is_open_ = false;
    CUDA_CHECK(cudaStreamEndCapture(stream_, &recorded_));
    cudaGraphExec_t executable = nullptr;
    CUDA_CHECK(cudaGraphInstantiate(&executable, recorded_, 0));
    return std::make_unique<Graph>(device, stream_, executable, host);
  }

 private:
  cudaStream_t stream_;
  cudaGraph_t recorded_ = nullptr;
  bool is_open_ = true;
};

}  // namespace dsv32::cuda
