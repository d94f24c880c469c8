// Exact top-k on the GPU: every row must be what a sort gives, whatever the scores, the lengths and the
// bounds on them.
//
// Nothing is approximate here, so nothing has a tolerance.
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstdio>
#include <limits>
#include <numeric>
#include <vector>

#include "backend/cpu_backend.h"
#include "cuda/kernels.h"
#include "tests/gpu/gpu_test.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(gpu_topk)

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int kKinds = 13;

// The score of one position in a row of the given kind.
float adversarial_score(int kind, size_t i, Rng& rng) {
  const float x = static_cast<float>(i);
  switch (kind) {
    case 0: return 1;                             // all equal
    case 1: return rng.next() % 2 ? 1.0f : 2.0f;  // two values
    case 2: return x;                             // ascending
    case 3: return -x;                            // descending
    case 4:
      return 1 +
             static_cast<float>(rng.next() % 64) * 0x1p-23f;  // neighbours: one bucket but for the last digit
    case 5: return static_cast<float>(rng.next() % 5) * 1e-45f;  // denormals
    case 6: return rng.next() % 2 ? 0.0f : -0.0f;
    case 7: return i % 3 == 0 ? kInfinity : i % 3 == 1 ? -kInfinity : rng.unit();
    case 8: return i % 4 == 0 ? NAN : rng.unit();
    case 9: return i % 2 ? NAN : -NAN;                          // nothing but NaN
    case 11: return std::floor(rng.unit() * 100);               // many of each
    case 12: return static_cast<float>(i / 1000) + rng.unit();  // the latest lie together at the top
    default: return rng.unit();
  }
}

// Scores of positions up to n -> the top-k of those from `first` on by a full stable sort: ties keep the
// lower position first, NaN is below everything.
std::vector<int32_t> select_by_sorting(const float* scores, size_t n, size_t topk, size_t first) {
  std::vector<int32_t> positions(n - first);
  std::iota(positions.begin(), positions.end(), static_cast<int32_t>(first));
  if (positions.size() <= topk) return positions;
  std::ranges::stable_sort(positions, [&](int32_t a, int32_t b) {
    const float x = scores[a], y = scores[b];
    if (std::isnan(x) || std::isnan(y)) return !std::isnan(x) && std::isnan(y);
    return x > y;
  });
  positions.resize(topk);
  std::ranges::sort(positions);
  return positions;
}

// Rows of scores of different lengths, stride apart; what lies past a row's end would win if it were read.
struct Rows {
  std::vector<int32_t> pos;
  std::vector<float> scores;
  size_t stride;

  Rows(const std::vector<size_t>& lengths, const std::vector<int>& kinds, size_t extra, uint64_t seed)
      : stride(*std::ranges::max_element(lengths) + extra) {
    Rng rng(seed);
    scores.assign(lengths.size() * stride, kInfinity);
    for (size_t t = 0; t < lengths.size(); ++t) {
      pos.push_back(static_cast<int32_t>(lengths[t]) - 1);
      for (size_t i = 0; i < lengths[t]; ++i) scores[t * stride + i] = adversarial_score(kinds[t], i, rng);
    }
  }
  const float* row(size_t t) const { return scores.data() + t * stride; }
};

