// The indexer's scores on the GPU against the CPU backend, over shuffled pages, several sequences and every
// kernel there is.
//
// Tolerances, as the largest difference over the largest score:
//   1e-5   f32 and f16 products: those of e4m3 values are exact, sums differ in their order alone
//   1e-3   e4m3 products: a step of the tensor core keeps about 14 bits of its largest product and drops the
//          rest; a model of that (33 terms cut at 2^-13 of the largest, in each of four steps) errs by 2e-4
//          with 64 heads, which average it, and by 3.5e-4 with one
#include <algorithm>
#include <bit>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <vector>

#include "backend/cpu_backend.h"
#include "cuda/kernels.h"
#include "tests/gpu/gpu_test.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(gpu_indexer)

namespace {

struct Shape {
  KvType kv_type = KvType::fp8;
  int64_t n_heads = 64, dim = 128;
  std::vector<int64_t> lengths;           // of each sequence's keys
  std::vector<std::vector<int32_t>> pos;  // of each sequence's tokens in the step, ascending

  // One token of each sequence; tests of prefill with one token say so.
  bool is_decode() const {
    return std::ranges::all_of(pos, [](const auto& tokens) { return tokens.size() == 1; });
  }
};

std::vector<int32_t> run_of(int32_t first, int32_t n) {
  std::vector<int32_t> positions(static_cast<size_t>(n));
  std::iota(positions.begin(), positions.end(), first);
  return positions;
}

// Everything an IndexerScores points to, in host memory.
struct Problem {
  CacheLayout layout;
  int64_t n_heads, n_tokens = 0, n_seqs, max_pages = 0, max_pos = 0, n_pages = 0;
  Role role;
  std::vector<int32_t> pos, seq, page_ids;
  std::vector<uint8_t> pages, q_fp8;
  std::vector<float> q, q_scales, weights;

  explicit Problem(const Shape& shape)
      : layout{shape.kv_type, 512, 64, shape.dim},
        n_heads(shape.n_heads),
        n_seqs(static_cast<int64_t>(shape.lengths.size())),
        role(shape.is_decode() ? Role::decode : Role::prefill) {
    for (int64_t s = 0; s < n_seqs; ++s)
      for (const int32_t p : shape.pos[static_cast<size_t>(s)]) {
        pos.push_back(p), seq.push_back(static_cast<int32_t>(s));
        max_pos = std::max<int64_t>(max_pos, p);
      }
    n_tokens = static_cast<int64_t>(pos.size());
    make_page_tables(shape.lengths);
    fill_keys(shape.lengths);
    fill_queries();
  }

  // Pages in shuffled order; entries of a table past its sequence's end lead far outside.
  void make_page_tables(const std::vector<int64_t>& lengths) {
    for (const int64_t length : lengths) {
      max_pages = std::max(max_pages, ceil_div(length, kPageTokens) + 3);
      n_pages += ceil_div(length, kPageTokens);
    }
    std::vector<int32_t> shuffled = run_of(0, static_cast<int32_t>(n_pages));
    Rng rng(1);
    for (size_t i = shuffled.size() - 1; i > 0; --i) std::swap(shuffled[i], shuffled[rng.next() % (i + 1)]);
    page_ids.assign(static_cast<size_t>(n_seqs * max_pages), 0x3fffffff);
    size_t n_taken = 0;
    for (int64_t s = 0; s < n_seqs; ++s)
      for (int64_t i = 0; i < ceil_div(lengths[static_cast<size_t>(s)], kPageTokens); ++i)
        page_ids[static_cast<size_t>(s * max_pages + i)] = shuffled[n_taken++];
  }

  // What no key was stored to is 0xff: NaN as e4m3, as a scale and as f32.
  void fill_keys(const std::vector<int64_t>& lengths) {
    pages.assign(static_cast<size_t>(n_pages * layout.key_page_bytes()), 0xff);
    CpuBackend cpu(0);
    for (int64_t s = 0; s < n_seqs; ++s) {
      const int64_t n = lengths[static_cast<size_t>(s)];
      const std::vector<int32_t> all = run_of(0, static_cast<int32_t>(n)),
                                 seqs(static_cast<size_t>(n), static_cast<int32_t>(s));
      const std::vector<float> keys =
          random_floats(static_cast<size_t>(n * layout.index_head_dim), static_cast<uint64_t>(10 + s), 3);
      cpu.store_index_keys({n, n_seqs, n - 1, nullptr, all.data(), seqs.data()},
                           cache(pages.data(), page_ids.data()), keys.data());
    }
  }

