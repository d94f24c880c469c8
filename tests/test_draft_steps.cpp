// Steps that verify guesses: each token has the bits that it has alone, whatever was guessed, accepted and
// cut off before.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <random>
#include <vector>

#include "engine/sequence.h"
#include "tests/support/tiny_file.h"
#include "tests/support/tiny_sequence.h"

using namespace dsv32;

namespace {

constexpr int64_t kTopk = 32, kContext = 640;

const std::string& tiny_path() {
  static const TinyFile model(TinyModel{.n_layers = 2, .n_dense_layers = 1, .index_topk = kTopk});
  return model.path;
}

EngineOptions options_for(std::optional<int64_t> topk_buffer, int64_t n_guesses, int64_t max_seqs = 1) {
  EngineOptions options;
  options.context = kContext, options.chunk = 50, options.n_threads = 2;
  options.max_seqs = max_seqs, options.pool = max_seqs * kContext, options.topk_buffer = topk_buffer;
  options.n_guesses = n_guesses;
  return options;
}

using Logits = std::vector<float>;

// The tokens that follow a prompt, and the logits of each: one token a step, without guesses.
struct Truth {
  std::vector<int32_t> tokens;
  std::vector<Logits> logits;
};

Truth truth_of(std::span<const int32_t> prompt, std::optional<int64_t> topk_buffer, size_t n) {
  const GgufFile file(tiny_path());
  Engine engine(file, options_for(topk_buffer, 0));
  ByHand sequence(engine);
  sequence.sync(prompt);
  Truth truth;
  for (size_t i = 0; i < n; ++i) {
    truth.tokens.push_back(sequence.likeliest());
    sequence.step(truth.tokens.back());
    truth.logits.push_back(sequence.logits());
  }
  return truth;
}

// A sequence that goes along its truth by steps that verify guesses, some of which are wrong.
struct Walk {
  const Truth& truth;
  ByHand sequence;
  size_t n_done = 0;
  std::vector<int32_t> guesses = {};
  size_t n_right = 0;

