// Drafts on the GPU: verified tokens have the bits that they have alone, and answers are those without
// guesses, byte for byte; by the tiny model, whose guesses are made here, and by the demo with its own.
#include "cli/warm/model.h"
#include "tests/gpu/gpu_test.h"
#include "tests/support/constrained_answers.h"
#include "tests/support/demo_answers.h"
#include "tests/support/draft_walks.h"
#include "tests/support/tiny_file.h"
#include "tests/support/tiny_sequence.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(gpu_drafts, *boost::unit_test::precondition(needs_gpu))

namespace {

constexpr int64_t kContext = 512;

// A row that is stored, selected and fetched as V3.2's are, and three layers.
const TinyFile& tiny_file() {
  static const TinyFile file(TinyModel{.n_layers = 3, .n_dense_layers = 1, .index_topk = 32});
  return file;
}

// More than 32 heads, and selections of several blocks of rows.
const TinyFile& wide_file() {
  TinyModel shape;
  shape.n_layers = 3, shape.n_dense_layers = 1, shape.n_heads = 40, shape.index_topk = 150;
  static const TinyFile file(shape);
  return file;
}

EngineOptions options_of(int64_t n_guesses, std::optional<int64_t> topk_buffer, int64_t max_seqs = 1) {
  EngineOptions options;
  options.backend = "cuda";
  options.context = kContext, options.chunk = 128, options.max_seqs = max_seqs;
  options.pool = max_seqs * kContext;
  options.topk_buffer = topk_buffer, options.n_guesses = n_guesses;
  return options;
}

struct Company {
  size_t n_seqs = 1, n_tokens = 60;
  std::optional<int64_t> topk_buffer = {};  // nothing: all rows are resident
  KvType kv_type = KvType::fp8;
};

// The sequences go along in common steps. Returns the most tokens of a step.
int64_t check_company(const GgufFile& file, const Company& company) {
  const auto n_seqs = static_cast<int64_t>(company.n_seqs);
  EngineOptions options = options_of(0, company.topk_buffer),
                drafting = options_of(3, company.topk_buffer, n_seqs);
  options.kv_type = drafting.kv_type = company.kv_type;
  std::vector<std::vector<int32_t>> prompts;
  std::vector<Truth> truths;
  {
    Engine alone(file, options);
    for (int64_t s = 0; s < n_seqs; ++s) {
      prompts.push_back(random_tokens(340 - s * 300 / n_seqs, static_cast<uint64_t>(s) + 1));
      truths.push_back(truth_of(alone, prompts.back(), company.n_tokens));
    }
  }
  Engine engine(file, drafting);
  BOOST_REQUIRE(engine.args().n_draft_layers == 1);
  DraftWalks walks;
  for (size_t s = 0; s < company.n_seqs; ++s)
    walks.push_back(std::make_unique<DraftWalk>(engine, prompts[s], truths[s]));
  std::minstd_rand random(1);
  const int64_t most_tokens = check_walks(engine, walks, random);
  BOOST_TEST(most_tokens > n_seqs);
  if (company.topk_buffer) BOOST_TEST(engine.forward().buffer_tally().n_misses > 0);
  return most_tokens;
}

const Tokenizer& tiny_tokenizer() {
  static const GgufFile file(tiny_file().path);
  static const std::unique_ptr<Tokenizer> tokenizer = Tokenizer::make(load_vocabulary(file));
  return *tokenizer;
}

// Greedy and sampled, without thinking, so that every token of an answer is drawn.
std::vector<Request> tiny_requests() {
  std::vector<Request> requests;
  for (size_t i = 0; i < 24; ++i) {
    GenerationOptions options;
    options.thinking = false;
    options.sampling.temperature = i % 3 == 0 ? 0 : i % 3 == 1 ? 0.7f : 1;
    options.sampling.seed = i;
    options.n_top_logprobs = static_cast<int64_t>(i % 4);
    options.max_tokens = 20 + static_cast<int64_t>(i) * 5;
    requests.push_back(
        {nullptr, &tiny_tokenizer(), random_tokens(1 + static_cast<int64_t>(i) * 9, i), options});
  }
  return requests;
}

struct Counts {
  int64_t n_guessed = 0, n_accepted = 0;
};
Counts counts_of(const HeardAnswers& answers) {
  Counts counts;
  for (const HeardAnswer& answer : answers)
    counts.n_guessed += answer.result.n_guessed, counts.n_accepted += answer.result.n_accepted;
  return counts;
}

// Half of the guesses become the tokens that the answers have; the block's own are hardly ever right.
Loop::Guesser half_right(const std::vector<Request>& requests, const HeardAnswers& alone) {
  return [&requests, &alone, rng = Rng(7)](const Sequence& sequence, int64_t nth, int32_t guessed) mutable {
    const auto i = static_cast<size_t>(sequence.number);
    const size_t at =
        sequence.cached().tokens().size() + static_cast<size_t>(nth) + 1 - requests[i].prompt.size();
    const std::vector<TokenRecord>& drawn = alone[i].result.logprobs;
    return at < drawn.size() && rng.next() % 2 ? drawn[at].chosen.id : guessed;
  };
}

}  // namespace

