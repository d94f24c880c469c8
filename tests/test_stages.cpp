// Layers over several devices: wherever the border lies, and with chunks in flight on both sides of it, the
// logits are those of one device to the bit.
#include <boost/test/unit_test.hpp>
#include <cstring>
#include <memory>
#include <vector>

#include "context/latent_cache.h"
#include "model/forward.h"
#include "tests/support/island_backend.h"
#include "tests/support/kept_model.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_session.h"

using namespace dsv32;

namespace {

constexpr int64_t kLayers = 4, kTokens = 120, kPrompt = 100, kContext = 2304;

const std::string& tiny_path() {
  static const KeptModel model(TinyModel{.n_layers = kLayers, .n_dense_layers = 1, .index_topk = 32});
  return model.path;
}

// What may differ without an answer being another. With the border at the end there is one stage.
struct Way {
  int64_t border = kLayers, buffer_rows = 0, chunk = 32;
  unsigned host_layers = 0;  // bit l: the experts of layer l lie in host memory
};

// A model on islands, the first stage ending before the border.
struct Islands {
  Way way;
  GgufFile file{tiny_path()};
  ModelArgs args = read_model_args(file);
  IslandBackend first, second;
  std::vector<StageLayers> stages;
  Weights weights;
  std::unique_ptr<LatentCache> cache;
  std::unique_ptr<Forward> forward;
  std::unique_ptr<Timeline> timeline;

  explicit Islands(const Way& way_) : way(way_), stages{{&first, way.border}} {
    if (way.border < kLayers) stages.push_back({&second, kLayers});
    weights = load_weights(
        file, args,
        {[&](int64_t layer) -> Backend& { return layer < way.border ? first : second; },
         [&](int64_t layer) { return way.host_layers >> layer & 1 ? Place::host : Place::device; }});
    CachePlan plan;
    plan.layout = {KvType::fp8, args.kv_lora_rank, args.qk_rope_head_dim, args.index_head_dim};
    plan.n_layers = kLayers, plan.pool_tokens = plan.max_context = kContext,
    plan.buffer_rows = way.buffer_rows;
    cache = std::make_unique<LatentCache>(stages, plan);
    forward = std::make_unique<Forward>(stages, args, weights, *cache, StageSizes{way.chunk, kContext, 4096});
    timeline = cache->open();
  }
  ~Islands() { cache->close(*timeline); }

  void run(Role role, std::span<const int32_t> tokens) {
    cache->reserve(*timeline, timeline->n_tokens() + std::ssize(tokens));
    forward->run({role, {{timeline.get(), tokens, 1}}});
    cache->append(*timeline, tokens);
  }

  void read(std::span<const int32_t> prompt) {
    for (; !prompt.empty(); prompt = prompt.subspan(std::min(prompt.size(), static_cast<size_t>(way.chunk))))
      run(Role::prefill, prompt.first(std::min(prompt.size(), static_cast<size_t>(way.chunk))));
  }

  // The logits of a prompt's last token, and of each token after it.
  std::vector<float> logits(int64_t n_prompt = kPrompt, int64_t n_tokens = kTokens) {
    const std::vector<int32_t> tokens = random_tokens(n_tokens, 1);
    read(std::span(tokens).first(static_cast<size_t>(n_prompt)));
    std::vector<float> all = forward->logits();
    for (size_t i = static_cast<size_t>(n_prompt); i < tokens.size(); ++i) {
      run(Role::decode, std::span(tokens).subspan(i, 1));
      const std::vector<float> row = forward->logits();
      all.insert(all.end(), row.begin(), row.end());
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
    const std::vector<float> one = Islands({.buffer_rows = buffer_rows}).logits();
    BOOST_TEST(one.size() > 0u);
    for (int64_t border = 1; border < kLayers; ++border)
      BOOST_TEST(same_bits(Islands({.border = border, .buffer_rows = buffer_rows}).logits(), one),
                 "border before layer " << border << ", buffer of " << buffer_rows);
  }
}

BOOST_AUTO_TEST_CASE(experts_of_any_layers_may_lie_in_host_memory) {
  const std::vector<float> one = Islands({}).logits();
  for (unsigned host_layers = 2; host_layers < 1 << kLayers; host_layers += 2)  // layer 0 is dense
    for (const int64_t border : {int64_t{2}, kLayers})
      for (const int64_t chunk : {1, 7, 100})
        BOOST_TEST(
            same_bits(Islands({.border = border, .chunk = chunk, .host_layers = host_layers}).logits(), one),
            "host layers " << host_layers << ", border " << border << ", chunk " << chunk);
}

// A layer goes through more than 2048 tokens in pieces.
BOOST_AUTO_TEST_CASE(a_step_of_several_pieces_equals_small_steps) {
  const std::vector<float> small = Islands({.chunk = 500}).logits(2100, 2102);
  BOOST_TEST(same_bits(
      Islands({.border = 2, .buffer_rows = 40, .chunk = 2100, .host_layers = 4}).logits(2100, 2102), small));
}

// The second device is held while the prompt's chunks are given to the first: nobody waits for it, and
// everything that it will read is its own by then.
BOOST_AUTO_TEST_CASE(chunks_are_in_flight_in_both_stages) {
  const std::vector<int32_t> tokens = random_tokens(kPrompt, 1);
  const auto prompt_logits = [&](Islands& islands, bool holds) {
    if (holds) islands.second.hold();
    size_t n_before = 0;
    for (int64_t at = 0; at < kPrompt; at += islands.way.chunk) {
      islands.run(Role::prefill,
                  std::span(tokens).subspan(static_cast<size_t>(at),
                                            static_cast<size_t>(std::min(islands.way.chunk, kPrompt - at))));
      if (!holds) continue;
      islands.first.download(nullptr, nullptr, 0);  // the chunk has left the first device
      BOOST_TEST(islands.second.n_in_flight() > n_before);
      n_before = islands.second.n_in_flight();
    }
    if (holds) islands.second.let_go();
    return islands.forward->logits();
  };
  Islands one({}), two({.border = 2});
  BOOST_TEST(same_bits(prompt_logits(two, true), prompt_logits(one, false)));
}

BOOST_AUTO_TEST_SUITE_END()
