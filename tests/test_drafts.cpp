// Answers with drafts are the answers without: the same text, tokens and log-probabilities, byte for byte,
// whatever is guessed. 300 random requests of every kind are answered alone without a block, and then with 1
// to 3 guesses in each step, in batches of 1 to 8, with buffers from the least on, in pools that are too
// small for all of them, as resumed talks, on several devices. Guesses are the block's own, or forced: all
// right, all wrong, random.
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/loop.h"
#include "gguf/random_weights.h"
#include "tests/support/generate_by_hand.h"
#include "tests/support/island_backend.h"
#include "tests/support/sanitized.h"
#include "tests/support/tiny_file.h"
#include "tests/support/tiny_sequence.h"
#include "tests/support/token_records.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(drafts)

namespace {

// The first four of each kFillEach requests have no limit: together they fill small pools.
constexpr size_t kRequests = kIsSanitized ? 100 : 300, kFillEach = kIsSanitized ? 10 : 30;
constexpr int64_t kContext = 192;

const TinyFile& tiny_file() {
  TinyModel shape = narrow_shape();
  shape.index_topk = 20, shape.n_heads = 2, shape.moe_inter_dim = 128;  // that a team of two divides
  static const TinyFile file(shape);
  return file;
}

// An answer as its listener hears it. A request that begins anew tells everything once more.
struct Ear : Listener {
  std::string reasoning, text;
  int64_t n_before_stop = -1;
  void on_prefill(int64_t, int64_t, int64_t) override { reasoning.clear(), text.clear(); }
  void on_reasoning(const std::string& piece) override { reasoning += piece; }
  void on_answer(const std::string& piece) override { text += piece; }
  bool is_interrupted() override { return n_before_stop >= 0 && n_before_stop-- == 0; }
};

struct Asked {
  Request request;
  int64_t n_before_stop = -1;  // of its listener; -1: it is not cancelled
  // Its answer alone and without drafts, and the tokens of prompt and answer.
  GenerationResult result = {};
  std::string reasoning = {}, text = {};
  std::vector<int32_t> tokens = {};
};

// Requests, with their answers alone.
class Asking {
 public:
  Asking() {
    for (size_t i = 0; i < kRequests; ++i) {
      Asked one{{nullptr, tokenizer_.get(), prompt(i), options(i)}};
      one.request.talk = goes_on_ ? all_.back().request.talk : static_cast<int64_t>(i) + 1;
      answer(one);
      if (one_in(3) && !one.text.empty() && one.request.options.constraint.empty()) {
        const size_t begin = rng_.next() % one.text.size();
        one.request.options.stops = {one.text.substr(begin, 1 + rng_.next() % 5), "never"};
        answer(one);
      }
      if (one_in(10)) one.n_before_stop = below(40);
      all_.push_back(std::move(one));
    }
  }
  const std::vector<Asked>& all() const { return all_; }

 private:
  bool one_in(uint64_t n) { return rng_.next() % n == 0; }
  int64_t below(uint64_t n) { return static_cast<int64_t>(rng_.next() % n); }

  // Every fourth goes on with the talk of the one before.
  std::vector<int32_t> prompt(size_t i) {
    std::vector<int32_t> tokens = random_tokens(1 + below(one_in(2) ? 10 : 120), i);
    goes_on_ = i > 0 && one_in(4) && all_.back().tokens.size() < 130;
    if (goes_on_) tokens.resize(std::min<size_t>(tokens.size(), 20));
    if (goes_on_) tokens.insert(tokens.begin(), all_.back().tokens.begin(), all_.back().tokens.end());
    return tokens;
  }

