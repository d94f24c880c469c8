// backend/expert_window.h: what the planner counts has room for what the products take.
#include <boost/test/unit_test.hpp>
#include <initializer_list>

#include "backend/expert_window.h"
#include "tests/support/host_experts.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(expert_window)

// The arrays one after another, each aligned, as the GPU's products take them.
BOOST_AUTO_TEST_CASE(scratch_holds_every_array_of_the_products) {
  Rng rng(1);
  const auto up_to = [&](uint64_t n) { return 1 + rng.next() % n; };
  for (int i = 0; i < 20000; ++i) {
    const uint64_t n_experts = up_to(400), n_activated = std::min(up_to(16), n_experts), dim = up_to(9000),
                   inter = up_to(5000), n = up_to(i % 2 ? 20 : 9000), n_uses = n * n_activated;
    const uint64_t n_columns = std::min<uint64_t>(dim, ExpertScratch::kColumns);
    uint64_t n_bytes = 0;
    for (const uint64_t n_array :
         {4 * n_uses, 4 * n_uses, 4 * n_experts, 4 * n_experts,
          12 * (n_uses / 128 + std::min(n_uses, n_experts)), uint64_t{4}, 2 * n * round_up(dim, 64), 4 * n,
          2 * n_uses * round_up(inter, 64), 4 * n_uses, 4 * n_uses * n_columns})
      n_bytes = round_up(n_bytes, 256) + n_array;
    const ExpertShape shape{static_cast<int64_t>(n_experts), static_cast<int64_t>(n_activated),
                            static_cast<int64_t>(dim), static_cast<int64_t>(inter)};
    BOOST_REQUIRE(n_bytes <= ExpertScratch(shape).n_bytes(static_cast<int64_t>(n)));
    const uint64_t n_ring = up_to(1 << 20);
    BOOST_REQUIRE(expert_window_bytes(shape, static_cast<int64_t>(n), n_ring) >= n_ring + n_bytes);
  }
}

// Of a fused tensor each view counts its own rows; every matrix begins aligned.
BOOST_AUTO_TEST_CASE(an_expert_in_the_ring_is_its_rows) {
  const HostExpertStacks experts(TensorType::q8_0, 3, 160, 96, 1);
  ExpertStacks fused = experts.stacks;
  fused.w1.mat_bytes = fused.w3.mat_bytes = 2 * experts.stacks.w1.mat_bytes;
  fused.w3.data = fused.w1.data + experts.stacks.w1.mat_bytes;
  const uint64_t n_bytes = 3 * round_up(uint64_t{96} * 160 / 32 * 34, 256);
  BOOST_TEST(expert_ring_bytes(experts.stacks) == n_bytes);
  BOOST_TEST(expert_ring_bytes(fused) == n_bytes);
}

BOOST_AUTO_TEST_SUITE_END()
