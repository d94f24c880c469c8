// A recorded step as a CUDA graph.
#pragma once

#include "backend/backend.h"
#include "cuda/host_experts.h"
#include "cuda/launch.h"

namespace dsv32::cuda {

// A recording that is still running is freed by the driver when it is done.
class Graph : public Recording {
 public:
  Graph(int device, cudaStream_t stream, cudaGraphExec_t graph, HostExperts* host)
      : device_(device),
        stream_(stream),
        graph_(graph),
        host_(host),
        n_posts_(host ? host->take_posts() : 0) {}
  ~Graph() override { cudaGraphExecDestroy(graph_); }
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

}  // namespace dsv32::cuda
