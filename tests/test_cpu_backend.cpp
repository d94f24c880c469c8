// Operations of the CPU backend that decide something or turn something, against definitions written another
// way.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "backend/cpu_backend.h"
#include "backend/cpu_common.h"
#include "backend/link_share.h"
#include "gguf/random_weights.h"
#include "tests/support/cpu_targets.h"
#include "tests/support/host_experts.h"
#include "tests/support/made_up_nodes.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(cpu_backend)

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Scores -> the top-k by a full stable sort: ties keep the lower position first, NaN is below everything.
std::vector<int32_t> select_by_sorting(const std::vector<float>& scores, size_t topk) {
  std::vector<int32_t> positions(scores.size());
  std::iota(positions.begin(), positions.end(), 0);
  std::ranges::stable_sort(positions, [&](int32_t a, int32_t b) {
    const float x = scores[static_cast<size_t>(a)], y = scores[static_cast<size_t>(b)];
    if (std::isnan(x) || std::isnan(y)) return !std::isnan(x) && std::isnan(y);
    return x > y;
  });
  positions.resize(std::min(topk, positions.size()));
  std::ranges::sort(positions);
  return positions;
}

std::vector<int32_t> select_with_backend(const std::vector<float>& scores, int64_t topk) {
  CpuBackend backend(1);
  const int32_t token = 0, pos = static_cast<int32_t>(scores.size()) - 1, seq = 0;
  const StepTokens step{1, 1, pos, &token, &pos, &seq};
  std::vector<int32_t> selected(static_cast<size_t>(topk));
  int32_t n_selected = 0;
  backend.select_topk(
      {step, scores.data(), static_cast<int64_t>(scores.size()), topk, selected.data(), &n_selected});
  selected.resize(static_cast<size_t>(n_selected));
  return selected;
}

std::vector<std::vector<float>> adversarial_rows(size_t n) {
  Rng rng(5);
  std::vector<std::vector<float>> rows(9, std::vector<float>(n));
  for (size_t i = 0; i < n; ++i) {
    const float x = static_cast<float>(i);
    rows[0][i] = 1;                                                   // all equal
    rows[1][i] = rng.next() % 2 ? 1.0f : 2.0f;                        // two values
    rows[2][i] = x;                                                   // ascending
    rows[3][i] = -x;                                                  // descending
    rows[4][i] = 1 + static_cast<float>(rng.next() % 64) * 0x1p-23f;  // neighbours
    rows[5][i] = static_cast<float>(rng.next() % 5) * 1e-45f;         // denormals
    rows[6][i] = rng.next() % 2 ? 0.0f : -0.0f;
    rows[7][i] = i % 3 == 0 ? kInfinity : i % 3 == 1 ? -kInfinity : rng.unit();
    rows[8][i] = i % 4 == 0 ? NAN : rng.unit();
  }
  return rows;
}

}  // namespace

BOOST_AUTO_TEST_CASE(top_k_is_exact_on_adversarial_rows) {
  for (const int64_t target : available_targets()) {
    const UseTarget use(target);
    for (const size_t n : {1, 7, 64, 65, 300})
      for (const std::vector<float>& row : adversarial_rows(n))
        for (const int64_t topk : {1, 8, 64, 299})
          BOOST_TEST(select_with_backend(row, topk) == select_by_sorting(row, static_cast<size_t>(topk)),
                     hwy::TargetName(target));
  }
}

BOOST_AUTO_TEST_CASE(hadamard_is_the_orthonormal_sylvester_matrix) {
  CpuBackend backend(1);
  for (const int64_t width : {1, 2, 32, 128}) {
    for (int64_t column = 0; column < width; ++column) {
      std::vector<float> x(static_cast<size_t>(width));
      x[static_cast<size_t>(column)] = 1;
      backend.hadamard(x.data(), 1, width);
      for (int64_t row = 0; row < width;
           ++row) {  // entry (row, column) is (-1)^popcount(row & column) / sqrt(width)
        const int sign = __builtin_popcountll(static_cast<uint64_t>(row & column)) % 2 ? -1 : 1;
        BOOST_TEST(std::fabs(x[static_cast<size_t>(row)] -
                             static_cast<float>(sign) / std::sqrt(static_cast<float>(width))) < 1e-6f);
      }
    }
  }
}

// A pair (a, b) at angle phi becomes (a cos - b sin, a sin + b cos); which two values are a pair is the
// layout.
BOOST_AUTO_TEST_CASE(rope_turns_the_pairs_of_its_layout) {
  CpuBackend backend(1);
  const int32_t token = 0, pos = 3, seq = 0;
  const StepTokens step{1, 1, pos, &token, &pos, &seq};
  const std::vector<float> frequencies = {0.5f, 0.25f};
  const auto turned = [&](RopeLayout layout) {
    std::vector<float> x = {1, 2, 3, 4};
    backend.rope(step, layout, x.data(), 1, 4, frequencies.data(), 4);
    return x;
  };
  const auto check = [](float x, double a, double cosine_of, double b, double sine_of) {
    BOOST_TEST(std::fabs(static_cast<double>(x) - (a * std::cos(cosine_of) + b * std::sin(sine_of))) < 1e-5);
  };
  const std::vector<float> interleaved = turned(RopeLayout::interleaved),
                           split = turned(RopeLayout::half_split);
  check(interleaved[0], 1, 1.5, -2, 1.5), check(interleaved[1], 2, 1.5, 1, 1.5);
  check(interleaved[2], 3, 0.75, -4, 0.75), check(interleaved[3], 4, 0.75, 3, 0.75);
  check(split[0], 1, 1.5, -3, 1.5), check(split[2], 3, 1.5, 1, 1.5);
  check(split[1], 2, 0.75, -4, 0.75), check(split[3], 4, 0.75, 2, 0.75);
}

