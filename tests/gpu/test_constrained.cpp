// Answers under constraints on the GPU: each of a batch's lines is a document or told as cut, and the same
// alone and in company; and what masks cost there.
#include <chrono>
#include <cstdio>

#include <nlohmann/json.hpp>

#include "base/stopwatch.h"
#include "cli/warm/model.h"
#include "tests/gpu/gpu_test.h"
#include "tests/support/constrained_answers.h"
#include "tests/support/constrained_vocabulary.h"
#include "tests/support/demo_answers.h"
#include "tests/support/golden_schemas.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(gpu_constrained, *boost::unit_test::precondition(needs_gpu))

namespace {

using Clock = std::chrono::steady_clock;

EngineOptions options_of(int64_t max_seqs, int64_t topk_buffer = kEveryRow) {
  EngineOptions options = options_of_demo("cuda", topk_buffer);
  options.context = 512, options.chunk = 64;
  options.max_seqs = max_seqs, options.pool = 512 * max_seqs;
  return options;
}

const Tokenizer& tokenizer() {
  static const std::unique_ptr<Tokenizer> loaded = load_tokenizer(demo_file());
  return *loaded;
}

const std::vector<Request>& lines() {
  static const std::vector<Request> requests = constrained_requests(tokenizer(), kConstrainedLines);
  return requests;
}

// Those without a constraint by an engine that never had one.
const HeardAnswers& answers() {
  static const HeardAnswers alone = [] {
    Engine with(demo_file(), options_of(1)), without(demo_file(), options_of(1));
    HeardAnswers all;
    for (const Request& request : lines())
      all.push_back(answers_alone(request.options.constraint.empty() ? without : with, {request}).front());
    return all;
  }();
  return alone;
}

// --- Timing

constexpr size_t kTogether = 64;
constexpr int64_t kSteps = 100;

// Lists that do not end within the steps, each of items of another schema.
std::vector<std::string> long_lists() {
  std::vector<std::string> constraints;
  for (const GoldenSchema* schema : supported_schemas()) {
    if (schema->constraint.find("$ref") != std::string::npos) continue;
    const auto item = nlohmann::ordered_json::parse(schema->constraint)["schema"];
    constraints.push_back(
        nlohmann::ordered_json{{"schema", {{"type", "array"}, {"items", item}, {"minItems", 1000}}}}.dump());
  }
  const size_t every = constraints.size() / kTogether;
  for (size_t i = 0; i < kTogether; ++i) constraints[i] = constraints[i * every];
  constraints.resize(kTogether);
  return constraints;
}

// Without a constraint at a temperature that draws the end of an answer once in a vocabulary.
std::vector<Request> long_requests(const std::vector<std::string>& constraints, int64_t n_top) {
  std::vector<Request> requests;
  for (size_t i = 0; i < kTogether; ++i) {
    Request request = constrained_request(tokenizer(), 0);
    GenerationOptions& options = request.options;
    options.max_tokens = -1, options.n_top_logprobs = n_top, options.sampling.seed = i;
    options.constraint = constraints.empty() ? "" : constraints[i];
    options.sampling.temperature = constraints.empty() ? 100 : 1;
    requests.push_back(std::move(request));
  }
  return requests;
}

// Answers that have not ended yet, after kSteps steps in which all of them decoded.
struct LongRun {
  HeardAnswers answers = HeardAnswers(kTogether);
  double seconds = 0;  // of a step, the median
  size_t n_ended = 0;
};

LongRun run_long(Engine& engine, const std::vector<Request>& requests) {
  LongRun run;
  Loop& loop = engine.loop();
  std::vector<int64_t> numbers;
  for (size_t i = 0; i < kTogether; ++i) numbers.push_back(loop.add(requests[i], run.answers[i]));
  for (size_t turn = 0; turn < 3 * kTogether; ++turn) loop.advance();  // every second one reads a prompt
  std::vector<double> seconds;
  for (int64_t step = 0; step < kSteps; ++step) {
    const auto begin = Clock::now();
    loop.advance();
    seconds.push_back(seconds_since(begin));
  }
  std::ranges::nth_element(seconds, seconds.begin() + kSteps / 2);
  run.seconds = seconds[kSteps / 2];
  for (size_t i = 0; i < kTogether; ++i) run.n_ended += loop.is_done(numbers[i]), loop.drop(numbers[i]);
  return run;
}

// Of the masks of a step of all, by what the answers were made of: the mean, and the longest step.
std::pair<double, double> time_masks(const std::vector<std::string>& constraints,
                                     const HeardAnswers& answered) {
  Constraints compiled(1);
  std::vector<std::unique_ptr<Constraint>> running;
  for (const std::string& text : constraints) {
    const std::shared_ptr<Compiled> asked = compiled.ask(text);
    while (!asked->is_done) compiled.wait();
    running.push_back(compiled.begin(asked, tokenizer()));
  }
  std::vector<uint32_t> words((static_cast<size_t>(tokenizer().n_vocab()) + 31) / 32);
  size_t n_steps = SIZE_MAX;
  for (const HeardAnswer& answer : answered) n_steps = std::min(n_steps, answer.result.logprobs.size());
  double sum = 0, most = 0;
  for (size_t step = 0; step < n_steps; ++step) {
    const auto begin = Clock::now();
    for (size_t i = 0; i < running.size(); ++i) {
      running[i]->write_mask(words);
      running[i]->push(answered[i].result.logprobs[step].chosen.id);
    }
    const double seconds = seconds_since(begin);
    sum += seconds, most = std::max(most, seconds);
  }
  return {sum / static_cast<double>(n_steps), most};
}

}  // namespace