// Runs the launcher on the rows and compares every row with the sort. `max_pos` may be more than the truth.
void check_rows(TestLaunch& gpu, const Rows& rows, int64_t topk, int64_t max_pos, int32_t first = 0) {
  const size_t n_tokens = rows.pos.size();
  const DeviceArray<float> scores(rows.scores);
  const DeviceArray<int32_t> pos(rows.pos);
  const DeviceArray<int32_t> selected(n_tokens * static_cast<size_t>(topk)), n_selected(n_tokens);
  const StepTokens step{static_cast<int64_t>(n_tokens), 1, max_pos, nullptr, pos.data(), nullptr};
  cuda::select_topk({step, scores.data(), static_cast<int64_t>(rows.stride), topk, selected.data(),
                     n_selected.data(), first},
                    gpu.launch());
  const std::vector<int32_t> chosen = selected.values(), counts = n_selected.values();
  for (size_t t = 0; t < n_tokens; ++t) {
    const std::vector<int32_t> expected =
        select_by_sorting(rows.row(t), static_cast<size_t>(rows.pos[t]) + 1, static_cast<size_t>(topk),
                          static_cast<size_t>(first));
    BOOST_TEST_INFO("row " << t << " of " << n_tokens << ", " << rows.pos[t] + 1 << " scores, top " << topk);
    BOOST_REQUIRE_EQUAL(counts[t], static_cast<int32_t>(expected.size()));
    const auto begin = chosen.begin() + static_cast<std::ptrdiff_t>(t) * topk;
    const bool is_same = std::equal(expected.begin(), expected.end(), begin);
    BOOST_TEST(is_same, "row " << t << " (" << rows.pos[t] + 1 << " scores, top " << topk
                               << ") differs from the sort");
  }
}

int64_t longest(const Rows& rows) { return *std::ranges::max_element(rows.pos); }

}  // namespace

BOOST_AUTO_TEST_CASE(rows_of_every_kind_and_length, *boost::unit_test::precondition(needs_gpu)) {
  TestLaunch gpu;
  for (const size_t topk : {1, 64, 2048})
    for (const size_t n : {size_t{1}, size_t{7}, topk - 1, topk, topk + 1, 2 * topk, size_t{5000}}) {
      if (n == 0) continue;
      std::vector<int> kinds(kKinds);
      std::iota(kinds.begin(), kinds.end(), 0);
      const Rows rows(std::vector<size_t>(kinds.size(), n), kinds, n % 3, n + topk);
      check_rows(gpu, rows, static_cast<int64_t>(topk), longest(rows));
    }
}

// One row at a time: the blocks of a cluster share it.
BOOST_AUTO_TEST_CASE(long_rows_alone, *boost::unit_test::precondition(needs_gpu)) {
  TestLaunch gpu;
  int n = 0;
  for (int kind = 0; kind < kKinds; ++kind) {
    if (is_left_out(n, 12)) continue;
    const Rows rows({131072}, {kind}, 0, 7);
    check_rows(gpu, rows, kind % 2 ? 2048 : 64, longest(rows));
  }
  for (const int kind : {0, 4, 10}) {
    if (has_argument("brief")) continue;
    const Rows rows({1048576}, {kind}, 0, 8);
    check_rows(gpu, rows, kind == 4 ? 1 : 2048, longest(rows));
  }
}

// About the lengths at which another way of going through a row begins; alone, together, and with a bound
// that tells of far more.
BOOST_AUTO_TEST_CASE(rows_about_the_limits, *boost::unit_test::precondition(needs_gpu)) {
  TestLaunch gpu;
  const std::vector<size_t> lengths = {2049, 6144, 6145, 8189, 8192, 8193, 32768 + 48, 131072 + 5};
  int n = 0;
  for (const size_t length : lengths)
    for (const int kind : {1, 2, 4, 10, 11, 12}) {
      if (is_left_out(n, 6)) continue;
      const Rows rows({length}, {kind}, length % 4, length);
      check_rows(gpu, rows, 2048, longest(rows));
      if (kind >= 10) check_rows(gpu, rows, 256, 163839);
    }
  for (const int kind : {10, 11, 12}) {
    if (has_argument("brief")) continue;
    const Rows rows(lengths, std::vector<int>(lengths.size(), kind), 3, 11);
    check_rows(gpu, rows, 2048, longest(rows));
    check_rows(gpu, rows, 512, longest(rows));
  }
}

