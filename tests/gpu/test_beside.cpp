// What decode does beside a product in one launch is what it does alone, bit for bit: F32 rows, the router
// and its choice, the shared expert's two products, the turns of queries, what is stored.
#include "tests/gpu/kept_tokens.h"
#include "tests/gpu/products.h"
#include "tests/support/same_bits.h"

namespace dsv32 {

BOOST_AUTO_TEST_SUITE(gpu_beside, *boost::unit_test::precondition(needs_gpu))

namespace {

TestLaunch& gpu() {
  static TestLaunch launch;
  return launch;
}

using Floats = DeviceArray<float>;

Matmul product(const TestWeights& w, const Floats& x, const Floats& y, int64_t n_tokens) {
  return {w.on_device(), x.data(), w.host.n_cols, y.data(), n_tokens, Role::decode};
}

}  // namespace

// Of more than 256 tokens the last few are a product of their own, with a small ring: its blocks have no room
// for all tokens' sums of F32 rows.
BOOST_AUTO_TEST_CASE(f32_rows_beside_a_product) {
  constexpr int64_t kRows = 576, kFloatRows = 65;
  for (const auto& [n_cols, n] : {std::pair<int64_t, int64_t>{1536, 1},
                                  {1536, 3},
                                  {1536, 8},
                                  {1536, 9},
                                  {1536, 40},
                                  {256, 257},
                                  {256, 516}}) {
    const TensorType type = n_cols == 256 ? TensorType::q2_k : TensorType::q4_k;
    const TestWeights first(type, 1, kRows, n_cols, 1), second(type, 1, 64, n_cols, 2),
        floats(TensorType::f32, 1, kFloatRows, n_cols, 3);
    const Floats x(random_floats(static_cast<size_t>(n * n_cols), 4)), y(static_cast<size_t>(n * kRows)),
        z(static_cast<size_t>(n * 64)), f(static_cast<size_t>(n * kFloatRows)), alone(f.size());
    const Matmul ops[] = {product(first, x, y, n), product(second, x, z, n), product(floats, x, f, n)};
    cuda::matmuls_decode(ops, gpu().launch());
    cuda::matmul_decode(product(floats, x, alone, n), gpu().launch());
    BOOST_TEST(same_bits(f.values(), alone.values()));
    std::vector<float> expected(f.size());
    const std::vector<float> host_x = x.values();
    cpu().matmul({floats.host, host_x.data(), n_cols, expected.data(), n, Role::decode});
    check_close(f.values(), expected, kSplit, "F32 rows");
    const Floats y_alone(y.size());
    const Matmul without[] = {product(first, x, y_alone, n), product(second, x, z, n)};
    cuda::matmuls_decode(without, gpu().launch());
    BOOST_TEST(same_bits(y.values(), y_alone.values()));
  }
}

// More than once: the counters of blocks are left as they were found.
BOOST_AUTO_TEST_CASE(the_router_beside_the_shared_expert) {
  constexpr int64_t kCols = 768, kInter = 512, kExperts = 256, kActivated = 8;
  const TestWeights gate(TensorType::f32, 1, kExperts, kCols, 5), w1(TensorType::q4_k, 1, kInter, kCols, 6),
      w3(TensorType::q4_k, 1, kInter, kCols, 7);
  const Floats bias(random_floats(kExperts, 8, 0.1f));
  const std::vector<float> host_bias = bias.values();
  for (const int64_t n : {1, 1, 2, 3, 4, 4, 1, 9}) {
    const auto n_uses = static_cast<size_t>(n * kActivated), n_values = static_cast<size_t>(n * kInter);
    const Floats x(random_floats(static_cast<size_t>(n * kCols), 9)),
        logits(static_cast<size_t>(n * kExperts)), weights(n_uses), up(n_values), y(n_values),
        alone(n_values);
    const DeviceArray<int32_t> experts(n_uses);
    RouteExperts op{logits.data(),  bias.data(),   n, kExperts, kActivated, 8, 4, true, 2.5f,
                    experts.data(), weights.data()};
    op.gate = product(gate, x, logits, n);
    op.beside = {w1.on_device(), w3.on_device(), x.data(), up.data(), y.data(), n, Role::decode};
    cuda::route_experts_decode(op, gpu().launch());

    const Floats other_logits(logits.size()), other_weights(n_uses);
    const DeviceArray<int32_t> other_experts(n_uses);
    cuda::matmul_decode(product(gate, x, other_logits, n), gpu().launch());
    RouteExperts apart{other_logits.data(),  bias.data(),         n, kExperts, kActivated, 8, 4, true, 2.5f,
                       other_experts.data(), other_weights.data()};
    cuda::route_experts(apart, gpu().launch());
    BOOST_TEST(same_bits(logits.values(), other_logits.values()));
    BOOST_TEST(experts.values() == other_experts.values());
    BOOST_TEST(same_bits(weights.values(), other_weights.values()));
    cuda::matmul_gated_decode(
        {w1.on_device(), w3.on_device(), x.data(), up.data(), alone.data(), n, Role::decode}, gpu().launch());
    BOOST_TEST(same_bits(y.values(), alone.values()));
  }
}

// The shared expert's w2 as one more of the chosen ones, of another type than theirs, and where x has no room
// in a block.
BOOST_AUTO_TEST_CASE(the_shared_expert_beside_the_chosen_ones) {
  constexpr int64_t kExperts = 6, kActivated = 3, kTokens = 5;
  struct Shape {
    TensorType type, shared_type;
    int64_t dim, inter;
  };
  for (const Shape& s : {Shape{TensorType::q4_k, TensorType::q4_k, 768, 512},
                         {TensorType::q4_k, TensorType::q6_k, 768, 512},
                         {TensorType::q2_k, TensorType::q2_k, 256, 77824}}) {
    const int64_t dim = s.dim, inter = s.inter;
    const TestWeights w1(s.type, kExperts, inter, dim, 10), w3(s.type, kExperts, inter, dim, 11),
        w2(s.type, kExperts, dim, inter, 12), shared(s.shared_type, 1, dim, inter, 13);
    std::vector<int32_t> chosen;
    for (int32_t t = 0; t < kTokens; ++t) chosen.insert(chosen.end(), {t % 2, 2 + t % 2, 4 + t % 2});
    const DeviceArray<int32_t> experts(chosen);
    const Floats x(random_floats(kTokens * dim, 14)), weights(random_floats(kTokens * kActivated, 15)),
        shared_x(random_floats(kTokens * inter, 16));
    const std::vector<float> before = random_floats(kTokens * dim, 17);
    const auto run = [&](int64_t first, int64_t n, const Floats& y, const Floats& h) {
      const Floats sum(static_cast<size_t>(n * dim));
      RunExperts op{{w1.on_device(), w3.on_device(), w2.on_device()},
                    x.data() + first * dim,
                    experts.data() + first * kActivated,
                    weights.data() + first * kActivated,
                    n,
                    kActivated,
                    sum.data(),
                    Role::decode};
      op.shared = {shared.on_device(),
                   shared_x.data() + first * inter,
                   inter,
                   y.data(),
                   n,
                   Role::decode,
                   sum.data(),
                   h.data()};
      cuda::run_experts_decode(op, gpu().launch());
      CUDA_CHECK(cudaStreamSynchronize(gpu().stream()));
    };
    const Floats y(before.size()), h(before);
    run(0, kTokens, y, h);
    const std::vector<float> all_y = y.values(), all_h = h.values();

    std::vector<float> expected(before.size()), sums(before.size()), expected_h = before;
    const std::vector<float> host_x = x.values(), host_weights = weights.values(),
                             host_shared = shared_x.values();
    RunExperts op{{w1.host, w3.host, w2.host},
                  host_x.data(),
                  chosen.data(),
                  host_weights.data(),
                  kTokens,
                  kActivated,
                  sums.data(),
                  Role::decode};
    op.shared = {shared.host, host_shared.data(), inter,       expected.data(),
                 kTokens,     Role::decode,       sums.data(), expected_h.data()};
    cpu().run_experts(op);
    check_close(all_y, expected, {1e-3, 7e-3}, "the sum");
    check_close(all_h, expected_h, {1e-3, 7e-3}, "h");

    for (int64_t n = 1; n < kTokens; ++n)
      for (int64_t t = 0; t + n <= kTokens; ++t) {
        const auto part = [&](const std::vector<float>& all) {
          return std::vector<float>(all.begin() + t * dim, all.begin() + (t + n) * dim);
        };
        const Floats few(static_cast<size_t>(n * dim)), few_h(part(before));
        run(t, n, few, few_h);
        BOOST_TEST(same_bits(few.values(), part(all_y)));
        BOOST_TEST(same_bits(few_h.values(), part(all_h)));
      }
  }
}

BOOST_AUTO_TEST_CASE(queries_are_turned_beside_a_product) {
  constexpr int64_t kHeads = 70, kNope = 128, kRope = 64, kDim = kNope + kRope, kRank = 256, kIndexHeads = 11,
                    kIndexDim = 128;
  const TestWeights w_uk(TensorType::q8_0, kHeads, kRank, kNope, 18);
  std::vector<float> angles(kRope / 2);
  for (size_t i = 0; i < angles.size(); ++i) angles[i] = std::pow(10000.0f, -static_cast<float>(i) / 32);
  const Floats frequencies(angles);
  for (const int64_t n : {1, 3, 8, 12}) {
    std::vector<int32_t> positions(static_cast<size_t>(n));
    for (size_t t = 0; t < positions.size(); ++t) positions[t] = static_cast<int32_t>(1000 * t + 7);
    const DeviceArray<int32_t> pos(positions);
    const std::vector<float> q0 = random_floats(static_cast<size_t>(n * kHeads * kDim), 19),
                             index_q0 = random_floats(static_cast<size_t>(n * kIndexHeads * kIndexDim), 20);
    struct Result {
      std::vector<float> q, index_q, scales, q_c;
      std::vector<uint8_t> codes;
      bool operator==(const Result&) const = default;
    };
    const auto run = [&](bool beside) {
      const Floats q(q0), index_q(index_q0), scales(static_cast<size_t>(n * kIndexHeads)),
          q_c(static_cast<size_t>(n * kHeads * kRank));
      const DeviceArray<uint8_t> codes(index_q0.size());
      TurnQueries op{{n, 1, positions.back(), nullptr, pos.data(), nullptr, Role::decode},
                     frequencies.data(),
                     kRope,
                     q.data(),
                     kHeads,
                     kDim,
                     index_q.data(),
                     kIndexHeads,
                     kIndexDim,
                     codes.data(),
                     scales.data()};
      const MatmulHeads absorb{w_uk.on_device(), q.data(), kHeads * kDim, kDim, q_c.data(), n, Role::decode};
      if (beside) {
        op.absorb = absorb;
        cuda::turn_queries_decode(op, gpu().launch());
      } else {
        cuda::turn_queries(op, gpu().launch());
        cuda::matmul_heads_decode(absorb, gpu().launch());
      }
      return Result{q.values(), index_q.values(), scales.values(), q_c.values(), codes.values()};
    };
    BOOST_TEST((run(true) == run(false)));
  }
}

// The products norm the queries' low rank themselves; what is kept is the same.
BOOST_AUTO_TEST_CASE(tokens_are_stored_beside_the_products_of_their_queries) {
  constexpr int64_t kHeadRows = 608, kIndexRows = 96, kRank = 1536, kKept = 128, kRope = 64, kIndexDim = 128;
  const TestWeights wq_b(TensorType::q4_k, 1, kHeadRows, kRank, 21),
      same(TensorType::q4_k, 1, kIndexRows, kRank, 22), other(TensorType::q6_k, 1, kIndexRows, kRank, 23);
  const Floats norm(random_floats(kRank, 24)), frequencies(random_floats(kRope / 2, 25)),
      bias(random_floats(kRank, 26));
  for (const TestWeights* indexer : {&same, &other})
    for (const int64_t n : {1, 2, 3, 4, 8, 12}) {
      const CacheLayout layout{KvType::fp8, kKept, kRope, kIndexDim};
      std::vector<int32_t> positions(static_cast<size_t>(n)), own(positions.size());
      for (size_t t = 0; t < positions.size(); ++t)
        positions[t] = static_cast<int32_t>(5 * t + 1), own[t] = static_cast<int32_t>(t);
      const DeviceArray<int32_t> pos(positions), seq(own), pages(own);
      struct Result {
        std::vector<float> kv, c, k, q, index_q;
        std::vector<uint8_t> rows, keys;
        bool operator==(const Result&) const = default;
      };
      const auto run = [&](bool beside) {
        const Floats qr(random_floats(static_cast<size_t>(n * kRank), 27)),
            kv(random_floats(static_cast<size_t>(n * (kKept + kRope)), 28)),
            k(random_floats(static_cast<size_t>(n * kIndexDim), 29)), c(static_cast<size_t>(n * kKept)),
            q(static_cast<size_t>(n * kHeadRows)), index_q(static_cast<size_t>(n * kIndexRows));
        const DeviceArray<uint8_t> rows(static_cast<size_t>(n * kPageTokens * layout.row_bytes())),
            keys(static_cast<size_t>(n * layout.key_page_bytes()));
        CacheView cache;
        cache.layout = layout, cache.max_pages = 1;
        cache.rows = cache.slots = rows.data(), cache.key_pages = keys.data();
        cache.pages = cache.slot_pages = pages.data();
        StoreTokens op{{n, n, positions.back(), nullptr, pos.data(), seq.data(), Role::decode},
                       cache,
                       frequencies.data(),
                       1e-6f,
                       qr.data(),
                       norm.data(),
                       kRank,
                       kv.data(),
                       norm.data(),
                       c.data(),
                       k.data(),
                       norm.data(),
                       bias.data(),
                       1e-6f};
        const Matmul queries[] = {product(wq_b, qr, q, n), product(*indexer, qr, index_q, n)};
        if (beside) {
          op.to_q = queries[0], op.to_index_q = queries[1];
          cuda::store_tokens_decode(op, gpu().launch());
        } else {
          cuda::store_tokens(op, gpu().launch());
          cuda::matmuls_decode(queries, gpu().launch());
        }
        return Result{kv.values(),      c.values(),    k.values(),   q.values(),
                      index_q.values(), rows.values(), keys.values()};
      };
      const Result expected = run(false);
      BOOST_TEST((run(true) == expected));
      BOOST_TEST(!std::ranges::all_of(expected.rows, [](uint8_t byte) { return byte == 0; }));
    }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace dsv32
