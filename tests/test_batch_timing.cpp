// What `bench` is made of: fabricated sequences, selections that are forced on each token of a step,
// the laps of a step, and the timing on top of them.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <map>
#include <set>

#include "cli/inspect/inspect.h"
#include "engine/loop.h"
#include "tests/support/forward_scene.h"
#include "tests/support/recording_backend.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"
#include "weights/synthetic.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(batch_timing)

namespace {

constexpr int64_t kTopk = 32, kLayers = 2, kSequences = 3, kHeld = 150, kDecoded = 4;

struct Scene {
  TempDir dir;
  std::unique_ptr<GgufFile> file;
  std::unique_ptr<Engine> engine;
  std::vector<std::unique_ptr<ByHand>> sequences;

  explicit Scene(int64_t topk_buffer = kEveryRow, KvType kv_type = KvType::fp8) {
    TinyModel shape;
    shape.n_layers = kLayers, shape.n_dense_layers = 1, shape.index_topk = kTopk;
    write_tiny_model(dir.file("tiny.gguf"), shape);
    file = std::make_unique<GgufFile>(dir.file("tiny.gguf"));
    EngineOptions options;
    options.backend = "cpu", options.n_threads = 1, options.context = 256, options.kv_type = kv_type;
    options.max_seqs = kSequences, options.pool = 256 * kSequences, options.topk_buffer = topk_buffer;
    engine = std::make_unique<Engine>(*file, options);
    sequences = fabricate_sequences(*engine, kSequences, kHeld);
  }

  BatchTiming time(std::optional<double> locality) {
    BenchOptions bench;
    bench.n_decode = kDecoded, bench.locality.selection = locality;
    return time_batch(*engine, *fabricate_tokenizer(engine->args().vocab_size), sequences, kHeld, bench);
  }
  std::vector<uint8_t> keys(const ByHand& sequence, int64_t page) const {
    const PoolPage at = sequence.cached().page(page);
    return engine->cache().download_keys({&at, 1}).front();
  }
};

}  // namespace

// The formats of a mix differ from matrix to matrix; rows of 128 values get a substitute.
BOOST_AUTO_TEST_CASE(random_weights_in_each_mix_of_llama_quantize_compute) {
  ModelArgs args = full_size_args(2, 1).without_draft();
  args.dim = 256, args.inter_dim = 512, args.moe_inter_dim = 256, args.n_heads = 4, args.q_lora_rank = 256;
  args.index_n_heads = 4, args.n_routed_experts = 8, args.n_expert_groups = 2, args.n_limited_groups = 1;
  args.vocab_size = 512;
  EngineOptions options;
  options.backend = "cpu", options.n_threads = 1, options.context = 64;
  for (const std::string& name : mix_names()) {
    const SyntheticTypes types{.mix = find_mix(name)};
    const auto load = [&](const ModelArgs& some, const WeightPlaces& places) {
      return synthetic_weights(some, types, places);
    };
    Engine engine(ModelSource(args, model_bytes(args, types), load), options);
    const std::vector<float> logits = ByHand(engine).all_logits(std::vector<int32_t>{1, 2, 3});
    BOOST_TEST(std::ranges::all_of(logits, [](float value) { return std::isfinite(value); }), name);
    BOOST_TEST((logits.front() != logits.back()), name);
  }
}

BOOST_AUTO_TEST_CASE(each_token_of_a_step_gets_its_own_selection) {
  Scene scene;
  Forward& forward = scene.engine->forward();
  const int32_t token = 7;
  std::vector<int32_t> all;                             // [kLayers, kSequences, kTopk]
  std::vector<std::vector<int32_t>> alone(kSequences);  // [kLayers, kTopk]
  for (int64_t layer = 0; layer < kLayers; ++layer)
    for (int64_t i = 0; i < kSequences; ++i)
      for (int64_t k = 0; k < kTopk; ++k) {
        all.push_back(static_cast<int32_t>(40 * i + layer + k));
        alone[static_cast<size_t>(i)].push_back(all.back());
      }
  const std::vector<int32_t> prompt = random_tokens(kHeld, 1);  // fabricated rows are all the same
  for (const auto& sequence : scene.sequences) sequence->sync(prompt);
  std::vector<int32_t> held = prompt;
  held.push_back(token);
  std::vector<std::vector<float>> expected;
  for (size_t i = 0; i < kSequences; ++i) {
    forward.set_forced(0, {alone[i].data(), nullptr, 1});
    scene.sequences[i]->step(token);
    expected.push_back(forward.logits());
    scene.sequences[i]->hold(held);
  }
  BOOST_TEST((expected[0] != expected[1] && expected[1] != expected[2]));

  Step step{Role::decode, {}, std::vector(kSequences, token)};
  for (const auto& sequence : scene.sequences) step.sequences.push_back(&sequence->cached());
  forward.set_forced(0, {all.data(), nullptr, kSequences});
  forward.run(step);
  const std::vector<float> logits = forward.logits();
  const auto width = static_cast<size_t>(scene.engine->args().vocab_size);
  for (size_t i = 0; i < kSequences; ++i)
    BOOST_TEST(
        std::equal(expected[i].begin(), expected[i].end(), logits.begin() + static_cast<int64_t>(i * width)),
        "token " << i);
}

