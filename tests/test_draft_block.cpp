// The block for drafts against another implementation (tests/golden/README.md): the logits of its first,
// second and third guess. And that they depend on their own sequence alone: bit for bit the same for any
// chunks, in any company, and behind steps that verified guesses, right ones and wrong ones.
#include <algorithm>
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gguf/random_weights.h"
#include "tests/support/draft_walks.h"
#include "tests/support/golden.h"
#include "tests/support/sanitized.h"
#include "tests/support/tiny_file.h"
#include "tests/support/tiny_sequence.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(draft_block)

namespace {

const char* const kNames[] = {"shared", "own"};

EngineOptions options_for(int64_t chunk, KvType kv_type = KvType::fp8) {
  EngineOptions options;
  options.kv_type = kv_type, options.chunk = chunk, options.n_guesses = kMostGuesses;
  options.n_threads = 1, options.context = 128;
  return options;
}

// [kMostGuesses, vocab_size] the logits of the guesses behind what the sequence holds. `tokens` begins with
// its next token; the others stand in for the first guesses.
std::vector<float> guess_logits(ByHand& sequence, std::span<const int32_t> tokens) {
  Engine& engine = sequence.engine();
  engine.cache().reserve(sequence.cached(), sequence.cached().n_tokens() + kMostGuesses);
  std::vector<float> all;
  for (int64_t nth = 0; nth < kMostGuesses; ++nth) {
    engine.forward().guess({&sequence.cached()}, {tokens[static_cast<size_t>(nth)]}, nth);
    const std::vector<float> row = engine.forward().logits();
    all.insert(all.end(), row.begin(), row.end());
  }
  return all;
}

struct Case {
  Golden golden;
  GgufFile file;
  std::span<const int32_t> tokens = golden.ints("tokens"), positions = golden.ints("positions");
  explicit Case(const std::string& name)
      : golden("tests/golden/draft_" + name + ".bin"), file("tests/golden/draft_" + name + ".gguf") {}

  // The guesses behind each position that has them, where each token is a decode step.
  std::vector<std::vector<float>> decoded(KvType kv_type) const {
    Engine engine(file, options_for(64, kv_type));
    ByHand sequence(engine);
    std::vector<std::vector<float>> all;
    for (size_t t = 0; t + kMostGuesses < tokens.size(); ++t) {
      sequence.step(tokens[t]);
      all.push_back(guess_logits(sequence, tokens.subspan(t + 1)));
    }
    return all;
  }

  // The same behind each position whose logits are kept, where a prompt ends there.
  std::vector<std::vector<float>> prefilled(KvType kv_type, int64_t chunk) const {
    Engine engine(file, options_for(chunk, kv_type));
    std::vector<std::vector<float>> all;
    for (const int32_t t : positions) {
      ByHand sequence(engine);
      sequence.all_logits(tokens.first(static_cast<size_t>(t) + 1));
      all.push_back(guess_logits(sequence, tokens.subspan(static_cast<size_t>(t) + 1)));
    }
    return all;
  }

  // The rows and keys of a prompt, the block's among them, and the logits of the guesses behind it.
  std::vector<uint8_t> prompt_bits(int64_t chunk) const {
    Engine engine(file, options_for(chunk));
    ByHand sequence(engine);
    sequence.all_logits(tokens.first(90));
    std::vector<uint8_t> bytes = remembered(engine, sequence);
    const std::vector<float> logits = guess_logits(sequence, tokens.subspan(90));
    const auto* from = reinterpret_cast<const uint8_t*>(logits.data());
    bytes.insert(bytes.end(), from, from + logits.size() * sizeof(float));
    return bytes;
  }