  GenerationOptions options(size_t i) {
    GenerationOptions options;
    options.sampling.temperature = one_in(3) ? 0 : one_in(2) ? 1.0f : 0.7f;
    options.sampling.top_k = one_in(3) ? 5 : 0;
    options.sampling.top_p = one_in(2) ? 1.0f : 0.9f;
    options.sampling.min_p = one_in(5) ? 0.1f : 0;
    options.sampling.seed = rng_.next();
    options.n_top_logprobs = below(5) - 1;
    if (i % kFillEach < 4) return options;
    options.max_tokens = below(30);
    if (one_in(6)) options.max_answer = below(30);
    options.thinking = one_in(2);
    if (one_in(3)) options.max_thinking = below(12);
    if (one_in(5)) options.constraint = R"({"schema": {"type": "array", "items": {"type": "integer"}}})";
    if (one_in(8)) options.constraint = R"({"schema": {"enum": ["yes", "no", 17, null, {"a": [true]}]}})";
    return options;
  }

  void answer(Asked& asked) {
    ByHand sequence(engine_);
    Ear ear;
    asked.result = generate(sequence, *tokenizer_, asked.request.prompt, asked.request.options, ear);
    asked.reasoning = ear.reasoning, asked.text = ear.text;
    asked.tokens = sequence.tokens();
    if (!asked.result.logprobs.empty()) asked.tokens.push_back(asked.result.logprobs.back().chosen.id);
  }

  static EngineOptions options_alone() {
    EngineOptions options;
    options.context = kContext, options.chunk = 64, options.n_threads = 1;
    return options;
  }

  GgufFile file_{tiny_file().path};
  std::unique_ptr<Tokenizer> tokenizer_ = Tokenizer::make(load_vocabulary(file_));
  Engine engine_{file_, options_alone()};
  Rng rng_{11};
  std::vector<Asked> all_;
  bool goes_on_ = false;
};

const std::vector<Asked>& asked() {
  static const Asking asking;
  return asking.all();
}

enum class Guesses { are_the_blocks, are_right, are_wrong, are_random };

struct Setup {
  int64_t n_guesses = 3;
  Guesses guesses = Guesses::are_the_blocks;
  int64_t batch = 1;
  std::optional<int64_t> topk_buffer = {};  // nothing: all rows are resident
  bool has_cache = false;                   // sequences share pages
  // Of the pools; nothing: enough. Where they are few, sequences begin anew or shrink.
  std::optional<int64_t> n_tokens = {}, n_slots = {};
  int n_devices = 1;  // with layers of their own there are no guesses while several sequences decode
  Split split = Split::layers;
};

// Answers all requests with drafts, and compares.
class Drafting {
 public:
  explicit Drafting(const Setup& setup) : setup_(setup), engine_(file_, options()) {
    engine_.loop().set_guesser([this](const Sequence& sequence, int64_t nth, int32_t guessed) {
      return forced(sequence, nth, guessed);
    });
  }

  // One after the other, so that a talk goes on with the sequence that it had.
  void answer_in_turn() {
    for (const Asked& one : asked()) {
      Ear ear;
      ear.n_before_stop = one.n_before_stop;
      check(one, ear, generate(engine_.loop(), one.request, ear));
    }
    check_counts();
    BOOST_TEST(n_cached_ > 0);
  }

  // Later ones come while earlier ones run.
  void answer_together() {
    Loop& loop = engine_.loop();
    std::vector<Ear> ears(asked().size());
    for (size_t i = 0; i < ears.size(); ++i) {
      ears[i].n_before_stop = asked()[i].n_before_stop;
      BOOST_REQUIRE(loop.add(asked()[i].request, ears[i]) == static_cast<int64_t>(i));
      if (i % 3 == 0) loop.advance();
    }
    while (loop.advance()) {
    }
    for (size_t i = 0; i < ears.size(); ++i) check(asked()[i], ears[i], loop.take(static_cast<int64_t>(i)));
    check_counts();
    BOOST_TEST((loop.n_restarted() > 0) == setup_.n_tokens.has_value());
    BOOST_TEST((loop.n_shrunk() > 0) == setup_.n_slots.has_value());
  }