// Which are forced, of which steps, and how many stay.
BOOST_AUTO_TEST_CASE(experts_are_those_that_are_forced) {
  Scene scene;
  Forward& forward = scene.engine->forward();
  const ModelArgs& args = scene.engine->args();
  const std::vector<int32_t> prompt = random_tokens(kHeld, 1);
  ByHand& sequence = *scene.sequences[0];
  sequence.sync(prompt);
  std::vector<int32_t> held = prompt;
  held.push_back(7);
  std::vector<int32_t> routed(static_cast<size_t>(args.n_activated_experts));  // of the dense layer, unused
  forward.set_observer(
      [&](const Observation& seen) { routed.insert(routed.end(), seen.ints.begin(), seen.ints.end()); },
      {"experts"});
  const auto logits_with = [&](const int32_t* experts, int64_t n_tokens) {
    forward.set_forced(0, {nullptr, experts, n_tokens});
    sequence.step(7);
    sequence.hold(held);
    return forward.logits();
  };
  const std::vector<float> free = logits_with(nullptr, 1);
  forward.set_observer({});
  BOOST_TEST(std::ssize(routed) == kLayers * args.n_activated_experts);
  BOOST_TEST((logits_with(routed.data(), 1) == free));
  std::vector<int32_t> others = routed;
  for (int32_t& expert : others) expert = (expert + 1) % static_cast<int32_t>(args.n_routed_experts);
  BOOST_TEST((logits_with(others.data(), 1) != free));
  // A smaller step takes the first ones of each layer.
  const auto n = args.n_activated_experts;
  std::vector<int32_t> for_two;
  for (int64_t layer = 0; layer < kLayers; ++layer)
    for (const std::vector<int32_t>& token : {routed, others})
      for_two.insert(for_two.end(), token.begin() + layer * n, token.begin() + (layer + 1) * n);
  BOOST_TEST((logits_with(for_two.data(), 2) == free));
  BOOST_TEST((logits_with(others.data(), 0) == free));  // steps of one token are larger
  forward.set_forced(0, {});
}

BOOST_AUTO_TEST_CASE(locality_decides_what_is_missing) {
  Scene scene(kTopk + 32);
  const BatchTiming all = scene.time(1), half = scene.time(0.5), none = scene.time(0);
  for (const BatchTiming* timing : {&all, &half, &none}) {
    BOOST_TEST(timing->n_sequences == kSequences);
    BOOST_TEST(timing->n_rows == kSequences * kLayers * kTopk);
  }
  BOOST_TEST(all.n_misses == 0);
  BOOST_TEST((half.n_misses > 0.1 * half.n_rows && half.n_misses < 0.6 * half.n_rows));
  BOOST_TEST((none.n_misses > half.n_misses && none.n_misses <= none.n_rows));
}

BOOST_AUTO_TEST_CASE(a_timing_begins_where_the_one_before_began) {
  for (const int64_t n_rows : {kEveryRow, kTopk + 32}) {
    Scene scene(n_rows);
    const BatchTiming timing = scene.time({});
    BOOST_TEST((timing.n_rows > 0) == (n_rows != kEveryRow));
    BOOST_TEST(timing.step_seconds > 0);
    for (const auto& sequence : scene.sequences)
      BOOST_TEST(std::ssize(sequence->tokens()) == kHeld + timed_tokens(kDecoded));
    BOOST_TEST(scene.time({}).n_sequences == kSequences);  // and once more, from where it began
  }
}

