#include "backend/pinned_memory.h"

#include <algorithm>
#include <atomic>
#include <cerrno>

#include <sys/mman.h>

#include "backend/memory_budget.h"
#include "base/host_memory.h"

namespace dsv32 {
namespace {

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
  threads_->stop(std::chrono::hours(24));  // however long a piece takes
  while (!pieces_.empty()) free(pieces_.begin()->first);
}

void* PinnedMemory::alloc(size_t n_bytes, const char* what, size_t n_part_bytes) {
  void* mapped =
      mmap(nullptr, n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  madvise(mapped, n_bytes, MADV_HUGEPAGE);
  auto* memory = static_cast<uint8_t*>(mapped);
  {
    const std::lock_guard lock(mutex_);
    pieces_[memory] = {n_bytes, n_part_bytes, what, State::queued};
  }
  if (!threads_->run([this, memory] { make_ready(memory); })) make_ready(memory);
  return memory;
}

size_t PinnedMemory::free(void* memory) {
  std::unique_lock lock(mutex_);
  const auto found = pieces_.find(static_cast<uint8_t*>(memory));
  changed_.wait(lock, [&] { return found->second.state != State::under_way; });
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
  changed_.wait(lock, [&] { return piece.state == State::ready || piece.state == State::failed; });
  if (piece.state == State::failed)
    fail_memory(piece.what.c_str(), piece.n_bytes, available_host_memory(),
                "a smaller context (-c) needs less; pinned memory may be limited (ulimit -l)");
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

// Without holding the lock: free() waits for a piece that is under way. Nothing queued lies there when it was
// freed meanwhile, or when memory that came in its place is ready already.
void PinnedMemory::make_ready(uint8_t* memory) {
  std::unique_lock lock(mutex_);
  const auto found = pieces_.find(memory);
  if (found == pieces_.end() || found->second.state != State::queued) return;
  Piece& piece = found->second;
  piece.state = State::under_way;
  lock.unlock();
  const bool is_pinned = make_present(memory, piece) && driver_.pin(memory, piece.n_bytes);
  lock.lock();
  piece.state = is_pinned ? State::ready : State::failed;
  changed_.notify_all();
}

}  // namespace dsv32
