// The trained model on the GPU: it answers what it answers on the CPU, with any top-k buffer, and the same
// when what it has read comes from disk.
#include "cli/warm/model.h"
#include "engine/compare.h"
#include "tests/gpu/gpu_test.h"
#include "tests/support/demo_answers.h"
#include "tests/support/disk_options.h"
#include "tests/support/temp_dir.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(gpu_demo_model, *boost::unit_test::precondition(needs_gpu))

namespace {

// The first passage of each length with all its questions.
const std::vector<AskedPassage>& passages() {
  static const std::vector<AskedPassage> all = [] {
    std::vector<AskedPassage> firsts;
    for (const char* length : {"1k", "4k", "8k", "16k"}) firsts.push_back(eval_passages(length, 1).front());
    return firsts;
  }();
  return all;
}

const Answers& gpu_answers() {
  static const Answers answers = answers_of(passages(), options_of_demo("cuda"));
  return answers;
}

}  // namespace

BOOST_AUTO_TEST_CASE(questions_at_every_length_are_answered) {
  BOOST_TEST(gpu_answers().tally.accuracy() >= 0.95);
}

BOOST_AUTO_TEST_CASE(answers_are_those_of_the_cpu) {
  const std::vector<AskedPassage> short_ones = eval_passages("1k", 4);
  check_same(answers_of(short_ones, options_of_demo("cuda")), answers_of(short_ones, options_of_demo("cpu")));
}

BOOST_AUTO_TEST_CASE(long_answers_are_those_of_the_cpu) {
  check_same(gpu_answers(), answers_of(passages(), options_of_demo("cpu")));
}

// Of the positions of prompts. What the GPU rounds to fp16 and the CPU does not overturns near ties; an error
// overturns more.
BOOST_AUTO_TEST_CASE(the_likeliest_token_is_that_of_the_cpu) {
  const std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(demo_file());
  int64_t n_rows = 0, n_same = 0;
  for (const AskedPassage& passage : eval_passages("4k", 4)) {
    const std::vector<int32_t> tokens = first_turn(*tokenizer, passage, passage.questions.front());
    EngineOptions options = options_of_demo("cuda"), of_cpu = options_of_demo("cpu");
    options.context = of_cpu.context = std::ssize(tokens);
    Engine engine(demo_file(), options), reference(demo_file(), of_cpu);
    const Deviation found = compare_engines(engine, reference, tokens);
    n_rows += found.n_rows, n_same += found.n_same_choice;
    std::printf("%lld of %lld positions with another likeliest token, largest deviation %.2g\n",
                static_cast<long long>(found.n_rows - found.n_same_choice),
                static_cast<long long>(found.n_rows), found.largest);
  }
  const double share = static_cast<double>(n_same) / static_cast<double>(n_rows);
  std::printf("the same likeliest token at %.2f %% of %lld positions\n", 100 * share,
              static_cast<long long>(n_rows));
  BOOST_TEST(share >= 0.995);
}

BOOST_AUTO_TEST_CASE(answers_do_not_depend_on_the_buffer) {
  check_same(answers_of(passages(), options_of_demo("cuda", kTwiceTopk)), gpu_answers());
}

BOOST_AUTO_TEST_CASE(answers_are_the_same_from_disk) {
  const TempDir dir;
  for (const int64_t topk_buffer : {kEveryRow, kTwiceTopk}) {
    const EngineOptions options =
        with_disk(options_of_demo("cuda", topk_buffer), dir.file(std::to_string(topk_buffer)));
    check_same(answers_of(passages(), options), gpu_answers());
    check_same(answers_of(passages(), options), gpu_answers());
  }
}

BOOST_AUTO_TEST_SUITE_END()
