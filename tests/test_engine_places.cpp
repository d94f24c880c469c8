// An engine over several devices, with experts in host memory or not: where things lie changes no answer and
// nothing of what is remembered.
#include <array>
#include <boost/test/unit_test.hpp>
#include <thread>

#include "engine/loop.h"
#include "tests/support/failing_allocations.h"
#include "tests/support/island_backend.h"
#include "tests/support/known_prompt.h"
#include "tests/support/sanitized.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_file.h"
#include "tests/support/tiny_sequence.h"
#include "tests/support/token_records.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(engine_places)

namespace {

constexpr int64_t kPrompt = 100, kAnswer = 20;

const std::string& tiny_path() {
  static const TinyFile model(TinyModel{.n_layers = 5, .n_dense_layers = 1, .index_topk = 32});
  return model.path;
}

struct Places {
  int n_devices = 1;
  int64_t n_cpu_experts = 0;
  Split split = Split::layers;
};

std::unique_ptr<Engine> open(const GgufFile& file, const Places& places, EngineOptions options) {
  for (int i = 0; i < places.n_devices; ++i)
    options.backends.push_back(std::make_shared<IslandBackend>()), options.gpus.push_back(i);
  options.n_cpu_experts = places.n_cpu_experts, options.split = places.split;
  if (!options.context) options.context = 256;
  return std::make_unique<Engine>(file, options);
}

struct Talk {
  std::vector<float> logits;
  std::vector<uint8_t> remembered;
  int64_t n_held = 0;
  bool operator==(const Talk& other) const {
    return remembered == other.remembered && logits.size() == other.logits.size() &&
           std::memcmp(logits.data(), other.logits.data(), logits.size() * sizeof(float)) == 0;
  }
};

Talk talk(Engine& engine) {
  const std::vector<int32_t> tokens = random_tokens(kPrompt + kAnswer, 3);
  ByHand sequence(engine);
  Talk all;
  all.n_held = sequence.sync(std::vector(tokens.begin(), tokens.begin() + kPrompt));
  const auto keep = [&] {
    const std::vector<float> row = engine.forward().logits();
    all.logits.insert(all.logits.end(), row.begin(), row.end());
  };
  keep();
  for (size_t i = kPrompt; i < tokens.size(); ++i) sequence.step(tokens[i]), keep();
  all.remembered = remembered(engine, sequence);
  return all;
}

}  // namespace

BOOST_AUTO_TEST_CASE(answers_do_not_depend_on_where_things_lie) {
  const GgufFile file(tiny_path());
  for (const std::optional<int64_t> buffer : {std::optional<int64_t>(), std::optional<int64_t>(40)}) {
    EngineOptions options;
    options.topk_buffer = buffer;
    const Talk one = talk(*open(file, {}, options));
    for (const Places& places : {Places{1, 4}, {2, 0}, {2, 1}, {3, 2}, {5, 4}, {2, 0, Split::rows}})
      for (const int64_t chunk : {7, 64}) {
        if (kIsSanitized && chunk == 7 && places.n_devices != 3) continue;
        options.chunk = chunk;
        const auto engine = open(file, places, options);
        BOOST_TEST(engine->backends().size() == static_cast<size_t>(places.n_devices));
        BOOST_TEST(engine->plan().n_host_expert_layers() == places.n_cpu_experts);
        BOOST_TEST((talk(*engine) == one), places.n_devices << " devices, " << places.n_cpu_experts
                                                            << " host layers, chunks of " << chunk);
      }
  }
}

// Of as many devices as there are one is enough for so small a model.
BOOST_AUTO_TEST_CASE(as_few_devices_as_suffice_are_used) {
  const GgufFile file(tiny_path());
  EngineOptions options;
  options.context = 256;
  options.backends = {std::make_shared<IslandBackend>(), std::make_shared<IslandBackend>()};
  Engine engine(file, options);
  BOOST_TEST(engine.backends().size() == 1u);
}

// What one device computed is found by two, in either split, and by whoever computes decode elsewhere as soon
// as the same layers' experts are the host's.
BOOST_AUTO_TEST_CASE(prefixes_are_shared_by_all_who_compute_the_same) {
  const GgufFile file(tiny_path());
  const TempDir dir;
  EngineOptions options = with_disk({}, dir.file("cache"));
  const Talk one = talk(*open(file, {}, options));
  BOOST_TEST(one.n_held == 0);
  for (const Places& places : {Places{2, 0}, {2, 0, Split::rows}, {2, 2}, {1, 2}}) {
    const auto engine = open(file, places, options);
    const Talk again = talk(*engine);
    BOOST_TEST((again == one));
    BOOST_TEST(again.n_held == (places.n_cpu_experts > 0 && places.n_devices == 2 ? 0 : 64));
  }
}

// A card whose kernels give other bits.
struct OtherKind : IslandBackend {
  std::string numerics() const override { return "other"; }
};

