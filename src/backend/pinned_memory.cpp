#include "backend/pinned_memory.h"

#include <algorithm>
#include <atomic>
#include <cerrno>

#include <sys/mman.h>

#include "backend/memory_budget.h"
#include "base/host_memory.h"
#include "base/thread.h"

namespace dsv32 {
namespace {

// Each takes whole pieces. One thread fills 10 GB/s with huge pages, 1 to 3 GB/s without, and less where a
// virtual machine gets its memory only when touched.
constexpr size_t kThreads = 4;
constexpr size_t kSmallestPage = 4096, kHugePage = size_t{2} << 20;

// False: the system has no memory for the pages.
bool make_pages_present(uint8_t* memory, size_t n_bytes) {
  if (madvise(memory, n_bytes, MADV_POPULATE_WRITE) == 0) return true;
  if (errno != EINVAL) return false;
  touch_pages(memory, n_bytes);  // Linux before 5.14
  return true;
}

}  // namespace

void touch_pages(uint8_t* memory, size_t n_bytes) {
  for (size_t i = 0; i < n_bytes; i += kSmallestPage)
    std::atomic_ref(memory[i]).fetch_or(0, std::memory_order_relaxed);
}

PinnedMemory::~PinnedMemory() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  while (!pieces_.empty()) free(pieces_.begin()->first);
}

void* PinnedMemory::alloc(size_t n_bytes, const char* what, size_t n_part_bytes) {
  void* mapped =
      mmap(nullptr, n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  madvise(mapped, n_bytes, MADV_HUGEPAGE);
  auto* memory = static_cast<uint8_t*>(mapped);
  std::unique_lock lock(mutex_);
  pieces_[memory] = {n_bytes, n_part_bytes, what, State::queued};
  queue_.push_back(memory);
  // If the system gives no further thread, the present ones suffice.
  if (threads_.size() < kThreads && !start_thread(threads_.emplace_back(), [this] { work(); }))
    threads_.pop_back();
  if (threads_.empty()) make_ready(lock);
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
  else
    changed_.wait(lock, [&] { return found->second.state != State::queued; });
  const size_t n_bytes = found->second.n_bytes;
  if (found->second.state == State::ready) driver_.unpin(memory);
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

void PinnedMemory::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return is_ending_ || !queue_.empty(); });
    if (is_ending_) return;
    make_ready(lock);
  }
}

bool PinnedMemory::make_present(uint8_t* memory, const Piece& piece) const {
  if (nodes_.n() == 1 || piece.n_part_bytes == 0) return make_pages_present(memory, piece.n_bytes);
  bool is_present = true;
  for (int64_t node = 0; node < nodes_.n(); ++node) {
    nodes_.bind_thread(node);
    for (const std::span range :
         ranges_of(nodes_, node, {memory, piece.n_bytes}, piece.n_part_bytes, kHugePage))
      is_present = is_present && make_pages_present(range.data(), range.size());
  }
  nodes_.unbind_thread();
  return is_present;
}

// Makes the first queued piece ready, without holding the lock: free() waits for a piece that is being made
// ready.
void PinnedMemory::make_ready(std::unique_lock<std::mutex>& lock) {
  uint8_t* memory = queue_.front();
  queue_.pop_front();
  Piece& piece = pieces_.at(memory);
  lock.unlock();
  const bool is_pinned = make_present(memory, piece) && driver_.pin(memory, piece.n_bytes);
  lock.lock();
  piece.state = is_pinned ? State::ready : State::failed;
  changed_.notify_all();
}

}  // namespace dsv32
