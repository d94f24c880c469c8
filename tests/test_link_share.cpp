// The link's share of host experts (backend/link_share.h) in whole models, on a CPU in the place of devices:
// a sequence's bits follow from which layers' experts are the host's, and from nothing else.
#include <boost/test/unit_test.hpp>
#include <memory>
#include <vector>

#include "backend/link_share.h"
#include "base/error.h"
#include "context/latent_cache.h"
#include "model/forward.h"
#include "tests/support/apart_backend.h"
#include "tests/support/host_experts.h"
#include "tests/support/island_backend.h"
#include "tests/support/load_weights.h"
#include "tests/support/same_bits.h"
#include "tests/support/sanitized.h"
#include "tests/support/tiny_file.h"
#include "tests/support/tiny_sequence.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(link_share_of_host_experts)

namespace {

constexpr int64_t kLayers = 3, kExperts = 40, kInter = 768, kPrompt = 40, kDecoded = 4, kContext = 64;

const std::string& tiny_path() {
  static const TinyFile model(TinyModel{.n_layers = kLayers,
                                        .n_dense_layers = 1,
                                        .moe_inter_dim = kInter,
                                        .index_topk = 32,
                                        .n_routed_experts = kExperts});
  return model.path;
}

struct Way {
  unsigned host_layers = 0;  // bit l: the experts of layer l lie in host memory
  bool by_islands = false;
  int64_t border = kLayers;  // where a second device begins
  int64_t buffer_rows = 0, chunk = 64;
  int64_t n_company = 1;  // sequences of a decode step, the first of which is looked at
};

// The logits of the first sequence's prompt, and of each token after it.
std::vector<float> logits_of(const Way& way) {
  const GgufFile file(tiny_path());
  const ModelArgs args = read_model_args(file).without_draft();
  const auto make_backend = [&]() -> std::unique_ptr<Backend> {
    if (way.by_islands) return std::make_unique<IslandBackend>();
    return std::make_unique<ApartBackend>(true);
  };
  const std::unique_ptr<Backend> first = make_backend(), second = make_backend();
  std::vector<StageLayers> stages{{first.get(), way.border}};
  if (way.border < kLayers) stages.push_back({second.get(), kLayers});
  const Weights weights = load_weights(
      file, args,
      {[&](int64_t layer) -> Backend& { return layer < way.border ? *first : *second; },
       [&](int64_t layer) { return way.host_layers >> layer & 1 ? Place::host : Place::device; }});
  CachePlan plan;
  plan.layout = {KvType::fp8, args.kv_lora_rank, args.qk_rope_head_dim, args.index_head_dim};
  plan.is_apart = true, plan.n_layers = kLayers, plan.max_context = kContext;
  plan.max_seqs = way.n_company, plan.pool_tokens = way.n_company * kContext,
  plan.buffer_rows = way.buffer_rows;
  LatentCache cache(stages, plan);
  uint64_t n_link = 0;
  for (const LayerWeights& layer : weights.layers)
    if (!layer.is_dense) n_link = std::max(n_link, link_window_bytes(layer.experts.routed));
  Forward forward(stages, args, std::span(&weights, 1), cache, StageSizes{64, kContext, n_link});

  std::vector<std::unique_ptr<CachedSequence>> sequences;
  std::vector<std::vector<int32_t>> tokens;
  std::vector<float> all;
  const auto keep = [&] {
    const std::vector<float> rows = forward.logits();
    all.insert(all.end(), rows.begin(), rows.begin() + args.vocab_size);
  };
  for (int64_t s = 0; s < way.n_company; ++s) {
    sequences.push_back(cache.open());
    tokens.push_back(random_tokens(kPrompt + kDecoded, static_cast<uint64_t>(s) + 1));
    for (int64_t at = 0; at < kPrompt; at += way.chunk) {
      const int64_t n = std::min(way.chunk, kPrompt - at);
      const auto chunk = tokens.back().begin() + at;
      forward.run({Role::prefill, {sequences.back().get()}, {chunk, chunk + n}, at + n == kPrompt});
    }
    if (s == 0) keep();
  }
  for (size_t i = kPrompt; i < static_cast<size_t>(kPrompt + kDecoded); ++i) {
    Step step{Role::decode, {}, {}};
    for (size_t s = 0; s < sequences.size(); ++s)
      step.sequences.push_back(sequences[s].get()), step.tokens.push_back(tokens[s][i]);
    forward.run(step), keep();
  }
  for (const auto& sequence : sequences) cache.close(*sequence);
  return all;
}

double relative_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0, difference = 0;
  for (size_t i = 0; i < a.size(); ++i)
    sum += std::pow(b[i], 2), difference += std::pow(double{a[i]} - b[i], 2);
  return std::sqrt(difference / sum);
}

}  // namespace

