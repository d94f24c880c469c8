// Kernels that begin before the one ahead is done (cuda/dependent.cuh): a recorded chain of them gives the
// same bits as the same operations one at a time.
#include <cstring>

#include "cuda/kernels.h"
#include "tests/gpu/gpu_test.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(gpu_dependent_launches, *boost::unit_test::precondition(needs_gpu))

namespace {

constexpr int64_t kDim = 1024, kInner = 2304;

struct Product {
  Product(int64_t n_rows, int64_t n_cols, uint64_t seed) : device(make(n_rows, n_cols, seed)) {
    weight.type = TensorType::q4_k, weight.n_rows = n_rows, weight.n_cols = n_cols, weight.n_mats = 1;
    weight.row_bytes = row_bytes(weight.type, n_cols);
    weight.mat_bytes = weight.row_bytes * static_cast<size_t>(n_rows);
    weight.data = device.data();
  }
  static std::vector<uint8_t> make(int64_t n_rows, int64_t n_cols, uint64_t seed) {
    Rng rng(seed);
    return random_weights(TensorType::q4_k, static_cast<uint64_t>(n_rows), static_cast<uint64_t>(n_cols), rng,
                          1.0f / std::sqrt(static_cast<float>(n_cols)));
  }
  DeviceWeights device;
  WeightMatrix weight;
};

// x += W2 (silu(W1 norm(x)) * W3 norm(x)), again and again: each kernel reads what the one before it wrote,
// and writes over what the one before that read. After each operation `after` is called.
struct Chain {
  TestLaunch test{size_t{16} << 20};
  Product gate{kInner, kDim, 1}, up{kInner, kDim, 2}, down{kDim, kInner, 3};
  DeviceArray<float> norm_weight{std::vector<float>(kDim, 1.0f)};
  DeviceArray<float> x{kDim}, normed{kDim}, gated{kInner}, upped{kInner}, added{kDim};

  template <typename After>
  void run(const After& after) {
    const auto multiply = [&](const Product& product, const float* from, float* to) {
      cuda::matmul_decode({product.weight, from, product.weight.n_cols, to, 1}, test.launch());
      after();
    };
    for (int round = 0; round < (has_argument("brief") ? 4 : 100); ++round) {
      cuda::rms_norm({x.data(), kDim, norm_weight.data(), 1e-6f, normed.data(), 1, kDim}, test.launch());
      after();
      multiply(gate, normed.data(), gated.data());
      multiply(up, normed.data(), upped.data());
      cuda::gate(gated.data(), upped.data(), nullptr, {}, kInner, kInner, test.launch());
      after();
      multiply(down, gated.data(), added.data());
      cuda::add({added.data(), x.data(), kDim}, test.launch());
      after();
    }
  }
};

}  // namespace

BOOST_AUTO_TEST_CASE(recorded_chain_is_the_same_as_one_by_one) {
  Chain chain;
  const std::vector<float> begin = random_floats(kDim, 7);
  chain.x.fill(begin);
  chain.run([&] { CUDA_CHECK(cudaStreamSynchronize(chain.test.stream())); });
  const std::vector<float> expected = chain.x.values();
  BOOST_TEST(relative_error(expected, begin) > 0.01);

  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  CUDA_CHECK(cudaStreamBeginCapture(chain.test.stream(), cudaStreamCaptureModeThreadLocal));
  chain.run([] {});
  CUDA_CHECK(cudaStreamEndCapture(chain.test.stream(), &graph));
  CUDA_CHECK(cudaGraphInstantiate(&executable, graph, 0));
  for (int replay = 0; replay < (has_argument("brief") ? 2 : 10); ++replay) {
    chain.x.fill(begin);
    CUDA_CHECK(cudaGraphLaunch(executable, chain.test.stream()));
    const std::vector<float> ours = chain.x.values();
    BOOST_TEST(std::memcmp(ours.data(), expected.data(), kDim * sizeof(float)) == 0);
  }
  chain.x.fill(begin);
  chain.run([] {});  // not recorded
  const std::vector<float> ours = chain.x.values();
  BOOST_TEST(std::memcmp(ours.data(), expected.data(), kDim * sizeof(float)) == 0);
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
}

BOOST_AUTO_TEST_SUITE_END()
