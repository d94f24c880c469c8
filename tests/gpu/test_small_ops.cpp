// Norms, rotation, Hadamard transform, rounding, embedding and router: CUDA against CPU on random and corner
// shapes.
#include "backend/cpu_backend.h"
#include "cuda/kernels.h"
#include "tests/gpu/gpu_test.h"
#include "tests/support/supported_types.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(gpu_small_ops, *boost::unit_test::precondition(needs_gpu))

namespace {

struct Positions {
  std::vector<int32_t> tokens, pos, seq;
  DeviceArray<int32_t> device_tokens, device_pos, device_seq;
  Positions(int64_t n, int32_t first, int32_t vocab_size)
      : tokens(static_cast<size_t>(n)),
        pos(tokens.size()),
        seq(tokens.size()),
        device_tokens((fill(first, vocab_size), tokens)),
        device_pos(pos),
        device_seq(seq) {}
  StepTokens host() const { return {size(), 1, pos.back(), tokens.data(), pos.data(), seq.data()}; }
  StepTokens device() const {
    return {size(), 1, pos.back(), device_tokens.data(), device_pos.data(), device_seq.data()};
  }

 private:
  int64_t size() const { return static_cast<int64_t>(tokens.size()); }
  void fill(int32_t first, int32_t vocab_size) {
    for (size_t i = 0; i < tokens.size(); ++i) {
      pos[i] = first + static_cast<int32_t>(i);
      tokens[i] = static_cast<int32_t>((i * 7919) % static_cast<size_t>(vocab_size));
    }
  }
};

}  // namespace

// f32 sums in another order: a few ulp of the row's largest value.
BOOST_AUTO_TEST_CASE(norms_agree) {
  CpuBackend cpu(0);
  TestLaunch test;
  for (const int64_t width : {1, 7, 128, 512, 1536, 7168})
    for (const int64_t n_rows : {1, 3, 65}) {
      const size_t n = static_cast<size_t>(n_rows * width), stride = static_cast<size_t>(width + 5);
      const std::vector<float> x = random_floats(static_cast<size_t>(n_rows) * stride, 1, 3),
                               weight = random_floats(static_cast<size_t>(width), 3);
      std::vector<float> expected(n);
      const DeviceArray<float> dx(x), dw(weight), out(n);
      cpu.rms_norm({x.data(), width + 5, weight.data(), 1e-6f, expected.data(), n_rows, width});
      cuda::rms_norm({dx.data(), width + 5, dw.data(), 1e-6f, out.data(), n_rows, width}, test.launch());
      BOOST_TEST(relative_error(out.values(), expected) < 1e-6);
    }
}

// Two norms whose rows alternate, as the block for drafts joins them; what lies between is left alone.
BOOST_AUTO_TEST_CASE(norms_may_leave_gaps) {
  TestLaunch test;
  for (const int64_t width : {7, 512, 7168})
    for (const int64_t n_rows : {1, 33}) {
      const auto n = static_cast<size_t>(n_rows * width);
      const DeviceArray<float> x(random_floats(n, 1)), weight(random_floats(static_cast<size_t>(width), 2));
      const DeviceArray<float> dense(n), joined(std::vector<float>(2 * n, 5.0f));
      const RmsNorm op{x.data(), width, weight.data(), 1e-6f, dense.data(), n_rows, width};
      RmsNorm apart = op;
      apart.out = joined.data() + width, apart.out_stride = 2 * width;
      cuda::rms_norm(op, test.launch());
      cuda::rms_norm(apart, test.launch());
      std::vector<float> expected(2 * n, 5.0f);
      const std::vector<float> rows = dense.values();
      for (int64_t r = 0; r < n_rows; ++r)
        std::copy_n(rows.begin() + r * width, width, expected.begin() + (2 * r + 1) * width);
      BOOST_TEST(joined.values() == expected);
    }
}

