// The forward pass against another implementation: transformers' DeepseekV32ForCausalLM
// (tests/golden/README.md), with nothing rounded in prefill, in decode and stage by stage; and with fp8 and
// bf16 storage against a reference that applies the same rounding.
#include <algorithm>
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "engine/sequence.h"
#include "model/stage.h"
#include "tests/support/company.h"
#include "tests/support/golden.h"
#include "tests/support/sanitized.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(forward)

namespace {

const char* const kNames[] = {"small", "groups", "wide", "odd"};
const KvType kRoundedTypes[] = {KvType::fp8, KvType::bf16};

std::string golden_path(const std::string& name, const char* ending) {
  return "tests/golden/forward_" + name + ending;
}

EngineOptions options_for(KvType kv_type, int64_t chunk, size_t n_tokens) {
  EngineOptions options;
  options.kv_type = kv_type;
  options.chunk = chunk;
  options.n_threads = chunk > 64 ? 0 : 1;  // single tokens of such small models gain nothing from threads
  options.context = static_cast<int64_t>(n_tokens);
  return options;
}

struct Case {
  std::string name;
  Golden golden{golden_path(name, ".bin")};
  GgufFile file{golden_path(name, ".gguf")};
  explicit Case(std::string case_name) : name(std::move(case_name)) {}