// Cards of two kinds: a prefix is found where each kind has the layers that it had.
BOOST_AUTO_TEST_CASE(prefixes_know_which_kind_of_card_had_which_layers) {
  const GgufFile file(tiny_path());
  const TempDir dir;
  const auto n_held = [&](bool is_other_first, int n_devices) {
    EngineOptions options = with_disk({}, dir.file("cache"));
    options.context = 256;
    for (int i = 0; i < n_devices; ++i) {
      options.gpus.push_back(i);
      if (is_other_first == (i == 0))
        options.backends.push_back(std::make_shared<OtherKind>());
      else
        options.backends.push_back(std::make_shared<IslandBackend>());
    }
    Engine engine(file, options);
    BOOST_TEST(engine.backends().size() == static_cast<size_t>(n_devices));
    return talk(engine).n_held;
  };
  BOOST_TEST(n_held(false, 2) == 0);
  BOOST_TEST(n_held(false, 2) == 64);
  BOOST_TEST(n_held(true, 2) == 0);
  BOOST_TEST(n_held(true, 1) == 0);
  BOOST_TEST(n_held(false, 3) == 0);
  BOOST_TEST(n_held(false, 2) == 64);
}

// So small a model gains nothing from a team. Who cannot be one is told why, unless layers are asked for.
BOOST_AUTO_TEST_CASE(devices_that_cannot_be_a_team_are_told_why) {
  const GgufFile file(tiny_path());
  for (const bool is_other : {false, true})
    for (const Split split : {Split::automatic, Split::layers}) {
      EngineOptions options;
      options.context = 256, options.gpus = {0, 1}, options.split = split;
      options.backends.push_back(std::make_shared<IslandBackend>());
      if (is_other)
        options.backends.push_back(std::make_shared<OtherKind>());
      else
        options.backends.push_back(std::make_shared<IslandBackend>());
      Engine engine(file, options);
      BOOST_TEST(!engine.plan().is_team);
      const bool is_told = std::ranges::any_of(engine.warnings(), [](const std::string& warning) {
        return warning.find("cannot reach each other's memory") != warning.npos;
      });
      BOOST_TEST(is_told == (is_other && split == Split::automatic));
    }
}

// Of a prompt that is broken off while two of its chunks are between stages, others find what all stages
// have, and its sequence goes on with another.
BOOST_AUTO_TEST_CASE(nobody_finds_what_is_under_way) {
  const GgufFile file(tiny_path());
  EngineOptions options;
  options.max_seqs = 2, options.pool = 512, options.chunk = 64, options.cache.emplace();
  const std::vector<int32_t> prompt = random_tokens(230, 5);
  std::vector<int32_t> other = prompt;
  other.resize(150), other.push_back(7);
  const auto logits_after = [](ByHand& sequence, const std::vector<int32_t>& tokens) {
    sequence.sync(tokens);
    return sequence.logits();
  };
  const auto expected_engine = open(file, {}, options);
  ByHand expected(*expected_engine);
  const std::vector<float> of_prompt = logits_after(expected, prompt),
                           of_other = logits_after(expected, other);

  const auto engine = open(file, {3, 0}, options);
  ByHand broken_off(*engine), next(*engine);
  broken_off.hold(prompt);
  for (int i = 0; i < 3; ++i) broken_off.read_chunk(prompt, 64);
  BOOST_TEST(engine->forward().n_under_way(broken_off.cached()) == 128);
  BOOST_TEST(next.hold(prompt) == 64);
  BOOST_TEST((logits_after(next, prompt) == of_prompt));
  BOOST_TEST((logits_after(broken_off, other) == of_other));
  BOOST_TEST(engine->forward().n_under_way(broken_off.cached()) == 0);
}

// A sequence that goes, or rests, in the middle of a prompt.
BOOST_AUTO_TEST_CASE(sequences_end_while_their_prompts_are_under_way) {
  const GgufFile file(tiny_path());
  EngineOptions options;
  options.chunk = 32, options.cache.emplace();
  const std::vector<int32_t> prompt = random_tokens(230, 5);
  const auto engine = open(file, {3, 0}, options);
  const auto break_off = [&](ByHand& sequence) {
    sequence.hold(prompt);
    while (sequence.read_chunk(prompt, 32) < 160) continue;
    BOOST_TEST(engine->forward().n_under_way(sequence.cached()) == 64);
  };
  {
    ByHand sequence(*engine);
    break_off(sequence);
  }
  ByHand sequence(*engine);
  BOOST_TEST(sequence.hold(prompt) == 64);
  break_off(sequence);
  sequence.save_prefix();
  BOOST_TEST(engine->forward().n_under_way(sequence.cached()) == 0);
  BOOST_TEST(sequence.hold(random_tokens(5, 6)) == 0);
  BOOST_TEST(sequence.hold(prompt) == 128);
}