BOOST_AUTO_TEST_CASE(each_is_a_document_or_told_as_cut) {
  for (size_t i = 0; i < kConstrainedLines; ++i)
    if (!lines()[i].options.constraint.empty())
      BOOST_TEST_CONTEXT(constrained_line(i)) check_document(lines()[i], answers()[i]);
}

BOOST_AUTO_TEST_CASE(logprobs_are_those_without_a_mask) {
  Engine engine(demo_file(), options_of(1));
  for (size_t i = 9; i < kConstrainedLines; i += 11)
    if (!lines()[i].options.thinking)
      BOOST_TEST_CONTEXT(constrained_line(i)) check_logprobs(engine, lines()[i], answers()[i]);
}

BOOST_AUTO_TEST_CASE(they_are_the_same_in_company) {
  Engine engine(demo_file(), options_of(64));
  check_same(answers_together(engine, lines()), answers());
}

BOOST_AUTO_TEST_CASE(they_are_the_same_with_the_least_buffers_and_another_chunk) {
  for (const int64_t topk_buffer : {read_model_args(demo_file()).index_topk + 1, kTwiceTopk}) {
    EngineOptions options = options_of(16, topk_buffer);
    options.chunk = 13;
    Engine engine(demo_file(), options);
    check_same(answers_together(engine, lines()), answers());
  }
}

BOOST_AUTO_TEST_CASE(timing, *boost::unit_test::label("timing")) {
  const std::vector<std::string> constraints = long_lists();
  EngineOptions options = options_of(kTogether);
  Engine engine(demo_file(), options);
  run_long(engine, long_requests({}, -1));  // the first steps are recorded
  const LongRun free = run_long(engine, long_requests({}, -1)),
                bound = run_long(engine, long_requests(constraints, -1));
  BOOST_TEST(bound.n_ended == 0u);
  std::vector<Request> recorded = long_requests(constraints, 0);
  for (Request& request : recorded) request.options.max_tokens = kSteps;
  const auto [mean, most] = time_masks(constraints, answers_together(engine, recorded));
  std::printf(
      "%zu sequences of the demo model, a step: %.0f us without constraints (%zu of them had ended), %.0f us "
      "with %zu schemas; their masks take the host %.0f us, at most %.0f us\n",
      kTogether, 1e6 * free.seconds, free.n_ended, 1e6 * bound.seconds, kTogether, 1e6 * mean, 1e6 * most);
}

BOOST_AUTO_TEST_SUITE_END()