  void fill_queries() {
    const int64_t n_rows = n_tokens * n_heads, dim = layout.index_head_dim;
    q = random_floats(static_cast<size_t>(n_rows * dim), 2);
    weights = random_floats(static_cast<size_t>(n_rows), 3);
    q_fp8.resize(q.size());
    q_scales.resize(static_cast<size_t>(n_rows * CacheLayout::tiles(dim)));
    CpuBackend(0).quantize_fp8(q.data(), n_rows, dim, q_fp8.data(), q_scales.data());
  }

  CacheView cache(uint8_t* key_pages, const int32_t* ids) const {
    CacheView view;
    view.layout = layout;
    view.key_pages = key_pages;
    view.pages = ids;
    view.max_pages = max_pages;
    return view;
  }
  bool is_f32() const { return layout.kv_type == KvType::f32; }
  IndexerScores operation() const {
    IndexerScores op;
    op.step = {n_tokens, n_seqs, max_pos, nullptr, pos.data(), seq.data(), role};
    op.n_heads = n_heads;
    op.weight_scale = 1.0f / std::sqrt(static_cast<float>(n_heads * layout.index_head_dim));
    op.scores_stride = max_pos + 2;
    return op;
  }
};

// The problem in device memory, and its scores there.
struct DeviceProblem {
  const Problem& host;
  DeviceArray<int32_t> pos, seq, page_ids;
  DeviceArray<uint8_t> pages, q_fp8;
  DeviceArray<float> q, q_scales, weights, scores;

  explicit DeviceProblem(const Problem& problem)
      : host(problem),
        pos(problem.pos),
        seq(problem.seq),
        page_ids(problem.page_ids),
        pages(problem.pages),
        q_fp8(problem.q_fp8),
        q(problem.q),
        q_scales(problem.q_scales),
        weights(problem.weights),
        scores(static_cast<size_t>(problem.n_tokens * (problem.max_pos + 2))) {}

  IndexerScores operation() const {
    IndexerScores op = host.operation();
    op.step.pos = pos.data(), op.step.seq = seq.data();
    op.cache = host.cache(pages.data(), page_ids.data());
    if (host.is_f32())
      op.q = q.data();
    else
      op.q_fp8 = q_fp8.data(), op.q_scales = q_scales.data();
    op.weights = weights.data();
    op.scores = scores.data();
    return op;
  }
};

// The CPU's scores of some tokens of the problem, at the same places as the device's.
std::vector<float> expected_scores(Problem& problem, const std::vector<int64_t>& tokens) {
  IndexerScores op = problem.operation();
  std::vector<float> scores(static_cast<size_t>(problem.n_tokens * op.scores_stride));
  op.cache = problem.cache(problem.pages.data(), problem.page_ids.data());
  CpuBackend cpu(0);
  const int64_t row = problem.n_heads * problem.layout.index_head_dim;
  for (const int64_t t : tokens) {
    IndexerScores one = op;
    one.step.n_tokens = 1, one.step.pos += t, one.step.seq += t;
    if (problem.is_f32())
      one.q = problem.q.data() + t * row;
    else
      one.q_fp8 = problem.q_fp8.data() + t * row,
      one.q_scales =
          problem.q_scales.data() + t * problem.n_heads * CacheLayout::tiles(problem.layout.index_head_dim);
    one.weights = problem.weights.data() + t * problem.n_heads;
    one.scores = scores.data() + t * op.scores_stride;
    cpu.indexer_scores(one);
  }
  return scores;
}

// The largest difference over the largest score of the given tokens; infinite if a place past a token's
// position was written.
double largest_error(Problem& problem, const std::vector<float>& scores, const std::vector<int64_t>& tokens) {
  const std::vector<float> expected = expected_scores(problem, tokens);
  const float untouched = std::bit_cast<float>(0xa5a5a5a5u);  // DeviceArray's filling
  double difference = 0, largest = 0;
  for (const int64_t t : tokens)
    for (int64_t s = 0; s < problem.max_pos + 2; ++s) {
      const size_t at = static_cast<size_t>(t * (problem.max_pos + 2) + s);
      if (s > problem.pos[static_cast<size_t>(t)]) {
        if (scores[at] != untouched) return INFINITY;
        continue;
      }
      if (!std::isfinite(scores[at])) return INFINITY;
      difference = std::max(difference,
                            std::fabs(static_cast<double>(scores[at]) - static_cast<double>(expected[at])));
      largest = std::max(largest, std::fabs(static_cast<double>(expected[at])));
    }
  return difference / largest;
}

// Runs the launcher, with a bound on the positions that is `slack` above the truth, and compares every n-th
// token.
double error_of(TestLaunch& gpu, const Shape& shape, int64_t slack = 0, int64_t every = 1) {
  Problem problem(shape);
  const DeviceProblem device(problem);
  IndexerScores op = device.operation();
  op.step.max_pos += std::min<int64_t>(slack, problem.n_tokens > 1 ? 1 : slack);
  cuda::indexer_scores(op, gpu.launch());
  std::vector<int64_t> tokens;
  for (int64_t t = 0; t < problem.n_tokens; t += every) tokens.push_back(t);
  if (tokens.back() != problem.n_tokens - 1) tokens.push_back(problem.n_tokens - 1);
  return largest_error(problem, device.scores.values(), tokens);
}

constexpr double kExact = 1e-5, kCoarse = 1e-3;

}  // namespace

