// Steps that verify guesses: each token has the bits that it has alone, whatever was guessed, accepted and
// cut off before.
#include <boost/test/unit_test.hpp>
#include <vector>

#include "tests/support/draft_walks.h"
#include "tests/support/island_backend.h"
#include "tests/support/tiny_file.h"
#include "tests/support/tiny_sequence.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(draft_steps)

namespace {

constexpr int64_t kTopk = 32, kContext = 640;

const std::string& tiny_path() {
  static const TinyFile model(TinyModel{.n_layers = 3, .n_dense_layers = 1, .index_topk = kTopk});
  return model.path;
}

EngineOptions options_for(std::optional<int64_t> topk_buffer, int64_t n_guesses, int64_t max_seqs = 1) {
  EngineOptions options;
  options.context = kContext, options.chunk = 50, options.n_threads = 2;
  options.max_seqs = max_seqs, options.pool = max_seqs * kContext, options.topk_buffer = topk_buffer;
  options.n_guesses = n_guesses;
  return options;
}

Truth truth_of(std::span<const int32_t> prompt, std::optional<int64_t> topk_buffer, size_t n) {
  const GgufFile file(tiny_path());
  Engine engine(file, options_for(topk_buffer, 0));
  return truth_of(engine, prompt, n);
}

}  // namespace

BOOST_AUTO_TEST_CASE(verified_tokens_have_the_bits_that_they_have_alone) {
  const std::vector<int32_t> prompt = random_tokens(230, 3);
  for (const std::optional<int64_t> topk_buffer : {std::optional<int64_t>{}, std::optional<int64_t>{140}}) {
    const Truth truth = truth_of(prompt, topk_buffer, 120);
    const GgufFile file(tiny_path());
    Engine engine(file, options_for(topk_buffer, 3));
    BOOST_REQUIRE(engine.args().n_draft_layers == 1);
    std::minstd_rand random(1);
    DraftWalks walks;
    walks.push_back(std::make_unique<DraftWalk>(engine, prompt, truth));
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
    DraftWalks walks;
    for (size_t i = 0; i < truths.size(); ++i)
      walks.push_back(std::make_unique<DraftWalk>(engine, prompts[i], truths[i]));
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
  DraftWalks walks;
  walks.push_back(std::make_unique<DraftWalk>(engine, prompt, truth));
  ByHand& drafting = walks.front()->sequence;
  alone.sync(prompt);
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

BOOST_AUTO_TEST_CASE(room_for_guesses_is_spare_while_each_sequence_has_a_free_page) {
  const GgufFile file(tiny_path());
  Engine engine(file, options_for({}, 3, 2));
  ByHand sequence(engine);
  sequence.sync(random_tokens(kPageTokens - 4, 9));
  const LatentCache& cache = engine.cache();
  const int64_t n_free = engine.plan().cache.n_pages() - 1;
  BOOST_TEST(cache.has_spare(sequence.cached(), kPageTokens, n_free));
  BOOST_TEST(!cache.has_spare(sequence.cached(), kPageTokens, n_free + 1));
  BOOST_TEST(cache.has_spare(sequence.cached(), kPageTokens + 1, n_free - 1));
  BOOST_TEST(!cache.has_spare(sequence.cached(), kPageTokens + 1, n_free));
  BOOST_TEST(!cache.has_spare(sequence.cached(), kContext + 1, 0));
}

// The block lies on the last device. Devices do not read each other's memory (IslandBackend).
BOOST_AUTO_TEST_CASE(devices_and_host_experts_change_no_bit) {
  const std::vector<int32_t> prompt = random_tokens(230, 4);
  for (const std::optional<int64_t> topk_buffer : {std::optional<int64_t>{}, std::optional<int64_t>{140}}) {
    const Truth truth = truth_of(prompt, topk_buffer, 40);
    for (const auto& [n_devices, n_host_layers] : {std::pair{1, 1}, {2, 0}, {3, 1}}) {
      EngineOptions options = options_for(topk_buffer, 3);
      for (int i = 0; i < n_devices; ++i)
        options.backends.push_back(std::make_shared<IslandBackend>()), options.gpus.push_back(i);
      options.n_cpu_experts = n_host_layers;
      const GgufFile file(tiny_path());
      Engine engine(file, options);
      BOOST_REQUIRE(std::ssize(engine.backends()) == n_devices);
      BOOST_REQUIRE(engine.plan().n_host_expert_layers() == n_host_layers);
      BOOST_REQUIRE(engine.args().n_draft_layers == 1);
      std::minstd_rand random(4);
      DraftWalks walks;
      walks.push_back(std::make_unique<DraftWalk>(engine, prompt, truth));
      check_walks(engine, walks, random);
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