BOOST_AUTO_TEST_CASE(the_router_keeps_the_best_groups_and_breaks_ties_low) {
  CpuBackend backend(1);
  // Four groups of two; biases decide the groups and the choice, the weights come from the unbiased
  // probabilities.
  const std::vector<float> logits = {0, 0, 1, -1, 0, 0, 3, -3}, bias = {0, 0, 0, 0, 1, 1, 0, 0};
  std::vector<int32_t> experts(2);
  std::vector<float> weights(2);
  backend.route_experts(
      {logits.data(), bias.data(), 1, 8, 2, 4, 2, true, 2.5f, experts.data(), weights.data()});
  BOOST_TEST((experts ==
              std::vector<int32_t>{4, 5}));  // group 2 by its biases; group 0 ties 1 and 3 (1.0) and is lower
  BOOST_TEST(std::fabs(weights[0] - 1.25f) < 1e-6f);
  backend.route_experts({logits.data(), nullptr, 1, 8, 2, 4, 2, true, 1.0f, experts.data(), weights.data()});
  BOOST_TEST(
      (experts == std::vector<int32_t>{0, 2}));  // all groups have 1.0: the first two; 2 leads, 0 ties 1
  BOOST_TEST(std::fabs(weights[0] + weights[1] - 1) < 1e-6f);
  backend.route_experts({logits.data(), nullptr, 1, 8, 2, 1, 1, false, 1.0f, experts.data(), weights.data()});
  BOOST_TEST((experts == std::vector<int32_t>{2, 6}));
  BOOST_TEST(std::fabs(weights[1] - 1 / (1 + std::exp(-3.0f))) < 1e-6f);
}

BOOST_AUTO_TEST_CASE(the_router_survives_what_is_not_a_number) {
  CpuBackend backend(1);
  std::vector<float> logits = {NAN, 1, 2, kInfinity, -kInfinity, NAN, NAN, NAN};
  std::vector<int32_t> experts(3);
  std::vector<float> weights(3);
  backend.route_experts({logits.data(), nullptr, 1, 8, 3, 2, 1, true, 1, experts.data(), weights.data()});
  BOOST_TEST((experts == std::vector<int32_t>{1, 2, 3}));
}

// Of odd numbers of rows, for one token and for many.
BOOST_AUTO_TEST_CASE(experts_are_the_same_however_they_are_divided_over_nodes) {
  const HostExpertStacks experts(TensorType::q8_0, 12, 288, 96, 1);
  CpuBackend cpu(1);
  for (const int64_t n_tokens : {1, 20, 100}) {
    const ExpertStep step(experts.stacks, n_tokens, 12, 7);
    const std::vector<float> expected = run_on(cpu, experts.stacks, step);
    for (const size_t n_nodes : {1u, 2u, 3u, 4u})
      for (const int n_threads : {2, 5}) {
        WorkerPool workers(n_threads, usable_nodes(n_nodes));
        std::vector<float> y(step.x.size()), scratch;
        cpu_run_experts({experts.stacks, step.x.data(), step.experts.data(), step.weights.data(), n_tokens,
                         step.n_activated, y.data(), Role::decode},
                        workers, scratch);
        BOOST_TEST((y == expected), n_tokens << " tokens, " << n_nodes << " nodes");
      }
  }
}

// Both parts lie in rows of whole experts; together they are the whole.
BOOST_AUTO_TEST_CASE(the_hosts_and_the_links_parts_of_experts_are_the_whole) {
  CpuBackend cpu(1);
  for (const TensorType type :
       {TensorType::q4_k, TensorType::q6_k, TensorType::q8_0, TensorType::f16, TensorType::iq2_xs}) {
    const HostExpertStacks experts(type, 6, 256, 1024, 1);
    const int64_t n_share = choose_link_share(experts.stacks.w1.n_rows);
    BOOST_TEST(n_share == 256);
    for (const int64_t n_tokens : {1, 7}) {
      const ExpertStep step(experts.stacks, n_tokens, 3, 7);
      const std::vector<float> whole = run_on(cpu, experts.stacks, step),
                               host = run_on(cpu, host_part(experts.stacks, n_share), step),
                               link = run_on(cpu, link_part(experts.stacks, n_share), step);
      double difference = 0, size = 0;
      for (size_t i = 0; i < whole.size(); ++i)
        difference += std::pow(whole[i] - (host[i] + link[i]), 2), size += std::pow(whole[i], 2);
      BOOST_TEST(difference < 1e-11 * size);
      BOOST_TEST(size > 0);
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
