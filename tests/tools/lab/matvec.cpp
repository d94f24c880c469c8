// `lab matvec`: one matrix times one vector on the CPU, for every storage format.
//
// Decoding reads every weight once a token, so a product is measured against a plain read of the same bytes
// by the same threads, and against the most that memory gives (see plain_read.h). A model is far larger than
// any cache, so every timed run finds the caches filled with something else. Reads and products alternate,
// and the median of each is reported: a busy machine disturbs both alike.
#include "tests/tools/lab/matvec.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "backend/cpu_matmul.h"
#include "base/error.h"
#include "base/stopwatch.h"
#include "base/text.h"
#include "cli/terminal/streams.h"
#include "gguf/random_weights.h"
#include "tests/tools/lab/plain_read.h"

namespace dsv32 {
namespace {

struct MatvecOptions {
  int64_t n_rows = 0, n_cols = 0;
  int n_threads = 0;
  int n_runs = 0;
  std::vector<TensorType> types;
  bool json = false;
};

struct MatvecResult {
  TensorType type{};
  size_t n_bytes = 0;
  double read_gbps = 0, streams_gbps = 0, matvec_gbps = 0;
};

MatvecOptions read_options(const LabOptions& asked) {
  if (asked.n_cols % 256 != 0)
    fail(ErrorKind::usage,
         format("--cols is %lld, expected a multiple of 256", static_cast<long long>(asked.n_cols)));
  MatvecOptions options;
  options.n_rows = asked.n_rows, options.n_cols = asked.n_cols;
  options.n_threads = asked.engine.n_threads;
  options.n_runs = static_cast<int>(asked.n_runs);
  options.json = asked.json;
  options.types = asked.types;
  if (options.types.empty()) options.types = all_types();
  return options;
}

// Drives what the caches hold out of them.
class CacheSweeper {
 public:
  explicit CacheSweeper(WorkerPool& workers) : workers_(workers) {}
  void sweep() {
    sink_ = sink_ + plain_read(bytes_.data(), bytes_.size(), ReadPattern::by_streams, workers_);
  }

 private:
  WorkerPool& workers_;
  std::vector<uint8_t> bytes_ = std::vector<uint8_t>(size_t{512} << 20, 1);
  volatile uint64_t sink_ = 0;  // or the read could be left out
};

MatvecResult measure(TensorType type, const MatvecOptions& options, CacheSweeper& sweeper,
                     WorkerPool& workers) {
  WeightMatrix weight;
  weight.type = type;
  weight.n_rows = options.n_rows;
  weight.n_cols = options.n_cols;
  weight.row_bytes = row_bytes(type, options.n_cols);
  weight.mat_bytes = weight.row_bytes * static_cast<size_t>(options.n_rows);
  Rng rng(1);
  const std::vector<uint8_t> matrix = random_weights(type, static_cast<uint64_t>(options.n_rows),
                                                     static_cast<uint64_t>(options.n_cols), rng, 0.02f);
  weight.data = matrix.data();
  std::vector<float> x(static_cast<size_t>(options.n_cols)), y(static_cast<size_t>(options.n_rows));
  for (size_t i = 0; i < x.size(); ++i)
    x[i] = static_cast<float>(static_cast<int>(i * 37 % 101) - 50) / 50.0f;
  const Matmul product{weight, x.data(), options.n_cols, y.data(), 1};

  std::vector<double> read, read_streams, multiply;
  volatile uint64_t sink = 0;
  for (int run = -1; run < options.n_runs; ++run) {  // run -1 warms up
    const auto timed = [&](const auto& work) {
      sweeper.sweep();
      const auto start = std::chrono::steady_clock::now();
      work();
      return seconds_since(start);
    };
    const auto timed_read = [&](ReadPattern pattern) {
      return timed([&] { sink = sink + plain_read(matrix.data(), weight.mat_bytes, pattern, workers); });
    };
    const double in_order = timed_read(ReadPattern::in_order),
                 by_streams = timed_read(ReadPattern::by_streams);
    const double product_seconds = timed([&] { cpu_matmul(product, workers); });
    if (run < 0) continue;
    read.push_back(in_order), read_streams.push_back(by_streams), multiply.push_back(product_seconds);
  }
  const auto n_bytes = static_cast<double>(weight.mat_bytes);
  return {type, weight.mat_bytes, n_bytes / median(read) / 1e9, n_bytes / median(read_streams) / 1e9,
          n_bytes / median(multiply) / 1e9};
}

void print_row(const MatvecResult& result) {
  write_out(format("%-8s %9.1f %11.2f %12.2f %13.2f %8.1f%% %10.1f%%\n", type_name(result.type),
                   static_cast<double>(result.n_bytes) / (1 << 20), result.read_gbps, result.streams_gbps,
                   result.matvec_gbps, 100 * result.matvec_gbps / result.read_gbps,
                   100 * result.matvec_gbps / result.streams_gbps));
}

nlohmann::json to_json(const MatvecResult& result, const MatvecOptions& options, int n_threads) {
  return {{"type", type_name(result.type)},
          {"rows", options.n_rows},
          {"cols", options.n_cols},
          {"threads", n_threads},
          {"bytes", result.n_bytes},
          {"read_gbps", result.read_gbps},
          {"read_by_streams_gbps", result.streams_gbps},
          {"matvec_gbps", result.matvec_gbps},
          {"fraction", result.matvec_gbps / result.read_gbps},
          {"fraction_of_streams", result.matvec_gbps / result.streams_gbps}};
}

}  // namespace

std::vector<TensorType> all_types() {
  using enum TensorType;
  return {f32,  f16,  bf16,    q8_0,    q6_k,  q5_k,  q5_1,   q5_0,  q4_k,  q4_0, iq4_nl, iq4_xs,
          q3_k, q2_k, iq3_xxs, iq2_xxs, iq3_s, iq2_s, iq2_xs, iq1_m, iq1_s, q4_1, mxfp4,  nvfp4};
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<int64_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

int lab_matvec(const LabOptions& asked) {
  const MatvecOptions options = read_options(asked);
  WorkerPool workers(options.n_threads);
  nlohmann::json results = nlohmann::json::array();
  if (!options.json) {
    write_out(format("%lld x %lld, %d threads, median of %d\n", static_cast<long long>(options.n_rows),
                     static_cast<long long>(options.n_cols), workers.n_threads(), options.n_runs) +
              format("%-8s %9s %11s %12s %13s %9s %11s\n", "type", "MiB", "read GB/s", "streams GB/s",
                     "matvec GB/s", "of read", "of streams"));
  }
  CacheSweeper sweeper(workers);
  for (const TensorType type : options.types) {
    const MatvecResult result = measure(type, options, sweeper, workers);
    if (options.json)
      results.push_back(to_json(result, options, workers.n_threads()));
    else
      print_row(result);
  }
  if (options.json) write_out(results.dump(2) + "\n");
  return 0;
}

}  // namespace dsv32