 private:
  EngineOptions options() const {
    EngineOptions options;
    options.context = kContext, options.chunk = 64, options.n_threads = 1;
    options.n_guesses = setup_.n_guesses, options.max_seqs = setup_.batch;
    options.pool = setup_.n_tokens.value_or(kContext * setup_.batch);
    options.topk_buffer = setup_.topk_buffer, options.slots = setup_.n_slots;
    if (setup_.has_cache) options.cache.emplace();
    if (setup_.n_devices > 1) options.split = setup_.split;
    for (int i = 0; setup_.n_devices > 1 && i < setup_.n_devices; ++i)
      options.backends.push_back(std::make_shared<IslandBackend>()), options.gpus.push_back(i);
    return options;
  }

  // The loop numbers requests in their order. A constraint allows no other guesses than its own.
  int32_t forced(const Sequence& sequence, int64_t nth, int32_t guessed) {
    const Asked& one = asked()[static_cast<size_t>(sequence.number)];
    const auto at = sequence.cached().tokens().size() + static_cast<size_t>(nth) + 1;
    const int32_t right = at < one.tokens.size() ? one.tokens[at] : guessed;
    const auto n_vocab = static_cast<int32_t>(engine_.args().vocab_size);
    if (setup_.guesses == Guesses::are_right) return right;
    if (setup_.guesses == Guesses::are_the_blocks || sequence.has_constraint()) return guessed;
    if (setup_.guesses == Guesses::are_wrong) return (right + 1) % n_vocab;
    return rng_.next() % 2 ? right : static_cast<int32_t>(rng_.next() % static_cast<uint64_t>(n_vocab));
  }

  void check(const Asked& asked, const Ear& ear, const GenerationResult& result) {
    BOOST_TEST_INFO("request " << &asked - &drafts::asked().front());
    n_guessed_ += result.n_guessed, n_accepted_ += result.n_accepted, n_cached_ += result.n_cached_tokens;
    if (asked.n_before_stop >= 0 && result.finish_reason == FinishReason::interrupted) {
      BOOST_TEST((asked.text.starts_with(ear.text) && asked.reasoning.starts_with(ear.reasoning)));
      ++n_interrupted_;
      return;
    }
    const GenerationResult& alone = asked.result;
    const bool is_same = ear.text == asked.text && ear.reasoning == asked.reasoning &&
                         result.completion.content == alone.completion.content &&
                         result.completion.reasoning == alone.completion.reasoning &&
                         result.completion.thinking_closed == alone.completion.thinking_closed &&
                         result.finish_reason == alone.finish_reason &&
                         records_of(result) == records_of(alone) &&
                         result.n_completion_tokens == alone.n_completion_tokens &&
                         result.n_thinking_tokens == alone.n_thinking_tokens;
    BOOST_TEST(is_same);
  }

  void check_counts() const {
    BOOST_TEST(n_interrupted_ > 0);
    BOOST_TEST(engine_.backends().size() == static_cast<size_t>(setup_.n_devices));
    if (setup_.n_devices > 1) return;
    BOOST_TEST(n_guessed_ > std::ssize(asked()));
    BOOST_TEST((n_accepted_ >= 0 && n_accepted_ < n_guessed_));
    if (setup_.guesses == Guesses::are_right) BOOST_TEST(10 * n_accepted_ > 8 * n_guessed_);
    if (setup_.guesses == Guesses::are_random) BOOST_TEST(n_accepted_ > 0);
  }

  Setup setup_;
  GgufFile file_{tiny_file().path};
  Engine engine_;
  Rng rng_{3};
  int64_t n_guessed_ = 0, n_accepted_ = 0, n_cached_ = 0, n_interrupted_ = 0;
};

}  // namespace

