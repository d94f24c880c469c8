// tests/tools/lab/chosen_positions: as many positions as asked for, and it is they that are attended to.
#include <boost/test/unit_test.hpp>
#include <set>

#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"
#include "tests/tools/lab/chosen_positions.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(chosen_positions)

BOOST_AUTO_TEST_CASE(the_latest_positions) {
  BOOST_TEST(choose_positions(Chooser::recent, 9, 3) == (std::vector<int32_t>{7, 8, 9}),
             boost::test_tools::per_element());
  BOOST_TEST(choose_positions(Chooser::recent, 2, 3) == (std::vector<int32_t>{0, 1, 2}),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(random_positions_are_others_for_each_token_and_reach_everything) {
  std::set<int32_t> reached;
  for (int32_t pos = 40; pos < 140; ++pos) {
    const std::vector<int32_t> rows = choose_positions(Chooser::random, pos, 16);
    BOOST_TEST(rows.size() == 16u);
    BOOST_TEST((std::ranges::adjacent_find(rows, std::greater_equal{}) == rows.end()));  // ascending
    BOOST_TEST((rows.front() >= 0 && rows.back() <= pos));
    BOOST_TEST(rows == choose_positions(Chooser::random, pos, 16), boost::test_tools::per_element());
    reached.insert(rows.begin(), rows.end());
  }
  BOOST_TEST(reached.size() > 130u);
}

BOOST_AUTO_TEST_CASE(what_is_chosen_is_attended_to) {
  constexpr int64_t kTopk = 32, kLayers = 3, kPrompt = 100;
  const TempDir dir;
  TinyModel shape;
  shape.n_layers = kLayers, shape.n_dense_layers = 1, shape.index_topk = kTopk;
  write_tiny_model(dir.file("tiny.gguf"), shape);
  const GgufFile file(dir.file("tiny.gguf"));
  EngineOptions options;
  options.backend = "cpu", options.n_threads = 1, options.context = 256;
  std::vector<int32_t> prompt(kPrompt);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>(i * 31 % 250);

  Engine engine(file, options);
  ByHand sequence(engine);
  const auto logits_with = [&](std::optional<Chooser> chooser, const int32_t* forced) {
    sequence.sync(prompt);
    std::optional<ChosenPositions> chosen;
    if (chooser) chosen.emplace(engine, sequence, *chooser);
    engine.forward().set_forced(0, {forced, nullptr, 1});
    sequence.step(7);
    engine.forward().set_forced(0, {});
    return sequence.logits();
  };
  std::vector<int32_t> latest;
  for (int64_t layer = 0; layer < kLayers; ++layer)
    for (const int32_t pos : choose_positions(Chooser::recent, kPrompt, kTopk)) latest.push_back(pos);
  const std::vector<float> own = logits_with({}, nullptr), recent = logits_with(Chooser::recent, nullptr);
  BOOST_TEST(recent == logits_with({}, latest.data()), boost::test_tools::per_element());
  BOOST_TEST((recent != own && recent != logits_with(Chooser::random, nullptr)));
  BOOST_TEST(own == logits_with({}, nullptr), boost::test_tools::per_element());  // and it leaves no trace
}

BOOST_AUTO_TEST_SUITE_END()
