// The trained model answers questions about long passages, and it is the indexer that finds what they ask
// for: the same model with the latest positions, or random ones, does not answer. The cases labelled "eval"
// (`make eval`) take minutes.
#include <boost/test/unit_test.hpp>
#include <cstdio>

#include "tests/support/demo_answers.h"
#include "tests/support/disk_options.h"
#include "tests/support/sanitized.h"
#include "tests/support/temp_dir.h"

namespace dsv32 {

BOOST_AUTO_TEST_SUITE(demo_model)

namespace {

// What the sanitizers look for is in one passage as in many.
boost::test_tools::assertion_result is_quick(boost::unit_test::test_unit_id) {
  boost::test_tools::assertion_result result(!kIsSanitized);
  result.message() << "it takes too long under the sanitizers";
  return result;
}

double accuracy(const std::string& name, int64_t n_passages, const char* how, const Asking& asking = {}) {
  const AnswerTally tally = answers_of(eval_passages(name, n_passages), options_of_demo("cpu"), asking).tally;
  std::printf("%s, %s: %lld of %lld right, %.0f s\n", name.c_str(), how,
              static_cast<long long>(tally.n_right), static_cast<long long>(tally.n_questions),
              tally.seconds);
  std::fflush(stdout);
  return tally.accuracy();
}

// To the questions about the first passage.
void check_buffered_answers(const std::string& name) {
  const std::vector<AskedPassage> passages = eval_passages(name, 1);
  check_same(answers_of(passages, options_of_demo("cpu", kTwiceTopk)),
             answers_of(passages, options_of_demo("cpu")));
}

}  // namespace

BOOST_AUTO_TEST_CASE(questions_about_a_thousand_tokens_are_answered) {
  BOOST_TEST(accuracy("1k", kIsSanitized ? 1 : 3, "indexer") >= 0.95);
}

BOOST_AUTO_TEST_CASE(sums_copying_lists_and_small_talk_are_answered) {
  BOOST_TEST(accuracy("small", kIsSanitized ? 10 : 0, "indexer") >= 0.9);
}

// In words that training never had.
BOOST_AUTO_TEST_CASE(questions_about_own_facts_are_answered) {
  BOOST_TEST(accuracy("own_facts", kIsSanitized ? 30 : 60, "indexer") >= 0.85);
  BOOST_TEST(accuracy("own_facts", kIsSanitized ? 2 : 40, "thinking", {.thinks = true}) >= 0.8);
}

BOOST_AUTO_TEST_CASE(questions_are_answered_after_thinking) {
  BOOST_TEST(accuracy("1k", kIsSanitized ? 1 : 2, "thinking", {.thinks = true}) >= 0.9);
}

// Answered with guesses as without.
BOOST_AUTO_TEST_CASE(most_guesses_are_right) {
  for (const char* name : {"small", "own_facts"}) {
    EngineOptions options = options_of_demo("cpu");
    const std::vector<AskedPassage> passages = eval_passages(name, kIsSanitized ? 5 : 60);
    const Answers expected = answers_of(passages, options, {.thinks = true});
    BOOST_TEST(expected.tally.n_guessed == 0);
    options.n_guesses = 1;
    const Answers answers = answers_of(passages, options, {.thinks = true});
    check_same(answers, expected);
    std::printf("%s, thinking: %lld of %lld guesses right\n", name,
                static_cast<long long>(answers.tally.n_accepted),
                static_cast<long long>(answers.tally.n_guessed));
    BOOST_TEST(static_cast<double>(answers.tally.n_accepted) >=
               0.7 * static_cast<double>(answers.tally.n_guessed));
  }
}

BOOST_AUTO_TEST_CASE(the_latest_positions_do_not_do, *boost::unit_test::precondition(is_quick)) {
  BOOST_TEST(accuracy("1k", 3, "recent", {Chooser::recent}) < 0.7);
}

BOOST_AUTO_TEST_CASE(answers_do_not_depend_on_the_buffer, *boost::unit_test::precondition(is_quick)) {
  check_buffered_answers("1k");
}

BOOST_AUTO_TEST_CASE(answers_are_the_same_from_disk, *boost::unit_test::precondition(is_quick)) {
  const TempDir dir;
  const EngineOptions options = with_disk(options_of_demo("cpu"), dir.file("cache"));
  const std::vector<AskedPassage> passages = eval_passages("1k", 1);
  const Answers cold = answers_of(passages, options), warm = answers_of(passages, options);
  check_same(warm, cold);
  BOOST_TEST(warm.tally.seconds < cold.tally.seconds);
}

BOOST_AUTO_TEST_CASE(retrieval_at_every_length,
                     *boost::unit_test::label("eval") * boost::unit_test::disabled()) {
  BOOST_TEST(accuracy("1k", 0, "indexer") >= 0.95);
  BOOST_TEST(accuracy("4k", 3, "indexer") >= 0.95);
  BOOST_TEST(accuracy("8k", 2, "indexer") >= 0.95);
  BOOST_TEST(accuracy("16k", 1, "indexer") >= 0.9);
  BOOST_TEST(accuracy("own_facts", 0, "indexer") >= 0.9);
  BOOST_TEST(accuracy("own_facts", 0, "thinking", {.thinks = true}) >= 0.9);
}

BOOST_AUTO_TEST_CASE(other_choosers_miss_what_the_indexer_finds,
                     *boost::unit_test::label("eval") * boost::unit_test::disabled()) {
  BOOST_TEST(accuracy("8k", 1, "recent", {Chooser::recent}) < 0.4);
  BOOST_TEST(accuracy("8k", 1, "random", {Chooser::random}) < 0.4);
}

BOOST_AUTO_TEST_CASE(sparse_is_as_good_as_dense,
                     *boost::unit_test::label("eval") * boost::unit_test::disabled()) {
  for (const auto& [length, n_passages] : {std::pair<const char*, int64_t>{"1k", 6}, {"4k", 2}, {"8k", 1}}) {
    const double dense = accuracy(length, n_passages, "dense", {Chooser::dense});
    BOOST_TEST(accuracy(length, n_passages, "indexer") >= dense - 0.01);
  }
}

BOOST_AUTO_TEST_CASE(long_answers_do_not_depend_on_the_buffer,
                     *boost::unit_test::label("eval") * boost::unit_test::disabled()) {
  check_buffered_answers("8k");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace dsv32
