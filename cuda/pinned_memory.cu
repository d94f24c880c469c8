#include "cuda/pinned_memory.cuh"

#include <algorithm>

#include <sys/mman.h>

#include "backend/memory_budget.h"
#include "base/host_memory.h"
#include "cuda/launch.h"

namespace dsv32::cuda {

PinnedMemory::~PinnedMemory() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  while (!pieces_.empty()) free(pieces_.begin()->first);
}

void* PinnedMemory::alloc(size_t n_bytes, const char* what) {
  void* mapped =
      mmap(nullptr, n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  madvise(mapped, n_bytes, MADV_HUGEPAGE);
  auto* memory = static_cast<uint8_t*>(mapped);
  const std::lock_guard lock(mutex_);
  pieces_[memory] = {n_bytes, what, State::queued};
  queue_.push_back(memory);
  if (!thread_.joinable()) thread_ = std::thread([this] { work(); });
  changed_.notify_all();
  return memory;
}

size_t PinnedMemory::free(void* memory) {
  auto* piece = static_cast<uint8_t*>(memory);
  std::unique_lock lock(mutex_);
  const auto found = pieces_.find(piece);
  const auto queued = std::find(queue_.begin(), queue_.end(), piece);
  if (queued != queue_.end())
    queue_.erase(queued);
  else if (!is_ending_)
    changed_.wait(lock, [&] { return found->second.state != State::queued; });
  const size_t n_bytes = found->second.n_bytes;
  if (found->second.state == State::ready) cudaHostUnregister(memory);
  munmap(memory, n_bytes);
  pieces_.erase(found);
  return n_bytes;
}

void PinnedMemory::wait(const void* inside) {
  auto* address = static_cast<uint8_t*>(const_cast<void*>(inside));
  std::unique_lock lock(mutex_);
  auto after = pieces_.upper_bound(address);
  if (after == pieces_.begin()) return;
  const auto& [begin, piece] = *--after;
  if (address >= begin + piece.n_bytes) return;
  changed_.wait(lock, [&] { return piece.state != State::queued; });
  if (piece.state == State::failed)
    fail_memory(piece.what.c_str(), piece.n_bytes, available_host_memory(),
                "a smaller context (-c) needs less; pinned memory may be limited (ulimit -l)");
}

// The lock is not held while a piece is made ready: free() waits for that piece.
void PinnedMemory::work() {
  cudaSetDevice(device_);
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return is_ending_ || !queue_.empty(); });
    if (is_ending_) return;
    uint8_t* memory = queue_.front();
    queue_.pop_front();
    Piece& piece = pieces_.at(memory);
    lock.unlock();
    const bool is_pinned = pin(memory, piece.n_bytes);
    lock.lock();
    piece.state = is_pinned ? State::ready : State::failed;
    changed_.notify_all();
  }
}

bool PinnedMemory::pin(uint8_t* memory, size_t n_bytes) const {
  volatile uint8_t* bytes = memory;
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < static_cast<int64_t>(n_bytes); i += 4096) bytes[i] = 0;
  if (cudaHostRegister(memory, n_bytes, cudaHostRegisterDefault) == cudaSuccess) return true;
  cudaGetLastError();
  return false;
}

}  // namespace dsv32::cuda