// The norms, turns and transforms of what is kept: f32 sums in another order, sine and cosine to a few ulp.
// The bytes of rows and keys have a case of their own (test_transfer.cpp).
BOOST_AUTO_TEST_CASE(what_is_kept_of_tokens_agrees) {
  CpuBackend cpu(0);
  TestLaunch test;
  const int64_t n = 5, rank = 160, rope = 32, dim = 64, query_rank = 300;
  const CacheLayout layout{KvType::f32, rank, rope, dim};
  const auto n_row_bytes = static_cast<size_t>(layout.row_bytes() * kPageTokens),
             n_key_bytes = static_cast<size_t>(layout.key_page_bytes());
  for (const int32_t first : {0, 57, 1000000}) {
    const Positions step(n, first, 10);
    const std::vector<int32_t> pages(static_cast<size_t>(first / kPageTokens + 2));  // all are the first
    std::vector<float> qr = random_floats(n * query_rank, 1), kv = random_floats(n * (rank + rope), 2, 3),
                       k = random_floats(n * dim, 3), c(n * rank), weights = random_floats(512, 4),
                       bias = random_floats(512, 5), frequencies = random_floats(rope / 2, 6);
    std::vector<uint8_t> rows(n_row_bytes), keys(n_key_bytes);
    const DeviceArray<float> d_qr(qr), d_kv(kv), d_k(k), d_c(c.size()), d_weights(weights), d_bias(bias),
        d_frequencies(frequencies);
    const DeviceArray<uint8_t> d_rows(rows), d_keys(keys);
    const DeviceArray<int32_t> d_pages(pages);
    CacheView cache;
    cache.layout = layout, cache.max_pages = static_cast<int64_t>(pages.size());
    CacheView d_cache = cache;
    cache.rows = cache.slots = rows.data(), cache.key_pages = keys.data();
    cache.pages = cache.slot_pages = pages.data();
    d_cache.rows = d_cache.slots = d_rows.data(), d_cache.key_pages = d_keys.data();
    d_cache.pages = d_cache.slot_pages = d_pages.data();
    cpu.store_tokens({step.host(), cache, frequencies.data(), 1e-6f, qr.data(), weights.data(), query_rank,
                      kv.data(), weights.data(), c.data(), k.data(), weights.data(), bias.data(), 1e-6f});
    cuda::store_tokens(
        {step.device(), d_cache, d_frequencies.data(), 1e-6f, d_qr.data(), d_weights.data(), query_rank,
         d_kv.data(), d_weights.data(), d_c.data(), d_k.data(), d_weights.data(), d_bias.data(), 1e-6f},
        test.launch());
    BOOST_TEST(relative_error(d_qr.values(), qr) < 1e-6);
    BOOST_TEST(relative_error(d_c.values(), c) < 1e-6);
    BOOST_TEST(relative_error(d_kv.values(), kv) < 1e-6);
    BOOST_TEST(relative_error(d_k.values(), k) < 1e-5);
    const auto floats = [](const std::vector<uint8_t>& bytes) {
      const auto* values = reinterpret_cast<const float*>(bytes.data());
      return std::vector<float>(values, values + bytes.size() / sizeof(float));
    };
    BOOST_TEST(relative_error(floats(d_rows.values()), floats(rows)) < 1e-6);
    BOOST_TEST(relative_error(floats(d_keys.values()), floats(keys)) < 1e-5);
  }
}