  std::vector<std::vector<float>> kept(const std::vector<std::vector<float>>& all) const {
    std::vector<std::vector<float>> some;
    for (const int32_t t : positions) some.push_back(all[static_cast<size_t>(t)]);
    return some;
  }
};

// The largest difference of each row [vocab_size] from the golden one, relative to the largest golden logit.
std::vector<float> differences(const std::vector<std::vector<float>>& ours, const GoldenRecord& golden) {
  const auto width = static_cast<size_t>(golden.shape[2]);
  float largest = 0;
  for (const float value : golden.values) largest = std::max(largest, std::fabs(value));
  std::vector<float> all;
  const float* expected = golden.values.data();
  for (const std::vector<float>& rows : ours)
    for (size_t i = 0; i < rows.size(); ++i, ++expected) {
      if (i % width == 0) all.push_back(0);
      const float difference = std::fabs(rows[i] - *expected) / largest;
      all.back() = std::max(all.back(), std::isfinite(difference) ? difference : INFINITY);
    }
  BOOST_REQUIRE(expected == golden.values.data() + golden.values.size());
  return all;
}

float worst(const std::vector<float>& values) { return *std::ranges::max_element(values); }

float median(std::vector<float> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::ranges::nth_element(values, middle);
  return *middle;
}

// How many of the guesses are not the golden ones.
int64_t n_others(const std::vector<std::vector<float>>& logits, std::span<const int32_t> golden) {
  int64_t n = 0;
  for (size_t t = 0; t < logits.size(); ++t)
    for (size_t nth = 0; nth < kMostGuesses; ++nth) {
      const auto width = std::ssize(logits[t]) / kMostGuesses;
      const auto row = logits[t].begin() + static_cast<int64_t>(nth) * width;
      n += std::max_element(row, row + width) - row != golden[t * kMostGuesses + nth];
    }
  return n;
}

// Sequences that guess and verify in common steps, each a random number of guesses; some of the tokens that
// they verify are right. The guesses' logits are compared with those that each sequence gets alone.
class GuessingCompany {
 public:
  GuessingCompany(const GgufFile& file, std::optional<int64_t> topk_buffer) {
    EngineOptions options;
    options.chunk = 16, options.n_threads = 1, options.n_guesses = kMostGuesses;
    options.context = 256, options.max_seqs = kSequences, options.pool = 256 * kSequences;
    Engine alone(file, options);
    for (size_t i = 0; i < kSequences; ++i) {
      lives_.push_back({random_tokens(kTokens + kMostGuesses, i), 20 + 25 * static_cast<int64_t>(i)});
      find_truth(alone, lives_.back());
    }
    options.topk_buffer = topk_buffer;
    engine_ = std::make_unique<Engine>(file, options);
    width_ = static_cast<size_t>(engine_->args().vocab_size);
  }

  void run(int64_t n_steps) {
    for (int64_t i = 0; i < n_steps; ++i) {
      std::vector<Life*> who;
      for (Life& life : lives_)
        if (begin_or_end(life) && rng_.next() % 4 != 0) who.push_back(&life);
      if (who.empty()) continue;
      guess(who);
      verify(who);
    }
    BOOST_TEST((n_guesses_ > n_steps && n_accepted_ > n_steps / 4 && n_accepted_ < n_guesses_));
    BOOST_TEST(n_different_ == 0, n_different_ << " of " << n_guesses_ << " rows of logits");
  }

 private:
  static constexpr size_t kSequences = 4;
  static constexpr int64_t kTokens = 180;

  struct Life {
    std::vector<int32_t> tokens;  // [kTokens + kMostGuesses]
    int64_t n_prompt = 0;
    std::vector<std::vector<float>> guesses = {};  // alone; from the prompt's last token on
    std::unique_ptr<ByHand> sequence = {};
    int64_t n_guesses = 0;  // of the current step
    int64_t n_held() const { return sequence->cached().n_tokens(); }
    int32_t token(int64_t i) const { return tokens[static_cast<size_t>(i)]; }
  };

  static void find_truth(Engine& engine, Life& life) {
    ByHand sequence(engine);
    const std::span<const int32_t> tokens = life.tokens;
    sequence.all_logits(tokens.first(static_cast<size_t>(life.n_prompt) - 1));
    for (auto i = static_cast<size_t>(life.n_prompt) - 1; i < kTokens; ++i) {
      sequence.step(tokens[i]);
      life.guesses.push_back(guess_logits(sequence, tokens.subspan(i + 1)));
    }
  }

  // False: it takes no part in the step, because it has just ended.
  bool begin_or_end(Life& life) {
    if (!life.sequence) {
      life.sequence = std::make_unique<ByHand>(*engine_);
      life.sequence->all_logits(std::span(life.tokens).first(static_cast<size_t>(life.n_prompt)));
    } else if (life.n_held() + kMostGuesses >= kTokens) {
      life.sequence.reset();
    }
    return life.sequence != nullptr;
  }

