// Layers over several devices: wherever the border lies, and with chunks in flight on both sides of it, the
// logits are those of one device to the bit.
#include <array>
#include <boost/test/unit_test.hpp>
#include <memory>
#include <vector>

#include "backend/team.h"
#include "context/latent_cache.h"
#include "model/forward.h"
#include "tests/support/island_backend.h"
#include "tests/support/load_weights.h"
#include "tests/support/same_bits.h"
#include "tests/support/sanitized.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_file.h"
#include "tests/support/tiny_sequence.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(stages)

namespace {

constexpr int64_t kLayers = 4, kTokens = 120, kPrompt = 100, kContext = 2304;

const std::string& tiny_path() {
  static const TinyFile model(TinyModel{.n_layers = kLayers, .n_dense_layers = 1, .index_topk = 32});
  return model.path;
}

// What may differ without an answer being another. A border at the end is none.
struct Way {
  int64_t border = kLayers, late_border = kLayers, buffer_rows = 0, chunk = 32, max_seqs = 1;
  unsigned host_layers = 0;  // bit l: the experts of layer l lie in host memory
  int64_t n_members = 1;     // of a team
};

// A model on islands, with a border before each stage but the first, or as a team.
struct Islands {
  Way way;
  GgufFile file{tiny_path()};
  ModelArgs args = read_model_args(file).without_draft();
  std::array<IslandBackend, 8> islands;
  IslandBackend &first = islands[0], &second = islands[1], &third = islands[2];
  std::unique_ptr<Team> team;
  std::vector<StageLayers> stages;
  std::vector<Weights> weights;
  std::unique_ptr<LatentCache> cache;
  std::unique_ptr<Forward> forward;
  std::unique_ptr<CachedSequence> sequence;

  explicit Islands(const Way& way_) : way(way_), stages{{&first, way.border}} {
    if (way.border < kLayers) stages.push_back({&second, way.late_border});
    if (way.late_border < kLayers) stages.push_back({&third, kLayers});
    std::vector<WeightPlaces> places{
        {[&](int64_t layer) -> Backend& {
           return layer < way.border ? first : layer < way.late_border ? second : third;
         },
         [&](int64_t layer) { return way.host_layers >> layer & 1 ? Place::host : Place::device; }}};
    if (way.n_members > 1) {
      team = std::make_unique<Team>(way.n_members);
      stages.clear(), places.clear();
      for (int64_t m = 0; m < way.n_members; ++m) {
        IslandBackend& island = islands[static_cast<size_t>(m)];
        stages.push_back({&island, kLayers, {team.get(), m}});
        places.push_back({[&](int64_t) -> Backend& { return island; }});
        places.back().member = stages.back().member;
      }
    }
    weights = load_weights(file, args, places);
    CachePlan plan;
    plan.layout = {KvType::fp8, args.kv_lora_rank, args.qk_rope_head_dim, args.index_head_dim};
    plan.is_apart = way.n_members > 1, plan.n_layers = kLayers,
    plan.pool_tokens = plan.max_context = kContext, plan.buffer_rows = way.buffer_rows,
    plan.max_seqs = way.max_seqs;
    cache = std::make_unique<LatentCache>(stages, plan);
    forward = std::make_unique<Forward>(stages, args, weights, *cache, StageSizes{way.chunk, kContext, 4096});
    sequence = cache->open();
  }
  ~Islands() { cache->close(*sequence); }

  void run(Role role, std::span<const int32_t> tokens, int64_t n_logits = 1) {
    forward->run({role, {sequence.get()}, {tokens.begin(), tokens.end()}, n_logits});
  }

