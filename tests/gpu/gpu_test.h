// What the GPU tests share: the precondition that skips them without a GPU, arrays in device memory, a Launch
// with scratch, random data, a comparison, and timing by events.
#pragma once

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "cuda/launch.h"
#include "gguf/random_weights.h"

namespace dsv32 {

// Decorates a case: * boost::unit_test::precondition(needs_gpu)
inline boost::test_tools::assertion_result needs_gpu(boost::unit_test::test_unit_id) {
  int n_devices = 0;
  boost::test_tools::assertion_result result(cudaGetDeviceCount(&n_devices) == cudaSuccess && n_devices > 0);
  if (!result) result.message() << "there is no GPU here";
  return result;
}

// Words after `gpu_tests --`.
inline bool has_argument(std::string_view word) {
  const auto& arguments = boost::unit_test::framework::master_test_suite();
  for (int i = 1; i < arguments.argc; ++i)
    if (arguments.argv[i] == word) return true;
  return false;
}

// Scratch memory is left as it comes, for a tool that tells who reads what was not written.
inline bool leaves_uninitialized() { return has_argument("uninitialized"); }

// For tools that slow kernels down a hundredfold: every `one_of`-th of the cases that differ in numbers
// alone, not in what runs. `n` counts them.
inline bool is_left_out(int& n, int one_of) { return has_argument("brief") && n++ % one_of != 0; }

// An array in device memory (or pinned host memory that the device reads), filled from and read back to a
// vector. n_padding_bytes after it may be read, not used: all ones.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t n, bool is_pinned_host = false, size_t n_padding_bytes = 0)
      : n_(n), is_host_(is_pinned_host) {
    const size_t n_bytes = n * sizeof(T), n_all = std::max<size_t>(n_bytes + n_padding_bytes, 1);
    if (is_host_)
      CUDA_CHECK(cudaHostAlloc(&data_, n_all, cudaHostAllocDefault));
    else
      CUDA_CHECK(cudaMalloc(&data_, n_all));
    CUDA_CHECK(cudaMemset(data_, 0xa5, n_bytes));  // what is not written shows
    CUDA_CHECK(cudaMemset(static_cast<uint8_t*>(data_) + n_bytes, 0xff, n_padding_bytes));
  }
  explicit DeviceArray(const std::vector<T>& values, bool is_pinned_host = false, size_t n_padding_bytes = 0)
      : DeviceArray(values.size(), is_pinned_host, n_padding_bytes) {
    fill(values);
  }
  ~DeviceArray() { is_host_ ? cudaFreeHost(data_) : cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* data() const { return static_cast<T*>(data_); }
  size_t size() const { return n_; }
  void fill(const std::vector<T>& values) {
    BOOST_REQUIRE(values.size() == n_);
    CUDA_CHECK(cudaMemcpy(data_, values.data(), n_ * sizeof(T), cudaMemcpyDefault));
  }
  std::vector<T> values() const {
    std::vector<T> copy(n_);
    CUDA_CHECK(cudaDeviceSynchronize());
    CUDA_CHECK(cudaMemcpy(copy.data(), data_, n_ * sizeof(T), cudaMemcpyDefault));
    return copy;
  }

 private:
  void* data_ = nullptr;
  size_t n_;
  bool is_host_;
};

// Weights as the backend holds them (CudaBackend::alloc_weights): products may read a block past the end.
class DeviceWeights : public DeviceArray<uint8_t> {
 public:
  static constexpr size_t kPaddingBytes = 256;
  explicit DeviceWeights(const std::vector<uint8_t>& blocks) : DeviceArray(blocks, false, kPaddingBytes) {}
};

// A stream and scratch memory for launchers, which is full of NaN at first. launch() resets it, as before
// each operation.
class TestLaunch {
 public:
  explicit TestLaunch(size_t n_scratch_bytes = size_t{256} << 20) {
    CUDA_CHECK(cudaMalloc(&scratch_, n_scratch_bytes));
    CUDA_CHECK(cudaMalloc(&n_done_, sizeof(uint32_t)));
    CUDA_CHECK(cudaMemset(n_done_, 0, sizeof(uint32_t)));
    if (!leaves_uninitialized()) CUDA_CHECK(cudaMemset(scratch_, 0xff, n_scratch_bytes));
    workspace_ = cuda::Workspace(scratch_, n_scratch_bytes);
    CUDA_CHECK(cudaStreamCreate(&stream_));
    CUDA_CHECK(cudaDeviceGetAttribute(&n_sms_, cudaDevAttrMultiProcessorCount, 0));
  }
  ~TestLaunch() {
    cudaStreamDestroy(stream_);
    cudaFree(scratch_);
    cudaFree(n_done_);
  }
  TestLaunch(const TestLaunch&) = delete;
  TestLaunch& operator=(const TestLaunch&) = delete;
  cuda::Launch launch() {
    workspace_.reset();
    return {stream_, &workspace_, n_sms_, false, n_done_};
  }
  cudaStream_t stream() const { return stream_; }

  // The median time of `work` in seconds over n runs, after two that do not count.
  double seconds(const std::function<void()>& work, int n = 10) {
    std::vector<float> milliseconds;
    cudaEvent_t begin, end;
    CUDA_CHECK(cudaEventCreate(&begin));
    CUDA_CHECK(cudaEventCreate(&end));
    for (int i = 0; i < n + 2; ++i) {
      CUDA_CHECK(cudaEventRecord(begin, stream_));
      work();
      CUDA_CHECK(cudaEventRecord(end, stream_));
      CUDA_CHECK(cudaEventSynchronize(end));
      float elapsed = 0;
      CUDA_CHECK(cudaEventElapsedTime(&elapsed, begin, end));
      if (i >= 2) milliseconds.push_back(elapsed);
    }
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    std::nth_element(milliseconds.begin(), milliseconds.begin() + n / 2, milliseconds.end());
    return static_cast<double>(milliseconds[static_cast<size_t>(n / 2)]) / 1e3;
  }

 private:
  void* scratch_ = nullptr;
  uint32_t* n_done_ = nullptr;
  cuda::Workspace workspace_{nullptr, 0};
  cudaStream_t stream_ = nullptr;
  int n_sms_ = 0;
};

inline std::vector<float> random_floats(size_t n, uint64_t seed, float stddev = 1) {
  Rng rng(seed);
  std::vector<float> values(n);
  for (float& value : values) value = rng.unit() * stddev;
  return values;
}

// |a - b| / |b| in the Euclidean norm; infinite when something is not finite in one of them alone.
inline double relative_error(const std::vector<float>& ours, const std::vector<float>& expected) {
  BOOST_REQUIRE(ours.size() == expected.size());
  double difference = 0, norm = 0;
  for (size_t i = 0; i < ours.size(); ++i) {
    if (std::isfinite(ours[i]) != std::isfinite(expected[i])) return INFINITY;
    if (!std::isfinite(ours[i])) continue;
    const double d = static_cast<double>(ours[i]) - static_cast<double>(expected[i]);
    difference += d * d;
    norm += static_cast<double>(expected[i]) * static_cast<double>(expected[i]);
  }
  return norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
}

}  // namespace dsv32