// The later of the two is done as early as whole units allow, and never later than the host alone.
BOOST_AUTO_TEST_CASE(the_share_lets_both_end_together) {
  for (const auto& [inter_dim, n_share] : std::initializer_list<std::pair<int64_t, int64_t>>{{2048, 512},
                                                                                             {1536, 256},
                                                                                             {1792, 512},
                                                                                             {1024, 256},
                                                                                             {768, 256},
                                                                                             {512, 0},
                                                                                             {256, 0},
                                                                                             {1000, 0},
                                                                                             {0, 0}})
    BOOST_TEST(choose_link_share(inter_dim) == n_share, inter_dim);
  const HostExpertStacks with_codes(TensorType::q4_k, 2, 256, 1024, 1),
      without(TensorType::f16, 2, 256, 1024, 1);
  BOOST_TEST(link_share(with_codes.stacks) == 256);
  BOOST_TEST(link_share(without.stacks) == 0);
}

// The matrices of a round follow one another and end where they may.
BOOST_AUTO_TEST_CASE(a_round_has_room_in_the_window) {
  for (const TensorType type : {TensorType::q4_k, TensorType::q6_k, TensorType::q8_0, TensorType::iq2_xs})
    for (const int64_t n_experts : {5, 40}) {
      const HostExpertStacks experts(type, n_experts, 256, kInter, 1);
      RunExperts op{experts.stacks};
      op.n_link_bytes = link_window_bytes(op);
      std::vector<uint8_t> window(op.n_link_bytes + 77);
      op.window = window.data() + 5, op.n_window_bytes = op.n_link_bytes + 60;
      const ExpertStacks there = in_link_window(link_part(op, link_share(op)), link_window(op));
      const uint8_t* end = link_window(op);
      for (const WeightMatrix* w : {&there.w1, &there.w3, &there.w2}) {
        BOOST_TEST(w->n_mats == std::min(n_experts, kLinkExperts));
        BOOST_TEST((w->data >= end && reinterpret_cast<uintptr_t>(w->data) % kRingAlignment == 0));
        end = w->data + static_cast<size_t>(w->n_mats) * w->mat_bytes;
      }
      BOOST_TEST((end + 256 <= op.window + op.n_window_bytes));
      op.n_link_bytes -= 3 * kRingAlignment;
      BOOST_CHECK_THROW(link_window(op), Error);
    }
}

BOOST_AUTO_TEST_CASE(bits_follow_from_the_host_layers_alone) {
  const std::vector<float> none = logits_of({});
  for (const unsigned host_layers : {2u, 4u, 6u}) {
    if (kIsSanitized && host_layers != 6) continue;
    const Way plain{.host_layers = host_layers};
    const std::vector<float> expected = logits_of(plain);
    const double difference = relative_difference(expected, none);
    BOOST_TEST((difference > 0 && difference < 1e-3), "host layers " << host_layers << ": " << difference);
    const auto is_same = [&](const char* what, const Way& other) {
      BOOST_TEST(same_bits(logits_of(other), expected), what << ", host layers " << host_layers);
    };
    Way company = plain, islands = plain, all = plain;
    company.n_company = 24, islands.by_islands = true;
    all = {.host_layers = host_layers,
           .by_islands = true,
           .border = 2,
           .buffer_rows = 36,
           .chunk = 13,
           .n_company = 24};
    is_same("24 sequences", company);
    is_same("islands", islands);
    is_same("islands, two devices, a buffer, chunks of 13, 24 sequences", all);
  }
  const std::vector<float> expected = logits_of({.host_layers = 6});
  for (const Way& way : {Way{.chunk = 7}, Way{.buffer_rows = 36}, Way{.border = 2}})
    for (const bool by_islands : {false, true}) {
      Way other = way;
      other.host_layers = 6, other.by_islands = by_islands;
      BOOST_TEST(same_bits(logits_of(other), expected),
                 "chunk " << way.chunk << ", buffer " << way.buffer_rows << ", border " << way.border);
    }
}

BOOST_AUTO_TEST_SUITE_END()
