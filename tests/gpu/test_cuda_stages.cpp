// Layers over two GPUs, or two backends of one, GPUs as a team, and many sequences in one step: the bits of
// each alone.
#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include "model/forward.h"
#include "tests/gpu/two_gpus.h"
#include "tests/support/load_weights.h"
#include "tests/support/many_sequences.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"
#include "tests/support/tiny_sequence.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(gpu_stages, *boost::unit_test::precondition(needs_gpu))

namespace {

constexpr int64_t kLayers = 4, kPrompt = 300, kMadeByDecode = 20, kChunk = 64;

std::string write_model(const TempDir& dir) {
  TinyModel shape;
  shape.n_layers = kLayers, shape.n_dense_layers = 1;
  write_tiny_model(dir.file("tiny.gguf"), shape);
  return dir.file("tiny.gguf");
}

// The logits of the prompt's last token and of each decoded one; the prompt's chunks are given without
// waiting.
std::vector<float> logits_of(const GgufFile& file, int64_t border, int64_t buffer_rows) {
  const ModelArgs args = read_model_args(file).without_draft();
  const std::unique_ptr<Backend> first = make_cuda_backend(0),
                                 second = make_cuda_backend(n_cuda_devices() > 1 ? 1 : 0);
  std::vector<StageLayers> stages{{first.get(), border}};
  if (border < kLayers) stages.push_back({second.get(), kLayers});
  const Weights weights = load_weights(
      file, args, WeightPlaces{[&](int64_t layer) -> Backend& { return layer < border ? *first : *second; }});
  CachePlan plan;
  plan.layout = {KvType::fp8, args.kv_lora_rank, args.qk_rope_head_dim, args.index_head_dim};
  plan.is_apart = true, plan.n_layers = kLayers, plan.buffer_rows = buffer_rows;
  plan.pool_tokens = plan.max_context = 512;
  LatentCache cache(stages, plan);
  Forward forward(stages, args, std::span(&weights, 1), cache, StageSizes{kChunk, plan.max_context});
  const std::unique_ptr<CachedSequence> sequence = cache.open();
  const std::vector<int32_t> tokens = random_tokens(kPrompt + kMadeByDecode, 3);
  const auto run = [&](Role role, int64_t begin, int64_t n) {
    const auto from = tokens.begin() + begin;
    forward.run({role, {sequence.get()}, {from, from + n}, begin + n >= kPrompt ? 1 : 0});
  };
  for (int64_t at = 0; at < kPrompt; at += kChunk) run(Role::prefill, at, std::min(kChunk, kPrompt - at));
  std::vector<float> all = forward.logits();
  for (int64_t i = kPrompt; i < kPrompt + kMadeByDecode; ++i) {
    run(Role::decode, i, 1);
    const std::vector<float> row = forward.logits();
    all.insert(all.end(), row.begin(), row.end());
  }
  cache.close(*sequence);
  return all;
}

}  // namespace

BOOST_AUTO_TEST_CASE(two_stages_equal_one_at_every_border) {
  const TempDir dir;
  const GgufFile file(write_model(dir));
  for (const int64_t buffer_rows : {0, 80}) {
    const std::vector<float> one = logits_of(file, kLayers, buffer_rows);
    for (int64_t border = 1; border < kLayers; ++border) {
      const std::vector<float> two = logits_of(file, border, buffer_rows);
      BOOST_REQUIRE(two.size() == one.size());
      BOOST_TEST(std::memcmp(two.data(), one.data(), one.size() * sizeof(float)) == 0,
                 "border before layer " << border << ", buffer of " << buffer_rows);
    }
  }
}

BOOST_AUTO_TEST_CASE(sequences_at_random_equal_each_alone) {
  const TempDir dir;
  const std::string path = write_model(dir);
  EngineOptions options;
  options.backend = "cuda", options.chunk = 64;
  ManySequences(path, options).run(3000);
  options.topk_buffer = 80;
  ManySequences(path, options).run(3000);
}

// Steps of less than eight sequences are divided by heads, others by tokens.
BOOST_AUTO_TEST_CASE(sequences_of_a_team_equal_each_alone_on_one,
                     *boost::unit_test::precondition(needs_two_gpus)) {
  const TempDir dir;
  const std::string path = write_model(dir);
  EngineOptions one;
  one.backend = "cuda", one.chunk = 64, one.gpus = {0};
  for (const int n_members : {2, 4}) {
    if (n_members > n_cuda_devices()) continue;
    EngineOptions team = one;
    team.split = Split::rows, team.gpus.resize(static_cast<size_t>(n_members));
    std::iota(team.gpus.begin(), team.gpus.end(), 0);
    ManySequences(path, team, 8, &one).run(500);
    ManySequences(path, team, 24, &one).run(500);
    team.topk_buffer = 80;
    ManySequences(path, team, 24, &one).run(500);
  }
}

BOOST_AUTO_TEST_SUITE_END()