BOOST_AUTO_TEST_CASE(decode_of_one_token, *boost::unit_test::precondition(needs_gpu)) {
  TestLaunch gpu;
  for (const int32_t pos : {0, 1, 62, 63, 64, 100, 4095, 70000})
    for (const int64_t n_heads : {1, 16, 64}) {
      BOOST_TEST_INFO("position " << pos << ", " << n_heads << " heads");
      BOOST_TEST(error_of(gpu, {KvType::fp8, n_heads, 128, {pos + 1}, {{pos}}}, 100000) < kExact);
    }
}

BOOST_AUTO_TEST_CASE(decode_of_several_sequences, *boost::unit_test::precondition(needs_gpu)) {
  TestLaunch gpu;
  BOOST_TEST(error_of(gpu, {KvType::fp8, 64, 128, {5000, 64, 1}, {{4999}, {63}, {0}}}) < kExact);
  BOOST_TEST(error_of(gpu, {KvType::bf16, 64, 128, {300, 9000}, {{299}, {8999}}}, 1) < kExact);
  Shape many{KvType::fp8, 32, 128, {}, {}};
  for (int64_t s = 0; s < 20; ++s)
    many.lengths.push_back(100 + 77 * s), many.pos.push_back({static_cast<int32_t>(99 + 77 * s)});
  BOOST_TEST(error_of(gpu, many) < kExact);
  // Shares of a block: of many tokens a few, of a long one among them a part.
  Shape mixed{KvType::fp8, 64, 128, {}, {}};
  for (int32_t s = 0; s < 600; ++s) {
    const int32_t length = s == 300 ? 20000 : 1 + s % 150;
    mixed.lengths.push_back(length), mixed.pos.push_back({length - 1});
  }
  BOOST_TEST(error_of(gpu, mixed, 0, 60) < kExact);
}

BOOST_AUTO_TEST_CASE(prefill_of_one_sequence, *boost::unit_test::precondition(needs_gpu)) {
  TestLaunch gpu;
  for (const int64_t n_heads : {1, 16, 64}) {
    const double start = error_of(gpu, {KvType::fp8, n_heads, 128, {300}, {run_of(0, 300)}}, 1);
    const double middle = error_of(gpu, {KvType::bf16, n_heads, 128, {3000}, {run_of(2777, 223)}}, 0, 5);
    std::printf("indexer_scores, prefill, %d heads: largest error %.2e and %.2e of the largest score\n",
                static_cast<int>(n_heads), start, middle);
    BOOST_TEST(start < kCoarse);
    BOOST_TEST(middle < kCoarse);
  }
  BOOST_TEST(error_of(gpu, {KvType::fp8, 64, 128, {9}, {run_of(0, 9)}}) < kCoarse);
  BOOST_TEST(error_of(gpu, {KvType::fp8, 64, 128, {40000}, {run_of(39900, 100)}}, 0, 33) < kCoarse);
}

