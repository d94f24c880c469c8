// What every launcher gets: scratch memory, and what the card may use.
#include <thread>

#include "base/error.h"
#include "cuda/cuda_backend.h"
#include "tests/gpu/gpu_test.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(gpu_launch)

// Memory whose size is no multiple of the alignment ends within it. Needs no GPU: nothing is touched.
BOOST_AUTO_TEST_CASE(scratch_memory_ends_where_it_ends) {
  alignas(256) uint8_t memory[1000];
  cuda::Workspace workspace(memory, sizeof memory);
  BOOST_TEST(workspace.n_bytes_left() == 1000);
  BOOST_TEST(workspace.take<uint8_t>(1) == memory);
  BOOST_TEST(workspace.n_bytes_left() == 1000 - 256);
  BOOST_CHECK_THROW(workspace.take<uint8_t>(1000 - 255), Error);
  BOOST_TEST(workspace.take<uint8_t>(1000 - 256) == memory + 256);
  BOOST_TEST(workspace.n_bytes_left() == 0);
  BOOST_CHECK_THROW(workspace.take<uint8_t>(1), Error);
  BOOST_CHECK_THROW(workspace.take<uint8_t>(-1), Error);
  workspace.reset();
  BOOST_TEST(workspace.n_bytes_left() == 1000);
  BOOST_TEST(static_cast<void*>(workspace.take<double>(125)) == memory);
  BOOST_TEST(cuda::Workspace(nullptr, 0).n_bytes_left() == 0);
}

// Each thread has a backend of its own on the same device; what the card may use is asked once for all.
BOOST_AUTO_TEST_CASE(backends_of_one_device_in_several_threads, *boost::unit_test::precondition(needs_gpu)) {
  constexpr int64_t kRows = 256, kCols = 2048;
  Rng rng(1);
  const std::vector<uint8_t> weights = random_weights(TensorType::q4_k, kRows, kCols, rng, 0.02f);
  const std::vector<float> x = random_floats(kCols, 2);
  const auto product = [&] {
    const std::unique_ptr<Backend> backend = make_cuda_backend(0);
    uint8_t* on_device = backend->alloc_weights(Place::device, weights.size(), 0);
    const Buffer<float> in(*backend, Place::device, kCols, "x"), out(*backend, Place::device, kRows, "y");
    backend->upload(on_device, weights.data(), weights.size());
    backend->upload(in.data(), x.data(), in.n_bytes());
    const size_t n_row_bytes = row_bytes(TensorType::q4_k, kCols);
    backend->matmul({{on_device, TensorType::q4_k, kRows, kCols, 1, n_row_bytes, kRows * n_row_bytes},
                     in.data(),
                     kCols,
                     out.data(),
                     1,
                     Role::decode});
    std::vector<float> y(kRows);
    backend->download(y.data(), out.data(), out.n_bytes());
    return y;
  };
  std::vector<std::vector<float>> results(4);
  std::vector<std::thread> threads;
  for (std::vector<float>& result : results) threads.emplace_back([&] { result = product(); });
  for (std::thread& thread : threads) thread.join();
  const std::vector<float> expected = product();
  for (const std::vector<float>& result : results) BOOST_TEST((result == expected));
}

BOOST_AUTO_TEST_SUITE_END()