// The same f32 angle; sine and cosine of it to a few ulp. Where nothing turns, the stages of the transform
// add in the same order: the same bits, and so the same e4m3 codes.
BOOST_AUTO_TEST_CASE(queries_are_turned_alike_also_at_far_positions) {
  CpuBackend cpu(0);
  TestLaunch test;
  constexpr int64_t kTokens = 9, kRope = 8;
  for (const int64_t n_heads : {3, 70})
    for (const int64_t dim : {8, 32, 64, 128, 512})
      for (const int32_t first : {0, 4095, 1000000})
        for (const bool turns : {true, false}) {
          const int64_t n_index_heads = 11, n_rows = kTokens * n_index_heads,
                        n_tiles = CacheLayout::tiles(dim);
          const std::vector<float> frequencies =
              turns ? std::vector<float>{1, 0.75f, 0.1f, 1e-4f} : std::vector<float>(kRope / 2);
          const Positions step(kTokens, first, 10);
          std::vector<float> q = random_floats(static_cast<size_t>(kTokens * n_heads * 20), 5),
                             index_q = random_floats(static_cast<size_t>(n_rows * dim), 6, 2),
                             turned(index_q.size()), scales(static_cast<size_t>(n_rows * n_tiles));
          if (!turns)
            for (size_t i = 0; i < index_q.size(); i += 97) index_q[i] *= 1e6f;
          std::vector<uint8_t> codes(index_q.size());
          const DeviceArray<float> d_frequencies(frequencies), d_q(q), d_index_q(index_q),
              d_turned(turned.size()), d_scales(scales.size());
          const DeviceArray<uint8_t> d_codes(codes.size());
          cpu.turn_queries({step.host(), frequencies.data(), kRope, q.data(), n_heads, 20, index_q.data(),
                            n_index_heads, dim, codes.data(), scales.data(), turned.data()});
          cuda::turn_queries(
              {step.device(), d_frequencies.data(), kRope, d_q.data(), n_heads, 20, d_index_q.data(),
               n_index_heads, dim, d_codes.data(), d_scales.data(), d_turned.data()},
              test.launch());
          BOOST_TEST(relative_error(d_q.values(), q) < 1e-6);
          BOOST_TEST(relative_error(d_index_q.values(), index_q) < 1e-6);
          BOOST_TEST(relative_error(d_turned.values(), turned) < 1e-6);
          if (turns) continue;
          BOOST_TEST(d_turned.values() == turned);
          BOOST_TEST(d_codes.values() == codes);
          BOOST_TEST(d_scales.values() == scales);
        }
}

BOOST_AUTO_TEST_CASE(element_wise_operations_agree) {
  CpuBackend cpu(0);
  TestLaunch test;
  for (const int64_t n : {1, 255, 257, 100000}) {
    std::vector<float> a = random_floats(static_cast<size_t>(n), 7, 20),
                       b = random_floats(static_cast<size_t>(n), 8);
    const DeviceArray<float> da(a), db(b);
    const std::vector<float> factors = {0.5f, 2};
    const DeviceArray<float> device_factors(factors);
    for (size_t i = 0; i < a.size(); ++i)
      a[i] = a[i] / (1 + std::exp(-a[i])) * b[i] * factors[i / static_cast<size_t>((n + 1) / 2)];
    cuda::gate(da.data(), db.data(), device_factors.data(), {}, n, (n + 1) / 2, test.launch());
    BOOST_TEST(relative_error(da.values(), a) < 1e-6);
    cpu.add({a.data(), b.data(), n});
    cuda::add({da.data(), db.data(), n}, test.launch());
    BOOST_TEST(relative_error(db.values(), b) < 1e-6);
  }
}

// Four values a thread, and what is left; arrays that begin between two words of 16 bytes.
BOOST_AUTO_TEST_CASE(sums_of_any_length_and_alignment_agree) {
  CpuBackend cpu(0);
  TestLaunch test;
  for (const int64_t n : {1, 3, 4, 5, 1023, 1024, 1026})
    for (const int64_t first : {0, 1}) {
      const auto n_all = static_cast<size_t>(n + first + 4);
      const std::vector<float> x = random_floats(n_all, 12);
      std::vector<float> y = random_floats(n_all, 13);
      const DeviceArray<float> device_x(x), device_y(y);
      cpu.add({x.data() + first, y.data() + first, n});
      cuda::add({device_x.data() + first, device_y.data() + first, n}, test.launch());
      BOOST_TEST(device_y.values() == y);
    }
}