  // A chunk of the prompt, which wants logits at its end.
  void read_chunk(std::span<const int32_t> prompt) {
    const auto left = prompt.subspan(static_cast<size_t>(sequence->n_tokens()));
    const size_t n = std::min(left.size(), static_cast<size_t>(way.chunk));
    run(Role::prefill, left.first(n), n == left.size());
  }
  void read(std::span<const int32_t> prompt) {
    while (sequence->n_tokens() < std::ssize(prompt)) read_chunk(prompt);
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

}  // namespace

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
      for (const int64_t chunk : {1, 7, 100}) {
        if (kIsSanitized && chunk != 7) continue;
        BOOST_TEST(
            same_bits(Islands({.border = border, .chunk = chunk, .host_layers = host_layers}).logits(), one),
            "host layers " << host_layers << ", border " << border << ", chunk " << chunk);
      }
}

// A layer goes through more than 2048 tokens in pieces.
BOOST_AUTO_TEST_CASE(a_step_of_several_pieces_equals_small_steps) {
  const std::vector<float> small = Islands({.chunk = 500}).logits(2100, 2102);
  BOOST_TEST(same_bits(
      Islands({.border = 2, .buffer_rows = 40, .chunk = 2100, .host_layers = 4}).logits(2100, 2102), small));
  BOOST_TEST(
      same_bits(Islands({.buffer_rows = 40, .chunk = 2100, .n_members = 2}).logits(2100, 2102), small));
}

BOOST_AUTO_TEST_CASE(three_devices_equal_one) {
  for (const int64_t buffer_rows : {0, 40}) {
    const std::vector<float> one = Islands({.buffer_rows = buffer_rows}).logits();
    for (const int64_t chunk : {1, 13, 50, 100}) {
      if (kIsSanitized && chunk != 13 && chunk != 100) continue;
      const Way three{.border = 1, .late_border = 3, .buffer_rows = buffer_rows, .chunk = chunk};
      BOOST_TEST(same_bits(Islands(three).logits(), one), "chunks of " << chunk);
    }
  }
}

// Heads, tokens of a prompt, rows of MLPs, experts and head: what each of them divides changes no bit.
BOOST_AUTO_TEST_CASE(a_team_equals_one) {
  for (const int64_t buffer_rows : {0, 40}) {
    const std::vector<float> one = Islands({.buffer_rows = buffer_rows}).logits();
    for (const int64_t n_members : {2, 4, 8})
      for (const int64_t chunk : {1, 13, 50, 100}) {
        if ((kIsSanitized || n_members == 8) && chunk != 50) continue;
        const Way team{.buffer_rows = buffer_rows, .chunk = chunk, .n_members = n_members};
        BOOST_TEST(same_bits(Islands(team).logits(), one), n_members << " members, chunks of " << chunk);
      }
  }
}

// All begin anew, twice, before the step after the one in which one was late.
BOOST_AUTO_TEST_CASE(a_team_begins_anew_after_a_missed_gather) {
  const std::vector<float> expected = Islands({}).logits(kPrompt, kPrompt + 2);
  Islands team({.n_members = 2});
  const std::vector<int32_t> tokens = random_tokens(kPrompt + 2, 1);
  team.read(std::span(tokens).first(kPrompt));
  std::vector<float> all = team.forward->logits();
  for (size_t i = kPrompt; i < tokens.size(); ++i) {
    team.second.has_missed = i == kPrompt;
    team.run(Role::decode, std::span(tokens).subspan(i, 1));
    const std::vector<float> row = team.forward->logits();
    all.insert(all.end(), row.begin(), row.end());
    BOOST_TEST((team.first.n_restarts == 2 && team.second.n_restarts == 2));
  }
  BOOST_TEST(same_bits(all, expected));
}

// A chunk's layers on the second device are computed beside those of the next one on the first.
BOOST_AUTO_TEST_CASE(a_prompt_flows_through_the_stages) {
  Islands islands({.border = 2});
  std::vector<int64_t> layers;
  islands.forward->set_observer([&](const Observation& seen) { layers.push_back(seen.layer); }, {"h"});
  const std::vector<int32_t> tokens = random_tokens(kPrompt, 1);
  const auto layers_of_a_chunk = [&] {
    layers.clear();
    islands.read_chunk(tokens);
    return layers;
  };
  using Layers = std::vector<int64_t>;
  BOOST_TEST((layers_of_a_chunk() == Layers{0, 1}));
  BOOST_TEST(islands.forward->n_under_way(*islands.sequence) == 32);
  BOOST_TEST((layers_of_a_chunk() == Layers{2, 0, 3, 1}));
  BOOST_TEST((layers_of_a_chunk() == Layers{2, 0, 3, 1}));
  BOOST_TEST((layers_of_a_chunk() == Layers{2, 0, 3, 1, 2, 3}));  // the last wants logits
  BOOST_TEST(islands.forward->n_under_way(*islands.sequence) == 0);
}

// Also of what the members add up beside a norm, in steps of one piece.
BOOST_AUTO_TEST_CASE(who_observes_a_team_sees_what_one_device_computes) {
  struct Seen {
    std::string name;
    int64_t layer;
    std::vector<float> values;
    bool operator==(const Seen&) const = default;
  };
  const std::vector<int32_t> tokens = random_tokens(kPrompt, 1);
  const auto observed = [&](int64_t n_members) {
    Islands islands({.n_members = n_members});
    std::vector<Seen> all;
    islands.forward->set_observer([&](const Observation& seen) {
      all.push_back({seen.name, seen.layer, seen.values});
    });
    islands.read(std::span(tokens).first(20));
    islands.run(Role::decode, std::span(tokens).subspan(20, 1));
    return all;
  };
  const std::vector<Seen> one = observed(1), team = observed(2);
  BOOST_REQUIRE(team.size() == one.size());
  for (size_t i = 0; i < one.size(); ++i)
    BOOST_TEST((team[i] == one[i]), one[i].name << " of layer " << one[i].layer << ", " << i);
}

// Between two chunks another sequence decodes, and the one that reads is told of no other rows than its own.
BOOST_AUTO_TEST_CASE(another_sequence_decodes_between_chunks) {
  const std::vector<int32_t> tokens = random_tokens(kTokens, 1), others = random_tokens(kTokens, 2);
  const auto logits = [&](int64_t border, int64_t late_border) {
    Islands islands({.border = border, .late_border = late_border, .max_seqs = 2});
    std::unique_ptr<CachedSequence> other = islands.cache->open();
    std::vector<float> all;
    const auto keep = [&] {
      const std::vector<float> row = islands.forward->logits();
      all.insert(all.end(), row.begin(), row.end());
    };
    islands.read(std::span(others).first(40));
    for (size_t i = 40; islands.sequence->n_tokens() > 0; ++i) {
      std::swap(islands.sequence, other);
      islands.read_chunk(tokens);
      if (islands.sequence->n_tokens() == kTokens) break;
      std::swap(islands.sequence, other);
      islands.run(Role::decode, std::span(others).subspan(i, 1));
      BOOST_TEST(islands.forward->n_under_way(*other) == 0);
      keep();
    }
    keep();
    islands.cache->close(*other);
    return all;
  };
  const std::vector<float> one = logits(kLayers, kLayers);
  BOOST_TEST(same_bits(logits(2, kLayers), one));
  BOOST_TEST(same_bits(logits(1, 2), one));
}

// The second device is held while the prompt's chunks are given to the first: nobody waits for it, and
// everything that it will read is its own by then.
BOOST_AUTO_TEST_CASE(chunks_are_in_flight_in_both_stages) {
  const std::vector<int32_t> tokens = random_tokens(kPrompt, 1);
  Islands one({}), two({.border = 2});
  two.second.hold();
  for (size_t n_before = 0; two.sequence->n_tokens() < kPrompt; n_before = two.second.n_in_flight()) {
    const bool is_first = two.sequence->n_tokens() == 0;
    two.read_chunk(tokens);
    two.first.download(nullptr, nullptr, 0);  // the chunk has left the first device
    BOOST_TEST((is_first || two.second.n_in_flight() > n_before));
  }
  two.second.let_go();
  one.read(tokens);
  BOOST_TEST(same_bits(two.forward->logits(), one.forward->logits()));
}

BOOST_AUTO_TEST_SUITE_END()