  // A chunk of 1: every token is a decode step.
  std::vector<float> run(KvType kv_type, int64_t chunk) const {
    const std::span<const int32_t> tokens = golden.ints("tokens");
    Engine engine(file, options_for(kv_type, chunk, tokens.size()));
    return run_alone(engine, tokens, chunk > 1 ? std::ssize(tokens) : 0);
  }
};

float largest_magnitude(std::span<const float> values) {
  float largest = 0;
  for (const float value : values) largest = std::max(largest, std::fabs(value));
  return largest;
}

// Differences of two arrays relative to the largest magnitude of the second; infinite when either is not
// finite there.
std::vector<float> relative_differences(std::span<const float> ours, std::span<const float> golden) {
  BOOST_REQUIRE(ours.size() == golden.size());
  const float largest = largest_magnitude(golden);
  std::vector<float> differences;
  for (size_t i = 0; i < ours.size(); ++i) {
    const float difference = std::fabs(ours[i] - golden[i]) / largest;
    differences.push_back(std::isfinite(difference) ? difference : INFINITY);
  }
  return differences;
}

float worst(const std::vector<float>& values) { return *std::ranges::max_element(values); }

// The rows of logits [n_tokens, vocab_size] at the positions whose logits the golden file keeps.
std::vector<float> kept_rows(const Golden& golden, const std::vector<float>& logits) {
  const size_t vocab_size = logits.size() / golden.ints("tokens").size();
  std::vector<float> rows;
  for (const int32_t pos : golden.ints("positions")) {
    const auto row = logits.begin() + static_cast<int64_t>(static_cast<size_t>(pos) * vocab_size);
    rows.insert(rows.end(), row, row + static_cast<int64_t>(vocab_size));
  }
  return rows;
}

double share_of_equal_arg_max(std::span<const int32_t> golden, const std::vector<float>& logits) {
  const int64_t vocab_size = static_cast<int64_t>(logits.size() / golden.size());
  int64_t n_equal = 0;
  for (size_t t = 0; t < golden.size(); ++t) {
    const auto row = logits.begin() + static_cast<int64_t>(t) * vocab_size;
    n_equal += std::max_element(row, row + vocab_size) - row == golden[t];
  }
  return static_cast<double>(n_equal) / static_cast<double>(golden.size());
}

float median(std::vector<float> values) {
  const auto middle = values.begin() + static_cast<int64_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

void check_rounded(const Case& test, KvType kv_type) {
  const std::string suffix = kv_type == KvType::fp8 ? ".fp8" : ".bf16";
  const std::vector<float> logits = test.run(kv_type, 64), rows = kept_rows(test.golden, logits);
  const double equal = share_of_equal_arg_max(test.golden.ints("argmax" + suffix), logits);
  const float typical = median(relative_differences(rows, test.golden.values("logits" + suffix)));
  const std::vector<float> from_exact = relative_differences(rows, test.golden.values("logits"));
  BOOST_TEST(equal >= 0.98);
  BOOST_TEST(typical <= 1e-3f);
  std::printf(
      "%s%s: arg-max equal to the rounded reference's at %.1f %%; deviation from unrounded logits: median "
      "%.2g, "
      "largest %.2g of the largest logit, arg-max equal at %.1f %% (random weights)\n",
      test.name.c_str(), suffix.c_str(), 100 * equal, static_cast<double>(median(from_exact)),
      static_cast<double>(worst(from_exact)),
      100 * share_of_equal_arg_max(test.golden.ints("argmax"), logits));
}

// Collects what the forward pass shows of itself, under the names of the golden records, for the tokens whose
// stages are kept.
class StageCollector {
 public:
  StageCollector(const Golden& golden, const ModelArgs& args) : golden_(golden), args_(args) {}

  void operator()(const Observation& seen) {
    const std::string prefix = "layer." + std::to_string(seen.layer) + ".";
    for (const int32_t pos : golden_.ints("stage_positions")) {
      const auto begin = static_cast<int64_t>(pos) * seen.width;
      if (!seen.ints.empty()) {
        auto& ints = ints_[prefix + seen.name];
        ints.insert(ints.end(), seen.ints.begin() + begin, seen.ints.begin() + begin + seen.width);
      } else {
        auto& values = values_[prefix + seen.name];
        values.insert(values.end(), seen.values.begin() + begin, seen.values.begin() + begin + seen.width);
      }
    }
  }

  // The latent row is seen in two parts: c, and kv, whose end is k_pe.
  std::vector<float> latent_rows(int64_t layer) {
    const std::string prefix = "layer." + std::to_string(layer) + ".";
    const std::vector<float>&c = values_[prefix + "c"], &kv = values_[prefix + "kv"];
    std::vector<float> rows;
    for (size_t i = 0; i < golden_.ints("stage_positions").size(); ++i) {
      const auto at = static_cast<int64_t>(i);
      const int64_t rank = args_.kv_lora_rank, width = rank + args_.qk_rope_head_dim;
      rows.insert(rows.end(), c.begin() + at * rank, c.begin() + (at + 1) * rank);
      rows.insert(rows.end(), kv.begin() + at * width + rank, kv.begin() + (at + 1) * width);
    }
    return rows;
  }

  // With the factors that the golden record includes.
  std::vector<float> index_weights(int64_t layer) {
    std::vector<float> weights = values_["layer." + std::to_string(layer) + ".index_weights"];
    for (float& w : weights) w /= std::sqrt(static_cast<float>(args_.index_n_heads * args_.index_head_dim));
    return weights;
  }

  // Selected positions, -1 after the last.
  std::vector<int32_t> selected(int64_t layer) {
    const std::string prefix = "layer." + std::to_string(layer) + ".";
    std::vector<int32_t> all = ints_[prefix + "selected"];
    const std::vector<int32_t>& counts = ints_[prefix + "n_selected"];
    const size_t topk = all.size() / counts.size();
    for (size_t i = 0; i < all.size(); ++i)
      if (static_cast<int32_t>(i % topk) >= counts[i / topk]) all[i] = -1;
    return all;
  }

  const std::vector<float>& values(const std::string& name) { return values_[name]; }
  const std::vector<int32_t>& ints(const std::string& name) { return ints_[name]; }

 private:
  const Golden& golden_;
  const ModelArgs& args_;
  std::map<std::string, std::vector<float>> values_;
  std::map<std::string, std::vector<int32_t>> ints_;
};

void check_stages(const Case& test) {
  const std::span<const int32_t> tokens = test.golden.ints("tokens");
  Engine engine(test.file, options_for(KvType::f32, 512, tokens.size()));
  StageCollector stages(test.golden, engine.args());
  engine.forward().set_observer(std::ref(stages));
  ByHand(engine).all_logits(tokens);
  const auto check = [&](const std::string& record, const std::vector<float>& ours) {
    BOOST_TEST_CONTEXT(record)
    BOOST_TEST(worst(relative_differences(ours, test.golden.values(record))) <= 1e-5f);
  };
  const auto check_ints = [&](const std::string& record, const std::vector<int32_t>& ours) {
    const std::span<const int32_t> golden = test.golden.ints(record);
    BOOST_TEST(ours == std::vector<int32_t>(golden.begin(), golden.end()), record);
  };
  for (int64_t layer = 0; layer < engine.args().n_layers; ++layer) {
    const std::string prefix = "layer." + std::to_string(layer) + ".";
    for (const char* stage :
         {"attn_norm", "qr", "index_k", "index_q", "q", "attention_out", "ffn_norm", "ffn_out", "h"})
      check(prefix + stage, stages.values(prefix + stage));
    check(prefix + "latent_row", stages.latent_rows(layer));
    check(prefix + "index_weights", stages.index_weights(layer));
    check_ints(prefix + "selected", stages.selected(layer));
    if (layer < engine.args().n_dense_layers) continue;
    check_ints(prefix + "experts", stages.ints(prefix + "experts"));
    check(prefix + "expert_weights", stages.values(prefix + "expert_weights"));
  }
}

}  // namespace

BOOST_DATA_TEST_CASE(unrounded_logits_agree_in_prefill_and_in_decode, boost::unit_test::data::make(kNames),
                     name) {
  const Case test(name);
  for (const int64_t chunk : {512, 1})
    BOOST_TEST(worst(relative_differences(kept_rows(test.golden, test.run(KvType::f32, chunk)),
                                          test.golden.values("logits"))) <= 2e-4f);
}

BOOST_DATA_TEST_CASE(rounded_logits_agree_with_a_reference_that_rounds_alike,
                     boost::unit_test::data::make(kNames) * boost::unit_test::data::make({0, 1}), name,
                     type) {
  check_rounded(Case(name), kRoundedTypes[type]);
}

// 4,700 tokens: past 4,096, where YaRN bites.
BOOST_AUTO_TEST_CASE(a_long_context_agrees) {
  const Case test("long");
  if (!kIsSanitized)
    BOOST_TEST(worst(relative_differences(kept_rows(test.golden, test.run(KvType::f32, 512)),
                                          test.golden.values("logits"))) <= 2e-4f);
  check_rounded(test, KvType::fp8);
}

BOOST_DATA_TEST_CASE(every_stage_agrees, boost::unit_test::data::make({"small", "groups"}), name) {
  check_stages(Case(name));
}

BOOST_DATA_TEST_CASE(rope_frequencies_agree, boost::unit_test::data::make(kNames), name) {
  const Case test(name);
  BOOST_TEST(worst(relative_differences(rope_frequencies(read_model_args(test.file)),
                                        test.golden.values("inv_freq"))) <= 1e-6f);
}

// The figures that the specification states for the 671B model.
BOOST_AUTO_TEST_CASE(the_full_size_models_constants) {
  ModelArgs args;
  args.qk_nope_head_dim = 128, args.qk_rope_head_dim = 64;
  args.rope_theta = 10000, args.rope_factor = 40, args.original_seq_len = 4096, args.mscale = 1;
  BOOST_TEST(std::fabs(args.softmax_scale() - 0.1352338f) < 1e-7f);
  const std::vector<float> frequencies = rope_frequencies(args);
  BOOST_TEST(frequencies.size() == 32u);
  BOOST_TEST(frequencies[10] == std::pow(10000.0f, -20.0f / 64),
             boost::test_tools::tolerance(1e-6f));  // low: as it was
  BOOST_TEST(frequencies[23] == std::pow(10000.0f, -46.0f / 64) / 40,
             boost::test_tools::tolerance(1e-6f));  // high: all of it
  const float ramp = 1.0f / 13;
  BOOST_TEST(frequencies[11] == std::pow(10000.0f, -22.0f / 64) * (ramp / 40 + 1 - ramp),
             boost::test_tools::tolerance(1e-6f));
}

BOOST_AUTO_TEST_SUITE_END()