// One sequence, whose rows resolve() fetches; three, with up to twelve tokens; resident and with buffers that
// have room for three guesses, two and one.
BOOST_AUTO_TEST_CASE(verified_tokens_have_the_bits_that_they_have_alone) {
  const GgufFile tiny(tiny_file().path), wide(wide_file().path);
  int n_cases = 0;
  for (const size_t n_seqs : {size_t{1}, size_t{3}})
    for (const KvType kv_type : {KvType::fp8, KvType::bf16, KvType::f32}) {
      for (const std::optional<int64_t> topk_buffer :
           {std::optional<int64_t>(), std::optional<int64_t>(191), std::optional<int64_t>(127)})
        if (!is_left_out(n_cases, 9)) check_company(tiny, {n_seqs, 60, topk_buffer, kv_type});
      for (const std::optional<int64_t> topk_buffer : {std::optional<int64_t>(), std::optional<int64_t>(319)})
        if (!is_left_out(n_cases, 9)) check_company(wide, {n_seqs, 60, topk_buffer, kv_type});
    }
}

// So many tokens that a step's rows are fetched in two slices, which may divide a sequence's tokens.
BOOST_AUTO_TEST_CASE(a_large_step_has_them_too) {
  const GgufFile file(tiny_file().path);
  const int64_t most_tokens = check_company(file, {30, has_argument("brief") ? 6u : 40u, 191});
  BOOST_TEST(fetch_parts(most_tokens) == 2);
}

BOOST_AUTO_TEST_CASE(answers_of_the_tiny_model_are_those_without_guesses) {
  const GgufFile file(tiny_file().path);
  const std::vector<Request> requests = tiny_requests();
  Engine without(file, options_of(0, {}));
  const HeardAnswers alone = answers_alone(without, requests);
  for (const int64_t n_guesses : {1, 2, 3})
    for (const int64_t max_seqs : {1, 5})
      for (const std::optional<int64_t> topk_buffer :
           {std::optional<int64_t>(), std::optional<int64_t>(150)}) {
        Engine engine(file, options_of(n_guesses, topk_buffer, max_seqs));
        engine.loop().set_guesser(half_right(requests, alone));
        const HeardAnswers answers = answers_together(engine, requests);
        check_same(answers, alone);
        const Counts counts = counts_of(answers);
        BOOST_TEST((0 < counts.n_accepted && counts.n_accepted < counts.n_guessed));
      }
}

BOOST_AUTO_TEST_CASE(the_demos_tokens_have_the_bits_that_they_have_alone) {
  for (const std::optional<int64_t> topk_buffer :
       {std::optional<int64_t>(), std::optional<int64_t>(kTwiceTopk)}) {
    EngineOptions options = options_of_demo("cuda", topk_buffer ? *topk_buffer : kEveryRow);
    options.context = 2048;
    Engine alone(demo_file(), options);
    options.n_guesses = 3;
    Engine engine(demo_file(), options);
    BOOST_REQUIRE(engine.args().n_draft_layers == 1);
    const std::vector<int32_t> prompt = random_tokens(1000, 1);
    const Truth truth = truth_of(alone, prompt, 200);
    DraftWalks walks;
    walks.push_back(std::make_unique<DraftWalk>(engine, prompt, truth));
    std::minstd_rand random(1);
    BOOST_TEST(check_walks(engine, walks, random) > 1);
  }
}

// Prompts of every kind, with schemas and without, greedy and sampled; with the block's own guesses.
BOOST_AUTO_TEST_CASE(answers_of_the_demo_are_those_without_guesses) {
  const std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(demo_file());
  const std::vector<Request> requests =
      constrained_requests(*tokenizer, kConstrainedLines, has_argument("brief") ? 40 : 5);
  const auto options = [](int64_t n_guesses, int64_t max_seqs, int64_t topk_buffer) {
    EngineOptions made = options_of_demo("cuda", topk_buffer);
    made.context = kContext, made.chunk = 64, made.max_seqs = max_seqs, made.pool = max_seqs * kContext;
    made.n_guesses = n_guesses;
    return made;
  };
  Engine without(demo_file(), options(0, 1, kEveryRow));
  const HeardAnswers alone = answers_alone(without, requests);
  for (const int64_t n_guesses : {1, 2, 3})
    for (const int64_t max_seqs : {1, 8})
      for (const int64_t topk_buffer : {kEveryRow, kTwiceTopk}) {
        Engine engine(demo_file(), options(n_guesses, max_seqs, topk_buffer));
        const HeardAnswers answers = answers_together(engine, requests);
        check_same(answers, alone);
        const Counts counts = counts_of(answers);
        std::printf("%lld guesses, batch of %lld, buffer of %lld: %lld of %lld right\n",
                    static_cast<long long>(n_guesses), static_cast<long long>(max_seqs),
                    static_cast<long long>(topk_buffer == kEveryRow ? 0 : topk_buffer),
                    static_cast<long long>(counts.n_accepted), static_cast<long long>(counts.n_guessed));
        BOOST_TEST((0 < counts.n_accepted && counts.n_accepted < counts.n_guessed));
      }
}

BOOST_AUTO_TEST_CASE(answers_about_passages_are_those_without_guesses) {
  std::vector<AskedPassage> passages;
  for (const char* length : {"1k", "4k"}) passages.push_back(eval_passages(length, 1).front());
  const Answers without = answers_of(passages, options_of_demo("cuda"));
  for (const int64_t n_guesses : {1, 2, 3})
    for (const int64_t topk_buffer : {kEveryRow, kTwiceTopk}) {
      EngineOptions options = options_of_demo("cuda", topk_buffer);
      options.n_guesses = n_guesses;
      check_same(answers_of(passages, options), without);
    }
}

BOOST_AUTO_TEST_SUITE_END()
