// Recorded steps on the GPU, beside steps of the same bits that are not recorded because somebody observes.
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <vector>

#include "base/error.h"
#include "cuda/cuda_backend.h"
#include "tests/gpu/gpu_test.h"
#include "tests/support/forward_scene.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(gpu_recordings, *boost::unit_test::precondition(needs_gpu))

namespace {

// Nothing of its steps is recorded.
void observe_nothing(ForwardScene& scene) {
  scene.forward->set_observer([](const Observation&) {}, {"no such name"});
}

// Bytes of memory that the process has.
int64_t resident_bytes() {
  int64_t n_pages = 0, n_resident = 0;
  std::ifstream("/proc/self/statm") >> n_pages >> n_resident;
  return n_resident * sysconf(_SC_PAGESIZE);
}

}  // namespace

BOOST_AUTO_TEST_CASE(replayed_steps_are_those_that_would_be_computed) {
  const std::unique_ptr<Backend> backend = make_cuda_backend(0);
  for (const int64_t buffer_rows : {int64_t{0}, ForwardScene::kTopk + 8}) {
    ForwardScene scene(*backend, buffer_rows), expected(*backend, buffer_rows);
    observe_nothing(expected);
    for (int32_t token = 0; token < 20; ++token) BOOST_TEST((scene.step(token) == expected.step(token)));
  }
}

// The memory of a selection is given back and taken for something else before the next one comes.
BOOST_AUTO_TEST_CASE(a_forced_selection_is_part_of_what_was_recorded) {
  const std::unique_ptr<Backend> backend = make_cuda_backend(0);
  ForwardScene scene(*backend), expected(*backend);
  observe_nothing(expected);
  std::vector<std::vector<float>> all;
  for (const int32_t first : {0, 20, 5, 30}) {
    const ForcedPositions positions(scene, first);
    const auto ours = scene.logits_by_selection({positions.data(), nullptr});
    BOOST_TEST((ours == expected.logits_by_selection({positions.data(), nullptr})));
    BOOST_TEST((ours[0] != ours[1]));
    for (const std::vector<float>& other : all) BOOST_TEST((ours[0] != other));
    all.push_back(ours[0]);
  }
}

// Marks between a step's operations change no bits, of that step and of the recorded ones around it.
BOOST_AUTO_TEST_CASE(marked_steps_are_those_that_would_be_computed) {
  const std::unique_ptr<Backend> backend = make_cuda_backend(0);
  for (const int64_t buffer_rows : {int64_t{0}, ForwardScene::kTopk + 8}) {
    ForwardScene scene(*backend, buffer_rows), expected(*backend, buffer_rows);
    for (int32_t token = 0; token < 10; ++token) {
      Laps laps;
      const bool is_marked = token % 2 != 0;
      scene.forward->set_laps(is_marked ? &laps : nullptr);
      BOOST_TEST((scene.step(token) == expected.step(token)));
      const std::vector<double> seconds = backend->laps();
      BOOST_TEST(seconds.size() == laps.size());
      BOOST_TEST((laps.size() > 1) == is_marked);
      if (!is_marked) continue;
      BOOST_TEST(*std::ranges::min_element(seconds) >= 0);
      BOOST_TEST(*std::ranges::max_element(seconds) > 0);
    }
    scene.forward->set_laps(nullptr);
  }
}

// One goes while its last step may still run; the other is not disturbed.
BOOST_AUTO_TEST_CASE(two_passes_on_one_backend_have_recordings_of_their_own) {
  const std::unique_ptr<Backend> backend = make_cuda_backend(0);
  ForwardScene expected(*backend), second(*backend);
  observe_nothing(expected);
  {
    ForwardScene first(*backend);
    for (const int32_t token : {9, 8}) {
      const std::vector<float> logits = expected.step(token);
      BOOST_TEST((first.step(token) == logits));
      BOOST_TEST((second.step(token) == logits));
    }
  }
  ForwardScene third(*backend);
  third.step(9), third.step(8);
  const std::vector<float> logits = expected.step(7);
  BOOST_TEST((second.step(7) == logits));
  BOOST_TEST((third.step(7) == logits));
}

// Neither a stream that still records nor the operations that were recorded by then.
BOOST_AUTO_TEST_CASE(a_recording_that_fails_leaves_nothing) {
  constexpr int kOperations = 200;
  const bool is_brief = has_argument("brief");  // under tools that take memory of their own
  const int n_failures = is_brief ? 5 : 500;
  const std::unique_ptr<Backend> backend = make_cuda_backend(0);
  const Buffer<float> x(*backend, Place::device, 4, "x"), y(*backend, Place::device, 4, "y");
  const auto fails = [&] {
    BOOST_CHECK_THROW(backend->record([&] {
      for (int i = 0; i < kOperations; ++i) backend->add({x.data(), y.data(), 4});
      fail(ErrorKind::internal, "a test");
    }),
                      Error);
  };
  for (int i = 0; i < 20; ++i) fails();  // what the driver keeps is there from now on
  const int64_t before = resident_bytes();
  for (int i = 0; i < n_failures; ++i) fails();
  const int64_t n_bytes = resident_bytes() - before;
  if (!is_brief) BOOST_TEST(n_bytes < n_failures * kOperations * 100);

  const std::vector<float> ones(4, 1);
  backend->upload(x.data(), ones.data(), x.n_bytes());
  const auto recording = backend->record([&] { backend->add({x.data(), y.data(), 4}); });
  for (int i = 0; i < 3; ++i) recording->replay();
  std::vector<float> sums(4);
  backend->download(sums.data(), y.data(), y.n_bytes());
  BOOST_TEST((sums == std::vector<float>(4, 3)));
}

BOOST_AUTO_TEST_SUITE_END()