  void guess(const std::vector<Life*>& who) {
    for (Life* life : who) {
      engine_->cache().reserve(life->sequence->cached(), life->n_held() + 1 + kMostGuesses);
      const int64_t n_most = guesses_with_room(life->sequence->cached(), engine_->args().index_topk);
      life->n_guesses = static_cast<int64_t>(rng_.next() % static_cast<uint64_t>(n_most + 1));
    }
    for (int64_t nth = 0; nth < kMostGuesses; ++nth) {
      std::vector<CachedSequence*> sequences;
      std::vector<int32_t> tokens;
      std::vector<const float*> expected;
      for (const Life* life : who) {
        if (nth >= life->n_guesses) continue;
        sequences.push_back(&life->sequence->cached());
        tokens.push_back(life->token(life->n_held() + nth));
        expected.push_back(life->guesses[static_cast<size_t>(life->n_held() - life->n_prompt)].data() +
                           static_cast<size_t>(nth) * width_);
      }
      if (sequences.empty()) return;
      engine_->forward().guess(sequences, tokens, nth);
      compare(expected);
    }
  }

  // Of each sequence's guesses a random number is right, and what follows is cut off.
  void verify(const std::vector<Life*>& who) {
    Step step{Role::decode, {}, {}};
    std::vector<Stage::Cut> cuts;
    for (Life* life : who) {
      CachedSequence& cached = life->sequence->cached();
      const auto n_right = static_cast<int64_t>(rng_.next() % static_cast<uint64_t>(life->n_guesses + 1));
      for (int64_t i = 0; i <= life->n_guesses; ++i) {
        const int32_t right = life->token(life->n_held() + i);
        step.sequences.push_back(&cached);
        step.tokens.push_back(i <= n_right ? right : (right + 1) % 250);
      }
      n_guesses_ += life->n_guesses, n_accepted_ += n_right;
      if (n_right < life->n_guesses) cuts.push_back({&cached, life->n_held() + 1 + n_right});
    }
    engine_->forward().run(step);
    engine_->forward().cut(cuts);
  }

  void compare(const std::vector<const float*>& expected) {
    const std::vector<float> logits = engine_->forward().logits();
    BOOST_REQUIRE(logits.size() == expected.size() * width_);
    for (size_t i = 0; i < expected.size(); ++i)
      n_different_ += std::memcmp(logits.data() + i * width_, expected[i], width_ * sizeof(float)) != 0;
  }

  std::unique_ptr<Engine> engine_;
  std::vector<Life> lives_;
  Rng rng_{5};
  size_t width_ = 0;
  int64_t n_guesses_ = 0, n_accepted_ = 0, n_different_ = 0;
};

}  // namespace

BOOST_DATA_TEST_CASE(unrounded_guesses_agree_in_prefill_and_in_decode, boost::unit_test::data::make(kNames),
                     name) {
  const Case test(name);
  const GoldenRecord& golden = test.golden.record("logits");
  const std::vector<std::vector<float>> decoded = test.decoded(KvType::f32);
  BOOST_TEST(worst(differences(test.kept(decoded), golden)) <= 2e-4f);
  BOOST_TEST(n_others(decoded, test.golden.ints("argmax")) == 0);
  for (const int64_t chunk : {16, 128})
    BOOST_TEST(worst(differences(test.prefilled(KvType::f32, chunk), golden)) <= 2e-4f);
}

BOOST_DATA_TEST_CASE(rounded_guesses_agree_with_a_reference_that_rounds_alike,
                     boost::unit_test::data::make(kNames), name) {
  const Case test(name);
  const std::span<const int32_t> arg_max = test.golden.ints("argmax.fp8");
  const std::vector<std::vector<float>> decoded = test.decoded(KvType::fp8);
  BOOST_TEST(median(differences(test.kept(decoded), test.golden.record("logits.fp8"))) <= 1e-3f);
  BOOST_TEST(50 * n_others(decoded, arg_max) <= std::ssize(arg_max));
}

BOOST_DATA_TEST_CASE(guesses_do_not_depend_on_chunks, boost::unit_test::data::make(kNames), name) {
  const Case test(name);
  const std::vector<uint8_t> whole = test.prompt_bits(128);
  for (const int64_t chunk : {1, 7, 64})
    BOOST_TEST((test.prompt_bits(chunk) == whole), "chunks of " << chunk);
}

BOOST_AUTO_TEST_CASE(guesses_do_not_depend_on_company_or_on_guesses_before) {
  TinyModel shape = narrow_shape();
  shape.index_topk = 20;
  const TinyFile model(shape);
  const GgufFile file(model.path);
  for (const std::optional<int64_t> topk_buffer :
       {std::optional<int64_t>{}, std::optional<int64_t>{64}, std::optional<int64_t>{192}})
    GuessingCompany(file, topk_buffer).run(kIsSanitized ? 60 : 300);
}

BOOST_AUTO_TEST_SUITE_END()
