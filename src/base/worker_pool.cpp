#include "base/worker_pool.h"

#include <hwy/cache_control.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <utility>

#include "base/thread.h"

namespace dsv32 {
namespace {

constexpr int64_t kPiecesPerThread = 32;  // of a loop
// How long to spin before sleeping: as long as going to sleep and being woken takes. Loops mostly follow one
// another within that time; longer spinning would take the core from threads that have work.
constexpr std::chrono::microseconds kPatience{20};

int n_usable_cores() {
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof cores, &cores) == 0) return CPU_COUNT(&cores);
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

void wait_while(const std::atomic<uint32_t>& value, uint32_t old) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  do {
    for (int i = 0; i < 16; ++i) {
      if (value.load(std::memory_order_acquire) != old) return;
      hwy::Pause();
    }
  } while (std::chrono::steady_clock::now() < deadline);
  value.wait(old, std::memory_order_acquire);
}

}  // namespace

WorkerPool::WorkerPool(int n_threads, NumaNodes nodes)
    : n_threads_(n_threads > 0 ? n_threads : n_usable_cores()),
      nodes_(std::move(nodes)),
      shares_(static_cast<size_t>(nodes_.n())) {
  for (int64_t node = 0; node < nodes_.n(); ++node)
    shares_[static_cast<size_t>(node)].n_threads = static_cast<uint32_t>(
        std::max<int64_t>(1, nodes_.begin(node + 1, n_threads_) - nodes_.begin(node, n_threads_)));
}

WorkerPool::~WorkerPool() {
  is_ending_ = true;
  ++n_loops_;
  n_loops_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void WorkerPool::start_threads() {
  has_started_ = true;
  try {
    while (threads_.size() + 1 < static_cast<size_t>(n_threads_)) {
      // The pool joins its workers, and they do nothing that hangs.
      const auto body = [this, node = node_of(std::ssize(threads_) + 1)] { work(node); };
      if (start_thread(threads_.emplace_back(), body)) continue;
      threads_.pop_back();
      return;
    }
  } catch (const std::bad_alloc&) {  // goes on with the threads it has
  }
}

void WorkerPool::run(const Loop& loop, bool is_worth_sharing) {
  const bool is_shared = is_worth_sharing && n_threads_ > 1 && loop.n > 1 && !is_in_use_.exchange(true);
  if (!is_shared) return run_alone(loop);
  if (!has_started_) start_threads();
  share(loop);
  const std::exception_ptr error = std::exchange(error_, nullptr);
  has_failed_ = false;
  is_in_use_ = false;
  if (error) std::rethrow_exception(error);
}

void WorkerPool::run_alone(const Loop& loop) const {
  const int64_t n_at_once = is_interrupted_ ? (loop.n + kPiecesPerThread - 1) / kPiecesPerThread : loop.n;
  for (int64_t begin = 0; begin < loop.n; begin += n_at_once) {
    check_interrupt();
    loop.run(begin, std::min(begin + n_at_once, loop.n));
  }
}

void WorkerPool::check_interrupt() const {
  if (is_interrupted_ && (*is_interrupted_)()) throw Interrupted();
}

void WorkerPool::share(const Loop& loop) {
  const int64_t n_most = kPiecesPerThread * n_threads_;
  loop_ = loop;
  loop_.n_each = (loop.n + n_most - 1) / n_most;
  const auto n_pieces = static_cast<uint32_t>((loop.n + loop_.n_each - 1) / loop_.n_each);
  n_unfinished_.store(n_pieces, std::memory_order_relaxed);
  const uint32_t number = n_loops_ + 1;
  for (int64_t node = 0; node < nodes_.n(); ++node) {
    Share& share = shares_[static_cast<size_t>(node)];
    share.end = static_cast<uint32_t>(nodes_.begin(node + 1, n_pieces));
    const uint32_t n = share.end - static_cast<uint32_t>(nodes_.begin(node, n_pieces));
    share.left = uint64_t{number} << 32 | n;
  }
  n_loops_ = number;
  n_loops_.notify_all();
  take_pieces(number, node_of(0), true);
  while (const uint32_t n = n_unfinished_.load(std::memory_order_acquire)) wait_while(n_unfinished_, n);
}

void WorkerPool::work(int64_t node) {
  nodes_.bind_thread(node);
  for (uint32_t n_seen = 0; !is_ending_;) {
    take_pieces(n_seen, node, false);
    wait_while(n_loops_, n_seen);
    n_seen = n_loops_;
  }
}

// Takes pieces of the loop from the node's own share, then of the others' in turn: half of a fair share of
// what is left at a time, so that all threads end together and seldom contend. A piece that was taken keeps
// the loop: until n_unfinished_ falls, it does not end and the next one does not begin.
void WorkerPool::take_pieces(uint32_t loop, int64_t node, bool is_caller) {
  for (size_t i = 0; i < shares_.size(); ++i) {
    Share& share = shares_[(static_cast<size_t>(node) + i) % shares_.size()];
    for (;;) {
      uint64_t left = share.left;
      const auto n_left = static_cast<uint32_t>(left);
      if (left >> 32 != loop || n_left == 0) break;
      const uint32_t n = std::max(1u, n_left / (2 * share.n_threads));
      if (!share.left.compare_exchange_weak(left, left - n)) continue;
      run_pieces(share.end - n_left, n, is_caller);
      if (n_unfinished_.fetch_sub(n) == n) n_unfinished_.notify_one();
    }
  }
}

void WorkerPool::run_pieces(int64_t first, int64_t n, bool is_caller) {
  for (int64_t piece = first; piece < first + n && !has_failed_; ++piece) try {
      if (is_caller) check_interrupt();
      loop_.run(piece * loop_.n_each, std::min((piece + 1) * loop_.n_each, loop_.n));
    } catch (...) {
      if (!has_failed_.exchange(true)) error_ = std::current_exception();
    }
}

}  // namespace dsv32
