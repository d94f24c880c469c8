// engine/compare: what `dsv32 check` finds, on pairs of engines whose difference is known.
//
// The command itself is tested on the real binary by test_cli.sh.
#include <boost/test/unit_test.hpp>
#include <cmath>

#include "engine/compare.h"
#include "gguf/random_weights.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(check)

namespace {

constexpr int64_t kTokens = 80, kTopk = 32, kDecoded = 64;

struct Model {
  TempDir dir;
  std::string path = dir.file("tiny.gguf");
  GgufFile file = written();
  std::vector<int32_t> tokens;

  Model() {
    Rng rng(3);
    for (int64_t i = 0; i < kTokens; ++i) tokens.push_back(static_cast<int32_t>(rng.next() % 250));
  }
  GgufFile written() const {
    TinyModel shape;
    shape.n_layers = 3, shape.n_dense_layers = 1, shape.index_topk = kTopk;
    shape.n_heads = 2, shape.index_n_heads = 4;
    write_tiny_model(path, shape);
    return GgufFile(path);
  }
};

const Model& model() {
  static const Model made;
  return made;
}

EngineOptions options_of(KvType kv_type = KvType::f32, std::optional<int64_t> topk_buffer = {}) {
  EngineOptions options;
  options.backend = "cpu";
  options.n_threads = 1;
  options.kv_type = kv_type;
  options.topk_buffer = topk_buffer;
  options.context = kTokens;
  options.chunk = 20;
  return options;
}

// Compares a sound engine with one in which the weights that `pick` names are multiplied by `factor`.
template <typename Pick>
Deviation deviation_with(Pick pick, float factor, int64_t n_tokens = kTokens) {
  Engine engine(model().file, options_of()), reference(model().file, options_of());
  const Vector& weight = pick(engine.weights());
  for (int64_t i = 0; i < weight.n(); ++i) weight.data()[i] *= factor;  // the CPU's memory
  return compare_engines(engine, reference, std::span(model().tokens).first(static_cast<size_t>(n_tokens)));
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_small_buffer_gives_the_same_bits_and_is_used) {
  for (const KvType kv_type : {KvType::fp8, KvType::bf16}) {
    const DecodeEquality found =
        compare_decode(model().file, options_of(kv_type, kTopk), options_of(kv_type), model().tokens);
    BOOST_TEST(found.first_unequal_pos == -1);
    BOOST_TEST(found.n_steps == kDecoded);
    BOOST_TEST(found.tally.n_misses > 0);
  }
}

BOOST_AUTO_TEST_CASE(other_bits_are_found_where_they_begin) {
  const DecodeEquality found =
      compare_decode(model().file, options_of(KvType::bf16), options_of(KvType::f32), model().tokens);
  BOOST_TEST(found.first_unequal_pos == kTokens - kDecoded);
}

BOOST_AUTO_TEST_CASE(a_prompt_gives_the_same_bits_however_it_is_cut) {
  for (const int64_t n_tokens : {kTokens, int64_t{1}}) {
    Engine engine(model().file, options_of(KvType::fp8));
    const CutEquality found =
        compare_cuts(engine, std::span(model().tokens).first(static_cast<size_t>(n_tokens)));
    BOOST_TEST(found.n_ways == (n_tokens == kTokens ? 3 : 2));
    BOOST_TEST(found.first_unequal == "");
  }
}

// A layer that computes otherwise in steps of so many tokens: the first way that has such a step is named.
BOOST_AUTO_TEST_CASE(bits_that_depend_on_the_cut_are_found) {
  for (const auto& [n_step, way] :
       {std::pair{64, "in steps of 64"}, {54, "behind 26 held tokens"}, {1, "with the last token alone"}}) {
    EngineOptions options = options_of();
    options.chunk = kTokens;
    Engine engine(model().file, options);
    const Vector& weight = engine.weights().layers[0].ffn_norm;
    const float own = weight.data()[0];
    engine.forward().set_observer(
        [&](const Observation& seen) {
          if (seen.layer == 0) weight.data()[0] = seen.n_tokens == n_step ? 2 * own : own;
        },
        {"attention_out"});
    BOOST_TEST(compare_cuts(engine, model().tokens).first_unequal == way);
  }
}

BOOST_AUTO_TEST_CASE(an_engine_does_not_deviate_from_its_like) {
  Engine engine(model().file, options_of()), reference(model().file, options_of());
  const Deviation found = compare_engines(engine, reference, model().tokens);
  BOOST_TEST(found.n_rows == kTokens);
  BOOST_TEST(found.n_same_choice == kTokens);
  BOOST_TEST(found.largest == 0);
  BOOST_TEST(found.first_pos == -1);
  BOOST_TEST(found.name == "");
}

BOOST_AUTO_TEST_CASE(a_wrong_layer_is_named) {
  const auto pick = [](const Weights& w) -> const Vector& { return w.layers[2].ffn_norm; };
  for (const int64_t n_tokens : {kTokens, int64_t{30}}) {  // the first token is in a chunk, or decoded
    const Deviation found = deviation_with(pick, 2, n_tokens);
    BOOST_TEST(found.n_rows == n_tokens);
    BOOST_TEST(found.first_pos == 0);
    BOOST_TEST(found.layer == 2);
    BOOST_TEST(found.name == "ffn_norm");
    BOOST_TEST(found.deviation == 1, boost::test_tools::tolerance(1e-6));
    BOOST_TEST(found.largest > kDeviationTolerance);
  }
}

// Keys of the other sign choose other positions, which shows only where there are more of them than top-k.
BOOST_AUTO_TEST_CASE(a_wrong_indexer_is_named_at_the_position_where_it_matters) {
  const Deviation found =
      deviation_with([](const Weights& w) -> const Vector& { return w.layers[1].indexer.k_norm; }, -1);
  BOOST_TEST(found.first_pos >= kTopk);
  BOOST_TEST(found.layer == 1);
  BOOST_TEST(found.name == "index_k");
}

BOOST_AUTO_TEST_CASE(a_deviation_after_the_layers_is_none_of_theirs) {
  const Deviation found = deviation_with([](const Weights& w) -> const Vector& { return w.norm; }, -1);
  BOOST_TEST(found.first_pos == 0);
  BOOST_TEST(found.layer == -1);
  BOOST_TEST(found.n_same_choice < kTokens / 2);
  BOOST_TEST(found.largest == 2, boost::test_tools::tolerance(1e-6));
}

BOOST_AUTO_TEST_CASE(what_is_not_finite_deviates) {
  const Deviation found =
      deviation_with([](const Weights& w) -> const Vector& { return w.layers[0].attn_norm; }, NAN);
  BOOST_TEST(std::isinf(found.largest));
  BOOST_TEST(found.layer == 0);
  BOOST_TEST(found.name == "attn_norm");
}

BOOST_AUTO_TEST_SUITE_END()
