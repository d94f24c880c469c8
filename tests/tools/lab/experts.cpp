// `lab experts`: one token's routed experts on the CPU, for every storage format.
//
// A step reads the weights of the experts that a token chose, so it is measured against plain reads of as
// many bytes by the same threads. Choices are random among many experts, which finds the caches filled with
// others. Between the layers that the CPU computes a device has work of its own: after such a pause the
// threads may have gone to sleep, and that is measured too.
#include "tests/tools/lab/experts.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>

#include <sys/mman.h>

#include "backend/cpu_common.h"
#include "base/error.h"
#include "base/stopwatch.h"
#include "base/text.h"
#include "cli/terminal/streams.h"
#include "gguf/random_weights.h"
#include "tests/tools/lab/matvec.h"
#include "tests/tools/lab/plain_read.h"

namespace dsv32 {
namespace {

constexpr int64_t kExperts = 64, kActivated = 8, kDim = 7168, kInter = 2048;
constexpr std::chrono::microseconds kPause{300};  // of a device's attention

struct Unmap {
  size_t n_bytes;
  void operator()(uint8_t* memory) const { munmap(memory, n_bytes); }
};
using Memory = std::unique_ptr<uint8_t, Unmap>;

// In huge pages, as pinned memory is.
Memory map(size_t n_bytes) {
  void* memory = mmap(nullptr, n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) fail_memory("the experts", n_bytes, 0, "");
  madvise(memory, n_bytes, MADV_HUGEPAGE);
  return Memory(static_cast<uint8_t*>(memory), Unmap{n_bytes});
}

// w1, w3 and w2 of all experts one after the other; some rows' values are repeated.
class Layer {
 public:
  Layer(TensorType type, WorkerPool& workers) : memory_(map(3 * stack_bytes(type))) {
    Rng rng(1);
    const std::vector<uint8_t> some = random_weights(type, 512, kDim, rng, 0.01f);
    const size_t n_bytes = 3 * stack_bytes(type);
    workers.parallel_for(static_cast<int64_t>((n_bytes + some.size() - 1) / some.size()), true,
                         [&](int64_t i) {
                           const size_t at = static_cast<size_t>(i) * some.size();
                           std::memcpy(memory_.get() + at, some.data(), std::min(some.size(), n_bytes - at));
                         });
    uint8_t* at = memory_.get();
    for (WeightMatrix* w : {&op.w1, &op.w3, &op.w2}) {
      w->data = at, w->type = type, w->n_mats = kExperts;
      w->n_rows = w == &op.w2 ? kDim : kInter, w->n_cols = w == &op.w2 ? kInter : kDim;
      w->row_bytes = row_bytes(type, w->n_cols);
      w->mat_bytes = static_cast<size_t>(w->n_rows) * w->row_bytes;
      at += stack_bytes(type);
    }
  }

  static size_t stack_bytes(TensorType type) {
    return static_cast<size_t>(kExperts * kInter) * row_bytes(type, kDim);
  }
  size_t n_bytes_read() const { return 3 * static_cast<size_t>(kActivated) * op.w1.mat_bytes; }
  const uint8_t* data() const { return memory_.get(); }

  RunExperts op;

 private:
  Memory memory_;
};

// Ascending.
std::vector<int32_t> random_choice(Rng& rng) {
  std::vector<int32_t> chosen;
  while (std::ssize(chosen) < kActivated) {
    const auto expert = static_cast<int32_t>(rng.next() % kExperts);
    if (std::ranges::count(chosen, expert) == 0) chosen.push_back(expert);
  }
  std::ranges::sort(chosen);
  return chosen;
}

void pause() {
  const auto start = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - start < kPause) continue;
}

// GB/s of plain reads, of steps one after the other, and of steps after a pause.
struct Rates {
  double read = 0, steps = 0, after_pauses = 0;
};

Rates measure(TensorType type, int n_runs, WorkerPool& workers) {
  Layer layer(type, workers);
  Rng rng(2);
  std::vector<float> x(kDim), y(kDim), weights(kActivated, 0.1f), scratch;
  for (float& value : x) value = rng.unit();
  layer.op.x = x.data(), layer.op.y = y.data(), layer.op.weights = weights.data();
  layer.op.n_tokens = 1, layer.op.n_activated = kActivated;
  const size_t n_bytes = layer.n_bytes_read();
  volatile uint64_t sink = 0;
  std::vector<double> read, steps, after_pauses;
  const auto timed_step = [&] {
    const std::vector<int32_t> experts = random_choice(rng);
    layer.op.experts = experts.data();
    const auto start = std::chrono::steady_clock::now();
    cpu_run_experts(layer.op, workers, scratch);
    return seconds_since(start);
  };
  for (int run = -1; run < n_runs; ++run) {  // run -1 warms up
    const size_t n_places = 3 * Layer::stack_bytes(type) / n_bytes;
    const auto start = std::chrono::steady_clock::now();
    sink = sink + plain_read(layer.data() + rng.next() % n_places * n_bytes, n_bytes, ReadPattern::in_order,
                             workers);
    const double seconds = seconds_since(start);
    timed_step();
    const double step = timed_step();
    pause();
    const double later = timed_step();
    if (run < 0) continue;
    read.push_back(seconds), steps.push_back(step), after_pauses.push_back(later);
  }
  const auto rate = [&](std::vector<double>& seconds) {
    return static_cast<double>(n_bytes) / median(seconds) / 1e9;
  };
  return {rate(read), rate(steps), rate(after_pauses)};
}

}  // namespace

int lab_experts(const LabOptions& options) {
  WorkerPool workers(options.engine.n_threads);
  write_out(format("%lld of %lld experts of %lld x %lld, %d threads, median of %lld\n",
                   static_cast<long long>(kActivated), static_cast<long long>(kExperts),
                   static_cast<long long>(kInter), static_cast<long long>(kDim), workers.n_threads(),
                   static_cast<long long>(options.n_runs)) +
            format("%-8s %9s %11s %12s %8s %18s %8s\n", "type", "MiB", "read GB/s", "experts GB/s", "of read",
                   "after pauses GB/s", "of read"));
  for (const TensorType type : options.types.empty() ? all_types() : options.types) {
    const Rates rates = measure(type, static_cast<int>(options.n_runs), workers);
    write_out(
        format("%-8s %9.1f %11.2f %12.2f %7.1f%% %18.2f %7.1f%%\n", type_name(type),
               static_cast<double>(3 * kActivated * kInter * static_cast<int64_t>(row_bytes(type, kDim))) /
                   (1 << 20),
               rates.read, rates.steps, 100 * rates.steps / rates.read, rates.after_pauses,
               100 * rates.after_pauses / rates.read));
  }
  return 0;
}

}  // namespace dsv32