BOOST_AUTO_TEST_CASE(prefill_of_several_sequences, *boost::unit_test::precondition(needs_gpu)) {
  TestLaunch gpu;
  BOOST_TEST(
      error_of(gpu,
               {KvType::fp8, 64, 128, {500, 90, 2000}, {run_of(400, 100), run_of(0, 90), run_of(1961, 39)}}) <
      kCoarse);
  BOOST_TEST(error_of(gpu, {KvType::fp8, 64, 128, {700, 10}, {{699}, run_of(0, 10)}}) < kCoarse);
  BOOST_TEST(error_of(gpu, {KvType::fp8, 64, 128, {10, 700}, {run_of(0, 10), run_of(600, 100)}}) < kCoarse);
}

// The positions of a sequence's tokens need not be neighbours.
BOOST_AUTO_TEST_CASE(positions_far_apart, *boost::unit_test::precondition(needs_gpu)) {
  TestLaunch gpu;
  std::vector<int32_t> positions;
  for (int32_t i = 0; i < 60; ++i) positions.push_back(i * i);
  BOOST_TEST(error_of(gpu, {KvType::fp8, 64, 128, {3600}, {positions}}) < kCoarse);
}

// A token alone, beside others, at any place among them, and with a bound on the positions that is larger
// than need be: the same bits.
BOOST_AUTO_TEST_CASE(a_tokens_bits_do_not_depend_on_the_others, *boost::unit_test::precondition(needs_gpu)) {
  TestLaunch gpu;
  Shape decode{KvType::fp8, 64, 128, {}, {}};
  for (int64_t s = 0; s < 70; ++s)
    decode.lengths.push_back(1 + 97 * s), decode.pos.push_back({static_cast<int32_t>(97 * s)});
  Shape wide = decode, other = decode;
  wide.n_heads = 100, other.dim = 64;
  const Shape prefill{KvType::fp8, 64, 128, {1300, 90}, {run_of(1000, 300), run_of(0, 90)}};
  for (const Shape& shape : {decode, wide, other, prefill}) {
    const Problem problem(shape);
    const DeviceProblem device(problem);
    const IndexerScores op = device.operation();
    cuda::indexer_scores(op, gpu.launch());
    const std::vector<float> together = device.scores.values();
    const int64_t row = problem.n_heads * problem.layout.index_head_dim;
    for (const auto& [first, n] : {std::pair<int64_t, int64_t>{0, 1},
                                   {1, 2},
                                   {3, 9},
                                   {16, 33},
                                   {69, 1},
                                   {problem.n_tokens - 1, 1},
                                   {problem.n_tokens / 2, 20}}) {
      IndexerScores part = op;
      part.step.n_tokens = n, part.step.pos += first, part.step.seq += first;
      part.q_fp8 += first * row;
      part.q_scales += first * problem.n_heads * CacheLayout::tiles(problem.layout.index_head_dim);
      part.weights += first * problem.n_heads;
      cuda::indexer_scores(part, gpu.launch());
      const std::vector<float> apart = device.scores.values();
      bool is_same = true;
      for (int64_t t = 0; t < n; ++t)
        is_same &=
            std::memcmp(apart.data() + t * op.scores_stride, together.data() + (first + t) * op.scores_stride,
                        static_cast<size_t>(problem.pos[static_cast<size_t>(first + t)] + 1) * 4) == 0;
      BOOST_TEST(is_same, "tokens from " << first << ", " << n << " of " << problem.n_tokens << ", "
                                         << problem.n_heads << " heads of " << problem.layout.index_head_dim);
    }
  }
}

BOOST_AUTO_TEST_CASE(more_heads_than_one_product_takes, *boost::unit_test::precondition(needs_gpu)) {
  TestLaunch gpu;
  for (const int64_t n_heads : {65, 100, 128}) {
    BOOST_TEST(error_of(gpu, {KvType::fp8, n_heads, 128, {1000}, {{999}}}) < kExact);
    BOOST_TEST(error_of(gpu, {KvType::fp8, n_heads, 128, {200, 300}, {run_of(150, 50), run_of(0, 20)}}) <
               kExact);
  }
}