  bool is_done() const { return n_done == truth.tokens.size(); }
  // Makes up to three guesses, of which some are right.
  void make_guesses(std::minstd_rand& random) {
    const auto n_in_page = static_cast<size_t>(kPageTokens - 1 - sequence.cached().n_tokens() % kPageTokens);
    const size_t n = std::min({size_t{random() % 4}, n_in_page, truth.tokens.size() - n_done - 1});
    n_right = n == 0 ? 0 : random() % (n + 1);
    guesses.clear();
    for (size_t i = 0; i < n; ++i)
      guesses.push_back(i < n_right ? truth.tokens[n_done + 1 + i] : static_cast<int32_t>(random() % 90));
    while (n_right < n && guesses[n_right] == truth.tokens[n_done + 1 + n_right]) ++n_right;
  }
};

// Goes along, all sequences together; checks the bits of each row up to the first wrong guess.
void check_walks(Engine& engine, std::vector<std::unique_ptr<Walk>>& walks, std::minstd_rand& random) {
  Forward& forward = engine.forward();
  const auto vocab_size = static_cast<size_t>(engine.args().vocab_size);
  while (!std::ranges::all_of(walks, &Walk::is_done, [](const auto& walk) -> const Walk& { return *walk; })) {
    Step step{Role::decode, {}, {}};
    std::vector<Walk*> walking;
    for (const auto& walk : walks)
      if (!walk->is_done()) walking.push_back(walk.get());
    for (Walk* walk : walking) {
      walk->make_guesses(random);
      CachedSequence& cached = walk->sequence.cached();
      engine.cache().reserve(cached, cached.n_tokens() + 1);
    }
    for (int64_t nth = 0; nth < 3; ++nth) {  // what the block guesses is not used here
      std::vector<CachedSequence*> sequences;
      std::vector<int32_t> tokens;
      for (Walk* walk : walking) {
        if (std::ssize(walk->guesses) <= nth) continue;
        sequences.push_back(&walk->sequence.cached());
        tokens.push_back(nth == 0 ? walk->truth.tokens[walk->n_done]
                                  : walk->guesses[static_cast<size_t>(nth - 1)]);
      }
      if (!sequences.empty()) forward.guess(sequences, tokens, nth);
    }
    for (Walk* walk : walking) {
      step.tokens.push_back(walk->truth.tokens[walk->n_done]);
      step.tokens.insert(step.tokens.end(), walk->guesses.begin(), walk->guesses.end());
      step.sequences.resize(step.tokens.size(), &walk->sequence.cached());
    }
    forward.run(step);
    const Logits logits = forward.logits();
    std::vector<Stage::Cut> cuts;
    size_t row = 0;
    for (Walk* walk : walking) {
      for (size_t i = 0; i <= walk->n_right; ++i) {
        const auto begin = logits.begin() + static_cast<int64_t>((row + i) * vocab_size);
        BOOST_REQUIRE((Logits(begin, begin + static_cast<int64_t>(vocab_size)) ==
                       walk->truth.logits[walk->n_done + i]));
      }
      row += walk->guesses.size() + 1;
      walk->n_done += walk->n_right + 1;
      const int64_t n_wrong = static_cast<int64_t>(walk->guesses.size() - walk->n_right);
      CachedSequence& cached = walk->sequence.cached();
      if (n_wrong > 0) cuts.push_back({&cached, cached.n_tokens() - n_wrong});
    }
    forward.cut(cuts);
  }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(draft_steps)

BOOST_AUTO_TEST_CASE(verified_tokens_have_the_bits_that_they_have_alone) {
  const std::vector<int32_t> prompt = random_tokens(230, 3);
  for (const std::optional<int64_t> topk_buffer : {std::optional<int64_t>{}, std::optional<int64_t>{140}}) {
    const Truth truth = truth_of(prompt, topk_buffer, 120);
    const GgufFile file(tiny_path());
    Engine engine(file, options_for(topk_buffer, 3));
    BOOST_REQUIRE(engine.args().n_draft_layers == 1);
    std::minstd_rand random(1);
    std::vector<std::unique_ptr<Walk>> walks;
    walks.emplace_back(new Walk{truth, ByHand(engine)});
    walks.front()->sequence.sync(prompt);
    check_walks(engine, walks, random);
  }
}

BOOST_AUTO_TEST_CASE(several_sequences_verify_different_numbers_of_guesses_in_one_step) {
  for (const std::optional<int64_t> topk_buffer : {std::optional<int64_t>{}, std::optional<int64_t>{140}}) {
    std::vector<Truth> truths;
    std::vector<std::vector<int32_t>> prompts;
    for (int64_t i = 0; i < 3; ++i) {
      prompts.push_back(random_tokens(60 + i * 130, static_cast<uint64_t>(i) + 5));
      truths.push_back(truth_of(prompts.back(), topk_buffer, 40 + static_cast<size_t>(i) * 10));
    }
    const GgufFile file(tiny_path());
    Engine engine(file, options_for(topk_buffer, 3, 3));
    std::minstd_rand random(2);
    std::vector<std::unique_ptr<Walk>> walks;
    for (size_t i = 0; i < truths.size(); ++i) {
      walks.emplace_back(new Walk{truths[i], ByHand(engine)});
      walks.back()->sequence.sync(prompts[i]);
    }
    check_walks(engine, walks, random);
  }
}

// Rows of tokens that were cut off may lie in the buffer, where the prompt's go on.
BOOST_AUTO_TEST_CASE(a_prompt_goes_on_behind_a_cut) {
  std::vector<int32_t> prompt = random_tokens(230, 8);
  const Truth truth = truth_of(prompt, 140, 30);
  const GgufFile file(tiny_path());
  Engine plain(file, options_for(140, 0)), engine(file, options_for(140, 3));
  ByHand alone(plain);
  std::minstd_rand random(3);
  std::vector<std::unique_ptr<Walk>> walks;
  walks.emplace_back(new Walk{truth, ByHand(engine)});
  ByHand& drafting = walks.front()->sequence;
  alone.sync(prompt), drafting.sync(prompt);
  for (const int32_t token : truth.tokens) alone.step(token);
  check_walks(engine, walks, random);
  // Guesses that are all wrong, then ten more tokens of a prompt in their place.
  CachedSequence& cached = drafting.cached();
  const int64_t n = cached.n_tokens();
  engine.forward().run({Role::decode, {&cached, &cached, &cached}, {7, 8, 9}});
  alone.step(7);
  const Stage::Cut cut{&cached, n + 1};
  engine.forward().cut({&cut, 1});
  prompt.insert(prompt.end(), truth.tokens.begin(), truth.tokens.end());
  prompt.push_back(7);
  for (int32_t token = 20; token < 30; ++token) prompt.push_back(token);
  alone.sync(prompt), drafting.sync(prompt);
  BOOST_REQUIRE((alone.logits() == drafting.logits()));
  for (int32_t token = 40; token < 60; ++token) {
    alone.step(token), drafting.step(token);
    BOOST_REQUIRE((alone.logits() == drafting.logits()));
  }
}

BOOST_AUTO_TEST_SUITE_END()
