// How every launcher of cuda/ is called. A launcher takes an operation's struct of parameters
// (backend/backend.h) and a Launch, checks shapes and enqueues kernels. Without work it does nothing. It
// never waits or allocates, because decode steps are captured in CUDA graphs.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <cuda_runtime.h>

#include "backend/choose.h"
#include "base/error.h"

namespace dsv32::cuda {

// Throws Error{device} with the call's text and place.
#define CUDA_CHECK(call) ::dsv32::cuda::check_cuda((call), #call, __FILE__, __LINE__)

inline void check_cuda(cudaError_t status, const char* call, const char* file, int line) {
  if (status == cudaSuccess) return;
  fail(ErrorKind::device, format("%s at %s:%d: %s", call, file, line, cudaGetErrorString(status)));
}

// Scratch device memory of one operation. Operations follow each other on one stream, so each starts at the
// beginning.
class Workspace {
 public:
  Workspace(void* data, size_t n_bytes) : data_(static_cast<uint8_t*>(data)), n_bytes_(n_bytes) {}

  // n values of T, aligned to 256 bytes; valid until the operation's kernels are done. Throws Error{internal}
  // past the end.
  template <typename T>
  T* take(int64_t n_values) {
    const auto n = static_cast<size_t>(n_values);
    const size_t begin = next();
    if (begin > n_bytes_ || n > (n_bytes_ - begin) / sizeof(T))
      fail(ErrorKind::internal,
           format("an operation wants %zu values of %zu bytes of scratch memory, %zu bytes are there", n,
                  sizeof(T), n_bytes_));
    n_used_ = begin + n * sizeof(T);
    return reinterpret_cast<T*>(data_ + begin);
  }
  int64_t n_bytes_left() const { return static_cast<int64_t>(n_bytes_ - std::min(next(), n_bytes_)); }
  void reset() { n_used_ = 0; }

 private:
  // Where the next values begin; past the end if less than the alignment is left.
  size_t next() const { return (n_used_ + 255) / 256 * 256; }

  uint8_t* data_;
  size_t n_bytes_;
  size_t n_used_ = 0;
};

class Exchange;

struct Launch {
  cudaStream_t stream;
  Workspace* workspace;  // reset before each operation
  int n_sms;
  // No kernel starts before all earlier ones are done (dependent.cuh). Set while rows are fetched beside the
  // stream, so that the fetch finds room, and where the stream waits for the fetch.
  bool is_plain = false;
  // On the device: [2] counters of blocks, zero between kernels; or null.
  uint32_t* n_done = nullptr;
  Exchange* exchange = nullptr;  // with the other members of a team (gather.h); or null

  // The same with other scratch memory.
  Launch with(Workspace& scratch) const { return {stream, &scratch, n_sms, is_plain, n_done, exchange}; }
};

// Shared memory of a block: on Hopper; and for the generic family, whose smallest cards (8.6, 8.9, 12.0) have
// no more. That family never asks for more, so that it does the same on every card.
constexpr int kMostSharedBytes = 227 * 1024, kGenericSharedBytes = 99 * 1024;

// What the code that the current device runs may use. devices.cu.
struct Card {
  KernelFamily family;  // hopper: the code was built for sm_90a and has Hopper's products (wgmma)
  bool has_clusters;    // the code was built for 9.0 or later: clusters, bulk copies, dependent launches
  int block_bytes;      // shared memory of a block, static and dynamic
  int sm_bytes;         // shared memory of a multiprocessor, with 1 KiB of the system's for each block
};
const Card& card();

// Of the current device.
inline int device_attribute(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaDeviceGetAttribute(&value, attribute, device));
  return value;
}

template <typename Kernel>
cudaFuncAttributes attributes_of(Kernel* kernel) {
  cudaFuncAttributes attributes{};
  CUDA_CHECK(cudaFuncGetAttributes(&attributes, kernel));
  return attributes;
}

// Bytes of dynamic shared memory that a launch may ask for, if n_together of its blocks are to run on a
// multiprocessor. No launcher counts a kernel's static shared memory itself: the compiler adds that of every
// function that it inlines.
template <typename Kernel>
int most_shared_bytes(Kernel* kernel, int n_together = 1) {
  constexpr int kSystemBytes = 1024;  // of each block
  const int n_bytes = std::min(card().block_bytes, card().sm_bytes / n_together - kSystemBytes);
  return n_bytes - static_cast<int>(attributes_of(kernel).sharedSizeBytes);
}

inline bool is_aligned(const void* p, size_t n_bytes) {
  return reinterpret_cast<uintptr_t>(p) % n_bytes == 0;
}

}  // namespace dsv32::cuda