BOOST_AUTO_TEST_CASE(other_sizes_and_f32_keys, *boost::unit_test::precondition(needs_gpu)) {
  TestLaunch gpu;
  int n = 0;
  for (const KvType kv_type : {KvType::fp8, KvType::f32})
    for (const int64_t dim : {32, 64, 128, 256, 512, 1024})  // the last has no room in shared memory
      for (const int64_t n_heads : {1, 3, 64}) {
        if ((kv_type == KvType::fp8 && dim == 128) || is_left_out(n, 4)) continue;
        BOOST_TEST_INFO(dim << " values, " << n_heads << " heads");
        BOOST_TEST(error_of(gpu, {kv_type, n_heads, dim, {150, 70}, {run_of(100, 50), run_of(60, 10)}}, 1) <
                   kExact);
        BOOST_TEST(error_of(gpu, {kv_type, n_heads, dim, {1000}, {{999}}}, 5000) < kExact);
      }
}

BOOST_AUTO_TEST_CASE(timing, *boost::unit_test::precondition(needs_gpu) * boost::unit_test::label("timing")) {
  TestLaunch gpu;
  struct Size {
    int32_t n_tokens, n;
  };
  for (const Size size :
       {Size{1, 4096}, Size{1, 32768}, Size{1, 131072}, Size{1, 1048576}, Size{2, 131072}, Size{8, 131072},
        Size{16, 131072}, Size{128, 131072}, Size{16, 1048576}, Size{2048, 8192}}) {
    const bool is_long =
        size.n > 131072;  // the pages of the first part again and again: random keys take their time
    const int32_t n_made = is_long ? 131072 : size.n;
    Problem problem({KvType::fp8, 64, 128, {n_made}, {run_of(n_made - size.n_tokens, size.n_tokens)}});
    if (size.n_tokens <= 8) problem.role = Role::decode;  // as of so many sequences
    if (is_long) {
      for (int32_t& p : problem.pos) p += size.n - n_made;
      problem.max_pos = size.n - 1;
      problem.max_pages = size.n / kPageTokens;
      const std::vector<int32_t> made = problem.page_ids;
      problem.page_ids.resize(static_cast<size_t>(problem.max_pages));
      for (size_t i = 0; i < problem.page_ids.size(); ++i)
        problem.page_ids[i] = made[i % static_cast<size_t>(n_made / kPageTokens)];
    }
    const DeviceProblem device(problem);
    const IndexerScores op = device.operation();
    const double seconds = gpu.seconds([&] { cuda::indexer_scores(op, gpu.launch()); });
    const double n_pairs = static_cast<double>(size.n_tokens) * size.n;
    std::printf(
        "indexer_scores: %d tokens, %d positions%s: %.1f us, %.0f GB/s of keys read once a token, %.0f "
        "TFLOP/s\n",
        size.n_tokens, size.n, is_long ? " (17 MB of keys repeated)" : "", seconds * 1e6,
        n_pairs * 132 / seconds / 1e9, n_pairs * 16384 / seconds / 1e12);
  }
}

// A long sequence among many short ones, beside as many keys of as many sequences that are equally long.
BOOST_AUTO_TEST_CASE(timing_of_mixed_lengths,
                     *boost::unit_test::precondition(needs_gpu) * boost::unit_test::label("timing")) {
  TestLaunch gpu;
  std::vector<int64_t> mixed(201, 4096), equal(201, 4736);
  mixed[100] = 131072;
  for (const std::vector<int64_t>& lengths : {mixed, equal}) {
    std::vector<std::vector<int32_t>> newest;
    for (const int64_t n : lengths) newest.push_back(run_of(static_cast<int32_t>(n) - 1, 1));
    const Problem problem({KvType::fp8, 64, 128, lengths, newest});
    const DeviceProblem device(problem);
    const IndexerScores op = device.operation();
    std::printf("indexer_scores: 201 sequences of up to %lld positions: %.1f us\n",
                static_cast<long long>(std::ranges::max(lengths)),
                gpu.seconds([&] { cuda::indexer_scores(op, gpu.launch()); }) * 1e6);
  }
}

BOOST_AUTO_TEST_SUITE_END()
