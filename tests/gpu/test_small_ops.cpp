// Norms, rotation, Hadamard transform, rounding, embedding and router: CUDA against CPU on random and corner
// shapes.
#include "backend/cpu_backend.h"
#include "cuda/kernels.h"
#include "tests/gpu/gpu_test.h"
#include "tests/support/supported_types.h"

using namespace dsv32;

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

BOOST_AUTO_TEST_SUITE(gpu_small_ops, *boost::unit_test::precondition(needs_gpu))

// f32 sums in another order: a few ulp of the row's largest value.
BOOST_AUTO_TEST_CASE(norms_agree) {
  CpuBackend cpu(0);
  TestLaunch test;
  for (const int64_t width : {1, 7, 128, 512, 1536, 7168})
    for (const int64_t n_rows : {1, 3, 65}) {
      const size_t n = static_cast<size_t>(n_rows * width), stride = static_cast<size_t>(width + 5);
      const std::vector<float> x = random_floats(static_cast<size_t>(n_rows) * stride, 1, 3),
                               dense = random_floats(n, 2);
      const std::vector<float> weight = random_floats(static_cast<size_t>(width), 3),
                               bias = random_floats(static_cast<size_t>(width), 4);
      std::vector<float> expected(n);
      const DeviceArray<float> dx(x), dw(weight), db(bias), out(n), in_place(dense);
      cpu.rms_norm({x.data(), width + 5, weight.data(), 1e-6f, expected.data(), n_rows, width});
      cuda::rms_norm({dx.data(), width + 5, dw.data(), 1e-6f, out.data(), n_rows, width}, test.launch());
      BOOST_TEST(relative_error(out.values(), expected) < 1e-6);
      cpu.layer_norm({dense.data(), weight.data(), bias.data(), 1e-6f, expected.data(), n_rows, width});
      cuda::layer_norm({in_place.data(), dw.data(), db.data(), 1e-6f, in_place.data(), n_rows, width},
                       test.launch());
      BOOST_TEST(relative_error(in_place.values(), expected) < 1e-5);
    }
}

// The same f32 angle; sine and cosine of it to a few ulp.
BOOST_AUTO_TEST_CASE(rope_agrees_in_both_layouts_and_at_far_positions) {
  CpuBackend cpu(0);
  TestLaunch test;
  const std::vector<float> frequencies = {1, 0.75f, 0.1f, 1e-4f};
  const DeviceArray<float> device_frequencies(frequencies);
  for (const RopeLayout layout : {RopeLayout::interleaved, RopeLayout::half_split})
    for (const int32_t first : {0, 4095, 1000000}) {
      const Positions step(9, first, 10);
      std::vector<float> x = random_floats(9 * 3 * 20, 5);
      const DeviceArray<float> dx(x);
      cpu.rope({step.host(), layout, x.data() + 6, 3, 20, 60, frequencies.data(), 8});
      cuda::rope({step.device(), layout, dx.data() + 6, 3, 20, 60, device_frequencies.data(), 8},
                 test.launch());
      BOOST_TEST(relative_error(dx.values(), x) < 1e-6);
    }
}

// The stages add in the same order: the same bits, and so the same e4m3 codes.
BOOST_AUTO_TEST_CASE(hadamard_and_rounding_give_the_same_bits) {
  CpuBackend cpu(0);
  TestLaunch test;
  for (const int64_t width : {1, 2, 32, 64, 128, 512}) {
    const int64_t n_rows = 77, n_tiles = CacheLayout::tiles(width);
    std::vector<float> x = random_floats(static_cast<size_t>(n_rows * width), 6, 2);
    for (size_t i = 0; i < x.size(); i += 97) x[i] *= 1e6f;
    const DeviceArray<float> dx(x);
    cpu.hadamard({x.data(), n_rows, width});
    cuda::hadamard({dx.data(), n_rows, width}, test.launch());
    BOOST_TEST(dx.values() == x);
    std::vector<uint8_t> values(x.size());
    std::vector<float> scales(static_cast<size_t>(n_rows * n_tiles));
    const DeviceArray<uint8_t> device_values(values.size());
    const DeviceArray<float> device_scales(scales.size());
    cpu.quantize_fp8({x.data(), values.data(), scales.data(), n_rows, width});
    cuda::quantize_fp8({dx.data(), device_values.data(), device_scales.data(), n_rows, width}, test.launch());
    BOOST_TEST(device_values.values() == values);
    BOOST_TEST(device_scales.values() == scales);
  }
}

BOOST_AUTO_TEST_CASE(element_wise_operations_agree) {
  CpuBackend cpu(0);
  TestLaunch test;
  for (const int64_t n : {1, 255, 257, 100000}) {
    std::vector<float> a = random_floats(static_cast<size_t>(n), 7, 20),
                       b = random_floats(static_cast<size_t>(n), 8);
    const DeviceArray<float> da(a), db(b);
    cpu.silu_mul({a.data(), b.data(), a.data(), n});
    cuda::silu_mul({da.data(), db.data(), da.data(), n}, test.launch());
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
    constexpr int64_t kDim = 512, kVocabSize = 50;
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
    BOOST_TEST(relative_error(out.values(), expected) < 1e-6, type_name(type));
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