// The token that ends an answer is not computed, but a guess of it was right.
BOOST_AUTO_TEST_CASE(a_right_guess_of_the_last_token_counts) {
  const GgufFile file(tiny_file().path);
  const std::unique_ptr<Tokenizer> tokenizer = Tokenizer::make(load_vocabulary(file));
  EngineOptions options;
  options.context = kContext, options.chunk = 64, options.n_threads = 1, options.n_guesses = 3;
  Engine engine(file, options);
  int32_t end = 0;
  while (!tokenizer->is_end_of_generation(end)) ++end;
  const auto drawn = [&](int64_t nth) { return nth == 3 ? end : 7; };  // three tokens and the end
  engine.loop().set_guesser(
      [&](const Sequence& sequence, int64_t nth, int32_t) { return drawn(sequence.n_drawn() + nth); });
  engine.loop().set_drawer(
      [&](const Sequence& sequence, int64_t, int32_t) { return drawn(sequence.n_drawn()); });
  Listener nobody;
  const GenerationResult result = generate(engine.loop(), {nullptr, tokenizer.get(), {1, 2, 3}, {}}, nobody);
  BOOST_TEST(result.n_completion_tokens == 4);
  BOOST_TEST((result.n_guessed > 0 && result.n_accepted == result.n_guessed));
  BOOST_TEST(result.n_held_tokens == 3 + 3);
}

BOOST_AUTO_TEST_CASE(answers_one_after_the_other) {
  Drafting({.n_guesses = 1}).answer_in_turn();
  Drafting({.n_guesses = 3, .guesses = Guesses::are_random, .topk_buffer = 21}).answer_in_turn();
}

BOOST_AUTO_TEST_CASE(answers_of_batches) {
  Drafting({.n_guesses = 2, .batch = 8, .has_cache = true}).answer_together();
  Drafting({.n_guesses = 3, .batch = 5, .topk_buffer = 64}).answer_together();
}

BOOST_AUTO_TEST_CASE(answers_of_batches_with_right_and_with_wrong_guesses) {
  Drafting({.n_guesses = 3, .guesses = Guesses::are_right, .batch = 8, .topk_buffer = 150}).answer_together();
  Drafting({.n_guesses = 2, .guesses = Guesses::are_wrong, .batch = 3}).answer_together();
}

// Sequences begin anew; get smaller buffers.
BOOST_AUTO_TEST_CASE(answers_in_small_pools) {
  Drafting({3, Guesses::are_random, 4, {}, false, kContext}).answer_together();
  Drafting({3, Guesses::are_right, 4, 64, false, kContext}).answer_together();
  Drafting({2, Guesses::are_random, 4, 128, true, {}, 192}).answer_together();
}

// Each device has a group of sequences.
BOOST_AUTO_TEST_CASE(answers_of_batches_on_several_devices) {
  Drafting({.n_guesses = 0, .batch = 8, .has_cache = true, .n_devices = 2}).answer_together();
  Drafting({.n_guesses = 2, .batch = 5, .topk_buffer = 64, .n_devices = 2}).answer_together();
  Drafting({0, Guesses::are_the_blocks, 4, {}, false, kContext, {}, 2}).answer_together();
  Drafting({0, Guesses::are_the_blocks, 4, 64, false, kContext, {}, 2}).answer_together();
}

BOOST_AUTO_TEST_CASE(answers_of_a_team) {
  Drafting({.batch = 2, .has_cache = true, .n_devices = 2, .split = Split::rows}).answer_together();
  Drafting({.n_guesses = 0, .batch = 20, .has_cache = true, .n_devices = 2, .split = Split::rows})
      .answer_together();
  Drafting({.n_guesses = 0, .batch = 20, .topk_buffer = 64, .n_devices = 2, .split = Split::rows})
      .answer_together();
  Drafting({.n_guesses = 2, .batch = 9, .topk_buffer = 64, .n_devices = 2, .split = Split::rows})
      .answer_together();
  Drafting({3, Guesses::are_right, 4, 64, false, kContext, {}, 2, Split::rows}).answer_together();
}

BOOST_AUTO_TEST_SUITE_END()
