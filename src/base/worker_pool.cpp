#include "base/worker_pool.h"

#include <hwy/cache_control.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <new>
#include <utility>

#include "base/thread.h"

namespace dsv32 {
namespace {

// Units of a loop for each thread: the least that is taken at a time.
constexpr int64_t kUnitsPerThread = 32;
// How long to look before sleeping: as long as going to sleep and being woken takes. Loops follow one another
// within that time, mostly; longer would take the core from those who have work.
constexpr std::chrono::microseconds kPatience{20};

int n_usable_cores() {
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof cores, &cores) == 0) return CPU_COUNT(&cores);
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

// Until the value is another one.
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

struct WorkerPool::Worker : ThreadBody {
  Worker(WorkerPool& pool_, int64_t node_) : pool(pool_), node(node_) {}
  void run() noexcept override { pool.work(node); }

  WorkerPool& pool;  // which waits for its workers, and they do nothing that hangs
  const int64_t node;
};

WorkerPool::WorkerPool(int n_threads, NumaNodes nodes)
    : n_threads_(n_threads > 0 ? n_threads : n_usable_cores()),
      nodes_(std::move(nodes)),
      parts_(static_cast<size_t>(nodes_.n())) {
  for (int64_t node = 0; node < nodes_.n(); ++node)
    parts_[static_cast<size_t>(node)].n_threads = static_cast<uint32_t>(
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
      const auto worker = std::make_shared<Worker>(*this, node_of(std::ssize(threads_) + 1));
      if (start_thread(threads_.emplace_back(), worker)) continue;
      threads_.pop_back();
      return;
    }
  } catch (const std::bad_alloc&) {  // with those there are
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
  const int64_t n_at_once = is_interrupted_ ? (loop.n + kUnitsPerThread - 1) / kUnitsPerThread : loop.n;
  for (int64_t begin = 0; begin < loop.n; begin += n_at_once) {
    check_interrupt();
    loop.run(begin, std::min(begin + n_at_once, loop.n));
  }
}

void WorkerPool::check_interrupt() const {
  if (is_interrupted_ && (*is_interrupted_)()) throw Interrupted();
}

void WorkerPool::share(const Loop& loop) {
  const int64_t n_most_units = kUnitsPerThread * n_threads_;
  loop_ = loop;
  loop_.unit = (loop.n + n_most_units - 1) / n_most_units;
  const auto n_units = static_cast<uint32_t>(loop_.n_units());
  n_unfinished_.store(n_units, std::memory_order_relaxed);
  for (int64_t node = 0; node < nodes_.n(); ++node) {
    Part& part = parts_[static_cast<size_t>(node)];
    part.end = static_cast<uint32_t>(nodes_.begin(node + 1, n_units));
    part.left = part.end - static_cast<uint32_t>(nodes_.begin(node, n_units));
  }
  ++n_loops_;
  n_loops_.notify_all();
  take_units(node_of(0), true);
  while (const uint32_t n = n_unfinished_.load(std::memory_order_acquire)) wait_while(n_unfinished_, n);
}

void WorkerPool::work(int64_t node) {
  nodes_.bind_thread(node);
  for (uint32_t n_seen = 0; !is_ending_;) {
    take_units(node, false);
    wait_while(n_loops_, n_seen);
    n_seen = n_loops_;
  }
}

// The node's own, and then the others' in turn.
void WorkerPool::take_units(int64_t node, bool is_caller) {
  for (size_t i = 0; i < parts_.size(); ++i)
    take_units_of(parts_[(static_cast<size_t>(node) + i) % parts_.size()], is_caller);
}

// Half of a fair share of what is left at a time, so that all end together and few meet here. A unit that was
// taken keeps the loop: it does not end, nor another begin, before n_unfinished_ falls.
void WorkerPool::take_units_of(Part& part, bool is_caller) {
  while (uint32_t left = part.left) {
    const uint32_t n = std::max(1u, left / (2 * part.n_threads));
    if (!part.left.compare_exchange_weak(left, left - n)) continue;
    run_units(part.end - left, n, is_caller);
    if (n_unfinished_.fetch_sub(n) == n) n_unfinished_.notify_one();
  }
}

void WorkerPool::run_units(int64_t first, int64_t n, bool is_caller) {
  for (int64_t unit = first; unit < first + n && !has_failed_; ++unit) try {
      if (is_caller) check_interrupt();
      loop_.run(unit * loop_.unit, std::min((unit + 1) * loop_.unit, loop_.n));
    } catch (...) {
      if (!has_failed_.exchange(true)) error_ = std::current_exception();
    }
}

}  // namespace dsv32