// While a group's step waits in the second stage, the next group's step has left the first.
BOOST_AUTO_TEST_CASE(groups_of_sequences_are_in_different_stages) {
  const GgufFile file(tiny_path());
  const std::unique_ptr<Tokenizer> tokenizer = Tokenizer::make(load_vocabulary(file));
  EngineOptions options;
  options.max_seqs = 2;
  const auto engine = open(file, {2, 0}, options);
  auto& second = dynamic_cast<IslandBackend&>(*engine->backends()[1]);
  Loop& loop = engine->loop();
  std::array<int64_t, 2> n_taken{};
  loop.set_drawer([&](const Sequence& sequence, int64_t, int32_t) {
    ++n_taken[static_cast<size_t>(sequence.number)];
    return 7;
  });
  GenerationOptions generation;
  generation.max_tokens = 40, generation.thinking = false;
  Listener silent;
  for (uint64_t i = 0; i < 2; ++i)
    loop.add({nullptr, tokenizer.get(), random_tokens(9, i), generation}, silent);
  while (n_taken[0] < 3 || n_taken[1] < 3) BOOST_REQUIRE(loop.advance());
  while (second.n_in_flight() > 0) std::this_thread::yield();
  second.hold();
  while (second.n_in_flight() == 0) BOOST_REQUIRE(loop.advance());
  const size_t of_one_step = second.n_in_flight();
  while (second.n_in_flight() == of_one_step) BOOST_REQUIRE(loop.advance());
  BOOST_TEST(second.n_in_flight() == 2 * of_one_step);
  second.let_go();
  while (loop.advance()) continue;
  for (const int64_t n : n_taken) BOOST_TEST(n == 40);
  for (int64_t i = 0; i < 2; ++i) BOOST_TEST(loop.take(i).n_completion_tokens == 40);
}

// Two requests whose steps are in different stages, and the first one's answer alone.
struct TwoGroups {
  const GgufFile file{tiny_path()};
  const std::unique_ptr<Tokenizer> tokenizer = Tokenizer::make(load_vocabulary(file));
  std::unique_ptr<Engine> engine = open(file, {2, 0}, options());
  Loop& loop = engine->loop();
  Listener silent;

  static EngineOptions options() {
    EngineOptions options;
    options.max_seqs = 2;
    return options;
  }
  Request request(uint64_t i) const {
    GenerationOptions generation;
    generation.max_tokens = 20, generation.thinking = false, generation.n_top_logprobs = 0;
    return {nullptr, tokenizer.get(), random_tokens(9, i), generation};
  }
};

BOOST_AUTO_TEST_CASE(what_a_listener_throws_while_steps_are_under_way_is_its_own_error) {
  struct Failing : Listener {
    int n_before = 0;
    bool is_interrupted() override {
      if (n_before-- == 0) throw std::runtime_error("the ear hurts");
      return false;
    }
  };
  TwoGroups scene;
  const Records alone = records_of(generate(scene.loop, scene.request(0), scene.silent));
  for (int n_before = 2; n_before < 12; ++n_before) {
    Failing failing;
    failing.n_before = n_before;
    const int64_t good = scene.loop.add(scene.request(0), scene.silent),
                  bad = scene.loop.add(scene.request(1), failing);
    BOOST_CHECK_NO_THROW(while (scene.loop.advance()){});
    BOOST_TEST((records_of(scene.loop.take(good)) == alone), "after " << n_before);
    BOOST_CHECK_EXCEPTION(scene.loop.take(bad), Error,
                          [](const Error& error) { return error.what() == std::string("the ear hurts"); });
  }
}

// When a request is dropped, the tokens of steps under way are taken. Answers that lose theirs end.
BOOST_AUTO_TEST_CASE(an_answer_whose_token_is_lost_does_not_go_on_without_it) {
  const Records alone = [] {
    TwoGroups scene;
    return records_of(generate(scene.loop, scene.request(0), scene.silent));
  }();
  int n_lost = 0;
  for (int64_t n = 0; n < 6; ++n) {
    TwoGroups scene;
    const int64_t kept = scene.loop.add(scene.request(0), scene.silent),
                  dropped = scene.loop.add(scene.request(1), scene.silent);
    for (int i = 0; i < 12; ++i) scene.loop.advance();
    for (const auto& backend : scene.engine->backends())  // whose threads need memory too
      while (dynamic_cast<IslandBackend&>(*backend).n_in_flight() > 0) std::this_thread::yield();
    {
      FailingAllocations failing(n);
      scene.loop.drop(dropped);
    }
    while (scene.loop.advance()) continue;
    try {
      BOOST_TEST((records_of(scene.loop.take(kept)) == alone), "allocation " << n);
    } catch (const Error& error) {
      BOOST_TEST((error.kind() == ErrorKind::memory));
      ++n_lost;
    }
  }
  BOOST_TEST(n_lost > 0);
}

BOOST_AUTO_TEST_SUITE_END()