// By a pattern that no logits decide, so the counts follow from the shares. At a page's end there are fewer.
BOOST_AUTO_TEST_CASE(guesses_are_right_as_often_as_is_asked) {
  const GgufFile file("tests/golden/draft_shared.gguf");
  for (const int64_t n_sequences : {1, 3})
    for (const int64_t n_rows : {kEveryRow, int64_t{128}}) {
      EngineOptions options;
      options.backend = "cpu", options.n_threads = 1, options.context = 1024, options.n_guesses = 2;
      options.max_seqs = n_sequences, options.pool = 1024 * n_sequences, options.topk_buffer = n_rows;
      Engine engine(file, options);
      const auto sequences = fabricate_sequences(engine, n_sequences, kHeld);
      const auto tokenizer = fabricate_tokenizer(engine.args().vocab_size);
      const auto time = [&](std::vector<double> accepted) {
        BenchOptions bench;
        bench.n_decode = 64, bench.accepted = std::move(accepted), bench.locality.selection = 0.5;
        return time_batch(engine, *tokenizer, sequences, kHeld, bench);
      };
      const auto n = static_cast<double>(n_sequences);
      const BatchTiming all = time({1, 1, 1}), none = time({0, 0, 0}), half = time({0.5, 1, 1});
      for (const BatchTiming* timing : {&all, &none, &half}) {
        BOOST_TEST((timing->n_guessed > 2 * 60 * n_sequences && timing->n_guessed <= 2 * 64 * n_sequences));
        BOOST_TEST((timing->guess_seconds > 0 && timing->guess_seconds < timing->step_seconds));
        BOOST_TEST((timing->n_rows > 0) == (n_rows != kEveryRow));
      }
      BOOST_TEST(all.n_accepted == all.n_guessed);
      BOOST_TEST((none.n_accepted == 0 && none.n_tokens == n));
      BOOST_TEST(half.n_tokens > 1.8 * n);
      BOOST_TEST(half.n_tokens < 2.1 * n);
    }
}

BOOST_AUTO_TEST_CASE(a_split_step_is_computed_and_not_replayed) {
  RecordingBackend backend;
  CpuBackend plain(1);
  ForwardScene scene(backend), expected(plain);
  BOOST_TEST((scene.step(1) == expected.step(1)));
  BOOST_TEST(backend.laps().empty());
  BOOST_TEST(backend.n_replayed == 1);

  Laps laps;
  scene.forward->set_laps(&laps);
  BOOST_TEST((scene.step(2) == expected.step(2)));
  BOOST_TEST(backend.n_replayed == 1);
  BOOST_TEST(backend.laps().size() == laps.size());
  std::map<std::string, int64_t> counts;
  for (const char* name : laps) ++counts[name];
  for (const char* name : {"index_scores", "topk", "resolve", "fetch", "attention"})
    BOOST_TEST(counts[name] == scene.args.n_layers, name);
  BOOST_TEST(counts["experts"] == scene.args.n_layers - scene.args.n_dense_layers);
  BOOST_TEST(std::string(laps.back()) == "other");

  scene.forward->set_laps(nullptr);
  scene.step(3);
  BOOST_TEST(backend.laps().empty());
  BOOST_TEST(backend.n_replayed == 2);
}

// Every score is another, whatever the keys are stored as; and none is no number, or the draw would fail.
BOOST_AUTO_TEST_CASE(fabricated_keys_differ_from_page_to_page_and_agree_between_sequences) {
  for (const KvType kv_type : {KvType::fp8, KvType::bf16, KvType::f32}) {
    Scene scene(kEveryRow, kv_type);
    std::set<std::vector<uint8_t>> seen;
    for (int64_t page = 0; page < pages_for(kHeld); ++page) {
      seen.insert(scene.keys(*scene.sequences.front(), page));
      BOOST_TEST((scene.keys(*scene.sequences.front(), page) == scene.keys(*scene.sequences.back(), page)));
    }
    BOOST_TEST(std::ssize(seen) == pages_for(kHeld));
    BOOST_TEST(scene.time({}).step_seconds > 0);
  }
}

BOOST_AUTO_TEST_CASE(a_fabricated_tokenizer_never_ends_an_answer) {
  constexpr int32_t kTokens = 300;
  const std::unique_ptr<Tokenizer> tokenizer = fabricate_tokenizer(kTokens);
  for (int32_t id = 0; id < kTokens; ++id) {
    BOOST_TEST(!tokenizer->is_end_of_generation(id));
    BOOST_TEST(tokenizer->bytes_of(id) == " " + std::to_string(id));
  }
}

BOOST_AUTO_TEST_SUITE_END()
