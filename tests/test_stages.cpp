// Layers over several devices: wherever the border lies, and with chunks in flight on both sides of it, the
// logits are those of one device to the bit.
#include <boost/test/unit_test.hpp>
#include <cstring>
#include <memory>
#include <vector>

#include "context/latent_cache.h"
#include "model/forward.h"
#include "tests/support/island_backend.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"
#include "tests/support/tiny_session.h"

using namespace dsv32;

namespace {

constexpr int64_t kLayers = 4, kTokens = 120, kPrompt = 100, kChunk = 32;

const std::string& tiny_path() {
  static const TempDir dir;
  static const std::string path = [] {
    TinyModel shape;
    shape.n_layers = kLayers, shape.n_dense_layers = 1, shape.index_topk = 32;
    write_tiny_model(dir.file("tiny.gguf"), shape);
    return dir.file("tiny.gguf");
  }();
  return path;
}

// A model on islands, the first stage ending before `border`; with the border at the end there is one stage.
struct Islands {
  GgufFile file{tiny_path()};
  ModelArgs args = read_model_args(file);
  IslandBackend first, second;
  std::vector<StageLayers> stages;
  Weights weights;
  std::unique_ptr<LatentCache> cache;
  std::unique_ptr<Forward> forward;
  std::unique_ptr<Timeline> timeline;

  Islands(int64_t border, int64_t buffer_rows) : stages{{&first, border}} {
    if (border < kLayers) stages.push_back({&second, kLayers});
    weights = load_weights(
        file, args, WeightPlaces{[&](int64_t layer) -> Backend& { return layer < border ? first : second; }});
    CachePlan plan;
    plan.layout = {KvType::fp8, args.kv_lora_rank, args.qk_rope_head_dim, args.index_head_dim};
    plan.n_layers = kLayers, plan.pool_tokens = plan.max_context = 256, plan.buffer_rows = buffer_rows;
    cache = std::make_unique<LatentCache>(stages, plan);
    forward = std::make_unique<Forward>(stages, args, weights, *cache, kChunk, 256);
    timeline = cache->open();
  }
  ~Islands() { cache->close(*timeline); }

  void run(Role role, std::span<const int32_t> tokens) {
    cache->reserve(*timeline, timeline->n_tokens() + std::ssize(tokens));
    forward->run({role, {{timeline.get(), tokens, 1}}});
    cache->append(*timeline, tokens);
  }

  // The logits of each chunk's last token, and of each token after the prompt.
  std::vector<float> logits() {
    const std::vector<int32_t> tokens = random_tokens(kTokens, 1);
    std::vector<float> all;
    const auto keep = [&] {
      const std::vector<float> row = forward->logits();
      all.insert(all.end(), row.begin(), row.end());
    };
    for (int64_t at = 0; at < kPrompt; at += kChunk) {
      run(Role::prefill, std::span(tokens).subspan(static_cast<size_t>(at),
                                                   static_cast<size_t>(std::min(kChunk, kPrompt - at))));
      keep();
    }
    for (size_t i = kPrompt; i < kTokens; ++i) {
      run(Role::decode, std::span(tokens).subspan(i, 1));
      keep();
    }
    return all;
  }
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(stages)

BOOST_AUTO_TEST_CASE(two_devices_that_share_no_memory_equal_one_at_every_border) {
  for (const int64_t buffer_rows : {0, 40}) {
    const std::vector<float> one = Islands(kLayers, buffer_rows).logits();
    BOOST_TEST(one.size() > 0u);
    for (int64_t border = 1; border < kLayers; ++border)
      BOOST_TEST(same_bits(Islands(border, buffer_rows).logits(), one),
                 "border before layer " << border << ", buffer of " << buffer_rows);
  }
}

// The second device is held while the prompt's chunks are given to the first: nobody waits for it, and
// everything that it will read is its own by then.
BOOST_AUTO_TEST_CASE(chunks_are_in_flight_in_both_stages) {
  const std::vector<int32_t> tokens = random_tokens(kPrompt, 1);
  const auto prompt_logits = [&](Islands& islands, bool holds) {
    if (holds) islands.second.hold();
    size_t n_before = 0;
    for (int64_t at = 0; at < kPrompt; at += kChunk) {
      islands.run(Role::prefill,
                  std::span(tokens).subspan(static_cast<size_t>(at),
                                            static_cast<size_t>(std::min(kChunk, kPrompt - at))));
      if (!holds) continue;
      islands.first.download(nullptr, nullptr, 0);  // the chunk has left the first device
      BOOST_TEST(islands.second.n_in_flight() > n_before);
      n_before = islands.second.n_in_flight();
    }
    if (holds) islands.second.let_go();
    return islands.forward->logits();
  };
  Islands one(kLayers, 0), two(2, 0);
  BOOST_TEST(same_bits(prompt_logits(two, true), prompt_logits(one, false)));
}

BOOST_AUTO_TEST_SUITE_END()
