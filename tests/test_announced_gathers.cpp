// A team's forward pass announces what it gathers as devices' inboxes need it (Backend::announce): of a step
// all gathers within its layers or none, in turns, and just before they come. Checked on processors, which
// make no use of it; the members have the bits of one.
#include <array>
#include <memory>
#include <vector>

#include "backend/cpu_backend.h"
#include "backend/team.h"
#include "model/forward.h"
#include "tests/support/load_weights.h"
#include "tests/support/same_bits.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"
#include "tests/support/tiny_sequence.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(announced_gathers)

namespace {

constexpr int64_t kSequences = 6, kPrompt = 40;

// Counts what does not come as announced.
class WatchedDevice : public CpuBackend {
 public:
  WatchedDevice() : CpuBackend(1) {}

  int64_t n_announced = 0, n_wrong = 0;

  // A step ends with both of a layer's gathers for products, and their sums.
  void begin_step() override {
    CpuBackend::begin_step();
    n_wrong += is_open_[0] || is_open_[1] || n_of_step_ % 4 != 0;
    n_of_step_ = 0, last_ = 1;
  }
  void announce(const Gather& op) override {
    const size_t kind = op.sum ? 1 : 0;
    n_wrong += is_open_[kind];
    announced_[kind] = op, is_open_[kind] = true;
  }
  void gather(const Gather& op) override {
    see(op);
    CpuBackend::gather(op);
  }
  // Gathers the hidden values.
  void run_experts(const RunExperts& op) override {
    if (!op.member.is_alone()) see(hidden_values(op));
    CpuBackend::run_experts(op);
  }

 private:
  static Gather hidden_values(const RunExperts& op) {
    const int64_t n_uses = op.n_tokens * op.n_activated, width = op.w2.n_cols;
    auto* whole = reinterpret_cast<float*>(op.hidden);
    Gather gather{op.member, {{nullptr, whole, n_uses, width}, {}}};
    if (op.shared.weight.data)
      gather.pieces[1] = {op.shared.x, whole + n_uses * width, op.n_tokens, op.shared.weight.n_cols};
    return gather;
  }
  void see(const Gather& op) {
    const size_t kind = op.sum ? 1 : 0;
    if (is_open_[kind]) {
      n_wrong += last_ == kind || !is_same(announced_[kind], op);
      last_ = kind, is_open_[kind] = false;
      ++n_announced, ++n_of_step_;
    } else {
      n_wrong += is_open_[1 - kind];
    }
  }
  static bool is_same(const Gather& announced, const Gather& op) {
    for (size_t i = 0; i < 2; ++i) {
      const Gather::Piece &a = announced.pieces[i], &b = op.pieces[i];
      if (a.n_rows != b.n_rows || a.width != b.width || a.whole != b.whole || (a.part && a.part != b.part))
        return false;
    }
    return true;
  }

  std::array<Gather, 2> announced_;  // without a sum, and with one
  std::array<bool, 2> is_open_ = {};
  size_t last_ = 1;
  int64_t n_of_step_ = 0;
};

// The logits of steps of these numbers of tokens; with a block for drafts one guess of each token before.
std::vector<float> logits_of(const GgufFile& file, const ModelArgs& args, int64_t n_members,
                             const std::vector<int64_t>& steps, int64_t expected_gathers) {
  const std::unique_ptr<Team> team = n_members > 1 ? std::make_unique<Team>(n_members) : nullptr;
  std::vector<std::unique_ptr<WatchedDevice>> devices;
  std::vector<StageLayers> stages;
  std::vector<WeightPlaces> places;
  for (int64_t m = 0; m < n_members; ++m) {
    Backend* device = devices.emplace_back(std::make_unique<WatchedDevice>()).get();
    stages.push_back({device, args.n_all_layers(), {team.get(), m}});
    places.push_back(
        {.backend = [device](int64_t) -> Backend& { return *device; }, .member = {team.get(), m}});
  }
  const std::vector<Weights> weights = load_weights(file, args, places);
  CachePlan plan;
  plan.layout = {KvType::fp8, args.kv_lora_rank, args.qk_rope_head_dim, args.index_head_dim};
  plan.is_apart = true, plan.n_layers = args.n_all_layers(), plan.max_seqs = kSequences;
  plan.pool_tokens = 1024, plan.max_context = 128;
  LatentCache cache(stages, plan);
  Forward forward(stages, args, weights, cache, StageSizes{kPrompt, plan.max_context});
  const std::vector<int32_t> tokens = random_tokens(200, 3);
  std::vector<std::unique_ptr<CachedSequence>> sequences;
  for (int64_t i = 0; i < kSequences; ++i) {
    const auto from = tokens.begin() + i;
    forward.run({Role::prefill, {sequences.emplace_back(cache.open()).get()}, {from, from + kPrompt}, 1});
  }
  std::vector<float> all;
  for (auto from = tokens.begin() + 50; const int64_t n : steps) {
    std::vector<CachedSequence*> some;
    for (int64_t i = 0; i < n; ++i) some.push_back(sequences[static_cast<size_t>(i)].get());
    if (args.n_draft_layers > 0) forward.guess(some, {from, from + n}, 0);
    forward.run({Role::decode, some, {from, from + n}, n});
    const std::vector<float> logits = forward.logits();
    all.insert(all.end(), logits.begin(), logits.end());
    from += n;
  }
  for (const auto& sequence : sequences) cache.close(*sequence);
  for (const auto& device : devices) {
    BOOST_TEST(device->n_wrong == 0);
    BOOST_TEST(device->n_announced == (n_members > 1 ? expected_gathers : 0));
  }
  return all;
}

}  // namespace

BOOST_AUTO_TEST_CASE(come_in_turns_and_all_of_a_step) {
  const TempDir dir;
  TinyModel shape;
  shape.n_layers = 4, shape.n_dense_layers = 1;
  write_tiny_model(dir.file("tiny.gguf"), shape);
  const GgufFile file(dir.file("tiny.gguf"));
  const std::vector<int64_t> steps = {1, 2, 3, 4, 5, 6, 4, 1};
  for (const bool has_block : {false, true}) {
    const ModelArgs args = has_block ? read_model_args(file) : read_model_args(file).without_draft();
    const int64_t n_gathers = std::ssize(steps) * 4 * args.n_all_layers();
    const std::vector<float> one = logits_of(file, args, 1, steps, n_gathers);
    for (const int64_t n_members : {2, 4})
      BOOST_TEST(same_bits(logits_of(file, args, n_members, steps, n_gathers), one));
  }
}

BOOST_AUTO_TEST_SUITE_END()
