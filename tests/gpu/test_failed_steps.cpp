// Steps that fail in their midst on a GPU, where operations leave things for later ones: fetches that nobody
// has waited for, rows in the backend's own format, posts to the host.
#include "base/error.h"
#include "cuda/cuda_backend.h"
#include "tests/gpu/gpu_test.h"
#include "tests/support/forward_scene.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(gpu_failed_steps, *boost::unit_test::precondition(needs_gpu))

// Wherever the step fails.
BOOST_AUTO_TEST_CASE(the_next_step_has_the_bits_of_one_that_follows_no_failure) {
  const std::unique_ptr<Backend> backend = make_cuda_backend(0), other = make_cuda_backend(0);
  for (const int64_t buffer_rows : {int64_t{0}, ForwardScene::kTopk + 8}) {
    ForwardScene scene(*backend, buffer_rows), expected(*other, buffer_rows);
    int n_failed = 0;
    for (bool is_through = false; !is_through; ++n_failed) {
      int n_left = n_failed;
      scene.forward->set_observer([&](const Observation&) {
        if (n_left-- == 0) fail(ErrorKind::internal, "a test");
      });
      const int32_t token = n_failed % 50;
      try {
        scene.step(token);
        is_through = true;
        continue;
      } catch (const Error&) {
      }
      scene.forward->set_observer({});
      BOOST_REQUIRE((scene.step(token) == expected.step(token)));
    }
    BOOST_TEST(n_failed > 20);
  }
}

// Of a step that is recorded too: its fetches will never be made, and cannot be waited for.
BOOST_AUTO_TEST_CASE(fetches_of_a_failed_step_are_forgotten) {
  constexpr int kMost = 4;
  const std::unique_ptr<Backend> backend = make_cuda_backend(0);
  const auto fetch_all = [&] {
    for (int i = 0; i < kMost; ++i) backend->fetch_latents({});
  };
  const auto fetch_and_fail = [&] {
    fetch_all();
    fail(ErrorKind::internal, "a test");
  };
  for (int step = 0; step < 3; ++step) {
    backend->begin_step();
    BOOST_CHECK_THROW(fetch_and_fail(), Error);
    BOOST_CHECK_THROW(backend->fetch_latents({}), Error);  // too many
    backend->begin_step();
    BOOST_CHECK_THROW(backend->record(fetch_and_fail), Error);
  }
  backend->begin_step();
  BOOST_CHECK_NO_THROW(fetch_all());
  backend->download(nullptr, nullptr, 0);
}

BOOST_AUTO_TEST_SUITE_END()