// More rows than the device has room for at once, of lengths from nothing to long; the bound on the positions
// far off.
BOOST_AUTO_TEST_CASE(many_rows_of_different_lengths, *boost::unit_test::precondition(needs_gpu)) {
  TestLaunch gpu;
  Rng rng(3);
  std::vector<size_t> lengths;
  std::vector<int> kinds;
  for (int t = 0; t < 300; ++t) {
    lengths.push_back(1 + rng.next() % (t % 10 == 0 ? 40000 : 6000));
    kinds.push_back(static_cast<int>(rng.next() % kKinds));
  }
  const Rows rows(lengths, kinds, 5, 4);
  check_rows(gpu, rows, 2048, longest(rows));
  check_rows(gpu, rows, 4096, static_cast<int64_t>(rows.stride) - 1);
}

BOOST_AUTO_TEST_CASE(the_bound_on_positions_may_be_far_off, *boost::unit_test::precondition(needs_gpu)) {
  TestLaunch gpu;
  for (const size_t n : {1, 2047, 2048, 2049, 9000, 70000}) {
    const Rows rows({n}, {10}, 0, n);
    check_rows(gpu, rows, 2048, 131071);
    check_rows(gpu, rows, 2048, 1048575);
  }
}

// Rows of every alignment, short and long, whose first score is the largest or no number: position 0 is never
// selected.
BOOST_AUTO_TEST_CASE(selections_may_begin_at_position_1, *boost::unit_test::precondition(needs_gpu)) {
  TestLaunch gpu;
  int n_cases = 0;
  for (const size_t n : {2, 64, 65, 66, 67, 2049, 2050, 2051, 8192, 8193, 40000, 131072})
    for (const int kind : {0, 1, 2, 3, 8, 10, 12}) {
      if (is_left_out(n_cases, 12)) continue;
      Rows rows({n, n, n, n}, {kind, kind, kind, kind}, 1 + n % 3, n);
      for (size_t t = 0; t < 4; ++t) rows.scores[t * rows.stride] = t % 2 ? NAN : kInfinity;
      check_rows(gpu, rows, n > 100 ? 2048 : 64, longest(rows), 1);
      Rows alone({n}, {kind}, 0, n);
      alone.scores[0] = kInfinity;
      check_rows(gpu, alone, 64, longest(alone), 1);
    }
}

BOOST_AUTO_TEST_CASE(without_scores_all_positions_are_selected, *boost::unit_test::precondition(needs_gpu)) {
  TestLaunch gpu;
  const std::vector<int32_t> positions = {0, 1, 5, 1500, 2047};
  const DeviceArray<int32_t> pos(positions);
  const DeviceArray<int32_t> selected(positions.size() * 2048), n_selected(positions.size());
  cuda::select_topk(
      {{5, 1, 2047, nullptr, pos.data(), nullptr}, nullptr, 0, 2048, selected.data(), n_selected.data()},
      gpu.launch());
  const std::vector<int32_t> chosen = selected.values(), counts = n_selected.values();
  for (size_t t = 0; t < positions.size(); ++t) {
    BOOST_REQUIRE_EQUAL(counts[t], positions[t] + 1);
    for (int32_t i = 0; i < counts[t]; ++i) BOOST_REQUIRE_EQUAL(chosen[t * 2048 + static_cast<size_t>(i)], i);
  }
  const DeviceArray<int32_t> last(std::vector<int32_t>{1500});
  cuda::select_topk(
      {{1, 1, 1500, nullptr, last.data(), nullptr}, nullptr, 0, 2048, selected.data(), n_selected.data(), 1},
      gpu.launch());
  BOOST_TEST(n_selected.values()[0] == 1500);
  BOOST_TEST((selected.values()[0] == 1 && selected.values()[1499] == 1500));
}