BOOST_AUTO_TEST_CASE(embedding_rows_agree_in_every_format) {
  CpuBackend cpu(0);
  TestLaunch test;
  for (const TensorType type : supported_types()) {
    constexpr int64_t kDim = 512, kVocabSize = 48;
    Rng rng(9);
    const std::vector<uint8_t> bytes = random_weights(type, kVocabSize, kDim, rng, 1);
    const DeviceWeights device_bytes(bytes);
    WeightMatrix table{bytes.data(), type, kVocabSize, kDim, 1, row_bytes(type, kDim), bytes.size()};
    const Positions step(20, 0, kVocabSize);
    std::vector<float> expected(20 * kDim);
    const DeviceArray<float> out(expected.size());
    cpu.embed({step.host(), table, expected.data()});
    table.data = device_bytes.data();
    cuda::embed({step.device(), table, out.data()}, test.launch());
    const std::vector<float> ours = out.values();
    BOOST_TEST(relative_error(ours, expected) < 1e-6, type_name(type));
    table.step_bytes = band_step_bytes(type, kVocabSize, kDim);
    if (table.step_bytes == 0) continue;
    cuda::put_in_bands(table, test.launch());
    cuda::embed({step.device(), table, out.data()}, test.launch());
    BOOST_TEST((out.values() == ours), type_name(type) << " in bands");
  }
}

// Hidden states gathered by their numbers, with rows of any length and a table that tells of no rows.
BOOST_AUTO_TEST_CASE(rows_of_floats_are_gathered) {
  TestLaunch test;
  for (const int64_t dim : {1, 30, 512, 7168}) {
    const std::vector<int32_t> numbers = {4, 0, 4, 31, 17};
    const std::vector<float> rows = random_floats(static_cast<size_t>(32 * dim), 14);
    const DeviceArray<float> device_rows(rows), out(numbers.size() * static_cast<size_t>(dim));
    const DeviceArray<int32_t> device_numbers(numbers);
    Embed op;
    op.step.n_tokens = std::ssize(numbers), op.step.tokens = device_numbers.data();
    op.table.data = reinterpret_cast<const uint8_t*>(device_rows.data());
    op.table.n_cols = dim, op.table.row_bytes = static_cast<size_t>(dim) * sizeof(float);
    op.out = out.data();
    cuda::embed(op, test.launch());
    std::vector<float> expected;
    for (const int32_t i : numbers)
      expected.insert(expected.end(), rows.begin() + i * dim, rows.begin() + (i + 1) * dim);
    BOOST_TEST(out.values() == expected);
  }
}

// Choices are equal where no two scores are nearly so (random logits); ties and what is no number have cases
// of their own.
BOOST_AUTO_TEST_CASE(the_router_agrees) {
  CpuBackend cpu(0);
  TestLaunch test;
  struct Shape {
    int64_t n_experts, n_activated, n_groups, n_limited;
  };
  for (const Shape s :
       {Shape{256, 8, 8, 4}, Shape{16, 4, 4, 2}, Shape{7, 3, 1, 1}, Shape{8, 8, 8, 8}, Shape{384, 8, 1, 1}})
    for (const bool has_bias : {true, false}) {
      const int64_t n_tokens = 33;
      std::vector<float> logits = random_floats(static_cast<size_t>(n_tokens * s.n_experts), 10, 3);
      const std::vector<float> bias = random_floats(static_cast<size_t>(s.n_experts), 11, 0.3f);
      for (int64_t e = 0; e < s.n_experts; ++e) {
        logits[static_cast<size_t>(e)] = 1;                                      // a row of ties
        logits[static_cast<size_t>(s.n_experts + e)] = e % 3 == 0 ? NAN : 0.5f;  // and one of no numbers
      }
      const DeviceArray<float> device_logits(logits), device_bias(bias);
      std::vector<int32_t> experts(static_cast<size_t>(n_tokens * s.n_activated));
      std::vector<float> weights(experts.size());
      const DeviceArray<int32_t> device_experts(experts.size());
      const DeviceArray<float> device_weights(weights.size());
      RouteExperts op{logits.data(), has_bias ? bias.data() : nullptr,
                      n_tokens,      s.n_experts,
                      s.n_activated, s.n_groups,
                      s.n_limited,   true,
                      2.5f,          experts.data(),
                      weights.data()};
      cpu.route_experts(op);
      op.logits = device_logits.data(), op.bias = has_bias ? device_bias.data() : nullptr;
      op.experts = device_experts.data(), op.weights = device_weights.data();
      cuda::route_experts(op, test.launch());
      BOOST_TEST(device_experts.values() == experts);
      BOOST_TEST(relative_error(device_weights.values(), weights) < 1e-5);
    }
}

BOOST_AUTO_TEST_SUITE_END()
