// Recorded steps: a replay does what the step would have done, for whoever owns the recording and nobody
// else, and a recording goes with its owner.
#include <boost/test/unit_test.hpp>
#include <vector>

#include "tests/support/forward_scene.h"
#include "tests/support/recording_backend.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(recordings)

BOOST_AUTO_TEST_CASE(replayed_steps_are_those_that_would_be_computed) {
  for (const int64_t buffer_rows : {int64_t{0}, ForwardScene::kTopk + 8}) {
    RecordingBackend recording;
    CpuBackend plain(1);
    ForwardScene scene(recording, buffer_rows), expected(plain, buffer_rows);
    for (int32_t token = 0; token < 20; ++token) BOOST_TEST((scene.step(token) == expected.step(token)));
    BOOST_TEST(recording.n_recorded == (buffer_rows ? 2 : 1));  // it outgrows its slots on the way
    BOOST_TEST(recording.n_replayed == 20);
  }
}

// A step with one selection is not replayed for another, nor for the indexer's.
BOOST_AUTO_TEST_CASE(a_forced_selection_is_part_of_what_was_recorded) {
  RecordingBackend recording;
  CpuBackend plain(1);
  ForwardScene scene(recording), expected(plain);
  const ForcedPositions a(scene, 0), b(scene, 20), plain_a(expected, 0), plain_b(expected, 20);
  const auto ours = scene.logits_by_selection({a.data(), b.data(), nullptr, a.data()});
  const auto theirs = expected.logits_by_selection({plain_a.data(), plain_b.data(), nullptr, plain_a.data()});
  for (size_t i = 0; i < ours.size(); ++i) BOOST_TEST((ours[i] == theirs[i]), "step " << i);
  BOOST_TEST((ours[0] != ours[1]));
  BOOST_TEST(recording.n_recorded == 3);
}

BOOST_AUTO_TEST_CASE(recordings_go_with_who_made_them) {
  RecordingBackend backend;
  {
    ForwardScene scene(backend);
    scene.step(1);
    BOOST_TEST(backend.n_kept == 1);
    scene.forward.reset();
    BOOST_TEST(backend.n_kept == 0);
  }
  ForwardScene again(backend);
  again.step(1);
  BOOST_TEST(backend.n_recorded == 2);
}

// Those that were not used for long give way.
BOOST_AUTO_TEST_CASE(only_so_many_recordings_are_kept) {
  constexpr int kSelections = 80;
  RecordingBackend backend;
  ForwardScene scene(backend);
  std::vector<ForcedPositions> selections;
  for (int32_t i = 0; i < kSelections; ++i) selections.emplace_back(scene, i % 20);
  const ForcedPositions often(scene, 3);
  for (const ForcedPositions& selection : selections)
    scene.logits_by_selection({selection.data(), often.data()});
  BOOST_TEST(backend.n_recorded == kSelections + 1);
  BOOST_TEST(backend.n_kept > 1);
  BOOST_TEST(backend.n_kept < kSelections / 2);
}

BOOST_AUTO_TEST_CASE(two_passes_on_one_backend_have_recordings_of_their_own) {
  RecordingBackend recording;
  CpuBackend plain(1);
  ForwardScene first(recording), second(recording), expected(plain);
  const std::vector<float> logits = expected.step(9);
  BOOST_TEST((first.step(9) == logits));
  BOOST_TEST((second.step(9) == logits));
}

BOOST_AUTO_TEST_SUITE_END()