// Twice the same: nothing depends on the order in which blocks come; and it can be captured.
BOOST_AUTO_TEST_CASE(a_captured_select_gives_the_same, *boost::unit_test::precondition(needs_gpu)) {
  TestLaunch gpu;
  const Rows rows({30000, 30000, 12345}, {4, 1, 10}, 0, 9);
  const DeviceArray<float> scores(rows.scores);
  const DeviceArray<int32_t> pos(rows.pos);
  const DeviceArray<int32_t> selected(3 * 2048), n_selected(3);
  const SelectTopk op{{3, 1, 29999, nullptr, pos.data(), nullptr},
                      scores.data(),
                      static_cast<int64_t>(rows.stride),
                      2048,
                      selected.data(),
                      n_selected.data()};
  cuda::select_topk(op, gpu.launch());
  const std::vector<int32_t> first = selected.values();
  CUDA_CHECK(cudaMemset(selected.data(), 0, selected.size() * 4));
  cudaGraph_t graph;
  cudaGraphExec_t replay;
  CUDA_CHECK(cudaStreamBeginCapture(gpu.stream(), cudaStreamCaptureModeThreadLocal));
  cuda::select_topk(op, gpu.launch());
  CUDA_CHECK(cudaStreamEndCapture(gpu.stream(), &graph));
  CUDA_CHECK(cudaGraphInstantiate(&replay, graph, 0));
  CUDA_CHECK(cudaGraphLaunch(replay, gpu.stream()));
  const bool is_same = selected.values() == first;
  BOOST_TEST(is_same);
  cudaGraphExecDestroy(replay);
  cudaGraphDestroy(graph);
}

BOOST_AUTO_TEST_CASE(timing, *boost::unit_test::precondition(needs_gpu) * boost::unit_test::label("timing")) {
  TestLaunch gpu;
  struct Size {
    size_t n_tokens, n;
  };
  for (const Size size :
       {Size{1, 2048}, Size{1, 8192}, Size{1, 32768}, Size{1, 131072}, Size{1, 1048576}, Size{8, 131072},
        Size{16, 1048576}, Size{64, 131072}, Size{128, 131072}, Size{2048, 8192}}) {
    const DeviceArray<float> scores(random_floats(size.n_tokens * size.n, 5));
    const DeviceArray<int32_t> pos(std::vector<int32_t>(size.n_tokens, static_cast<int32_t>(size.n) - 1));
    const DeviceArray<int32_t> selected(size.n_tokens * 2048), n_selected(size.n_tokens);
    const SelectTopk op{{static_cast<int64_t>(size.n_tokens), 1, static_cast<int64_t>(size.n) - 1, nullptr,
                         pos.data(), nullptr},
                        scores.data(),
                        static_cast<int64_t>(size.n),
                        2048,
                        selected.data(),
                        n_selected.data()};
    const double seconds = gpu.seconds([&] { cuda::select_topk(op, gpu.launch()); });
    std::printf("select_topk: %zu tokens, %zu positions: %.1f us, %.0f GB/s of scores\n", size.n_tokens,
                size.n, seconds * 1e6, static_cast<double>(size.n_tokens * size.n * 4) / seconds / 1e9);
  }
}

// A long row among many short ones, beside as many rows that are equally long.
BOOST_AUTO_TEST_CASE(timing_of_mixed_lengths,
                     *boost::unit_test::precondition(needs_gpu) * boost::unit_test::label("timing")) {
  TestLaunch gpu;
  constexpr size_t kRows = 201;
  std::vector<int32_t> mixed(kRows, 4095), equal(kRows, 4735);
  mixed[100] = 131071;
  for (const std::vector<int32_t>& positions : {mixed, equal}) {
    const int64_t n = std::ranges::max(positions) + 1;
    const DeviceArray<float> scores(random_floats(kRows * static_cast<size_t>(n), 6));
    const DeviceArray<int32_t> pos(positions), selected(kRows * 2048), n_selected(kRows);
    const SelectTopk op{{kRows, 1, n - 1, nullptr, pos.data(), nullptr},
                        scores.data(),
                        n,
                        2048,
                        selected.data(),
                        n_selected.data()};
    std::printf("select_topk: 201 rows of up to %lld positions: %.1f us\n", static_cast<long long>(n),
                gpu.seconds([&] { cuda::select_topk(op, gpu.launch()); }) * 1e6);
  }
}

BOOST_AUTO_TEST_SUITE_END()
