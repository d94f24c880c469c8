// The weights of a team: a member's rows are those of the whole matrices, byte for byte, and it takes the
// bytes that were planned for it.
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <cstring>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "backend/team.h"
#include "base/error.h"
#include "engine/plan.h"
#include "tests/support/island_backend.h"
#include "tests/support/load_weights.h"
#include "tests/support/scaled_model.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"
#include "weights/layer_bytes.h"
#include "weights/shares.h"
#include "weights/synthetic.h"
#include "weights/weights.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(weight_shares)

namespace {

constexpr int64_t kMembers = 2;

// A device that counts the bytes of its weights, and may keep them in bands.
class CountingDevice : public IslandBackend {
 public:
  explicit CountingDevice(bool has_bands) : has_bands_(has_bands) {}

  uint64_t n_bytes() const { return n_bytes_; }

  bool keeps_bands() const override { return has_bands_; }
  void* alloc(Place place, size_t n_bytes, const char* what) override {
    n_bytes_ += n_bytes;
    return IslandBackend::alloc(place, n_bytes, what);
  }
  uint8_t* alloc_weights(Place place, size_t n_bytes, size_t n_part_bytes) override {
    const uint64_t n_before = n_bytes_;
    uint8_t* memory = IslandBackend::alloc_weights(place, n_bytes, n_part_bytes);
    n_bytes_ = n_before + n_bytes;  // not what is behind a matrix
    return memory;
  }
  void put_in_bands(const WeightMatrix& m) override {
    download(nullptr, nullptr, 0);
    const auto n_band_rows = static_cast<size_t>(kBandRows), n_steps = m.row_bytes / m.step_bytes;
    auto* band = const_cast<uint8_t*>(m.data);
    for (int64_t i = 0; i < m.n_mats * m.n_rows; i += kBandRows, band += n_band_rows * m.row_bytes) {
      const std::vector<uint8_t> rows(band, band + n_band_rows * m.row_bytes);
      for (size_t row = 0; row < n_band_rows; ++row)
        for (size_t step = 0; step < n_steps; ++step)
          std::memcpy(band + (step * n_band_rows + row) * m.step_bytes,
                      rows.data() + row * m.row_bytes + step * m.step_bytes, m.step_bytes);
    }
  }

 private:
  const bool has_bands_;
  uint64_t n_bytes_ = 0;
};

enum class Where { mapped, island, banded };

std::unique_ptr<Backend> backend_for(Where where) {
  if (where == Where::mapped) return std::make_unique<CpuBackend>(1);
  return std::make_unique<CountingDevice>(where == Where::banded);
}

WeightPlaces all_on(Backend& backend, const Member& member = {}) {
  return {.backend = [&backend](int64_t) -> Backend& { return backend; }, .member = member};
}

// A device alone and the members of a team.
struct Devices {
  std::unique_ptr<Backend> alone;
  std::vector<std::unique_ptr<Backend>> backends;
  Team team{kMembers};
  std::vector<WeightPlaces> members;

  explicit Devices(Where where) : alone(backend_for(where)) {
    for (int64_t m = 0; m < kMembers; ++m) {
      backends.push_back(backend_for(where));
      members.push_back(all_on(*backends.back(), {&team, m}));
    }
  }
  void wait() {
    alone->download(nullptr, nullptr, 0);
    for (const auto& backend : backends) backend->download(nullptr, nullptr, 0);
  }
};

struct Matrices {
  std::vector<WeightMatrix> whole, divided;

  explicit Matrices(const Weights& weights) {
    whole = {weights.embed, weights.draft.embed, weights.draft.eh_proj};
    divided = {weights.head, weights.draft.head};
    for (const LayerWeights& layer : weights.layers) {
      for (const WeightMatrix& m :
           {layer.wq_a, layer.wq_b, layer.wkv_a, layer.w_uk, layer.w_uv, layer.wo, layer.indexer.wq_b,
            layer.indexer.wk, layer.indexer.weights_proj, layer.experts.gate})
        whole.push_back(m);
      add_mlp(layer.mlp), add_mlp(layer.experts.shared), add_mlp(layer.experts.routed);
    }
  }

 private:
  template <class Mlp>
  void add_mlp(const Mlp& mlp) {
    for (const WeightMatrix& m : {mlp.w1, mlp.w3, mlp.w2}) divided.push_back(m);
  }
};

// Whether each of the matrices has the rows of `whole` from `first` on.
bool has_rows(const WeightMatrix& m, const WeightMatrix& whole, int64_t first) {
  const size_t n_bytes = static_cast<size_t>(m.n_rows) * m.row_bytes;
  bool is_same = !m.data == !whole.data && m.type == whole.type && m.n_cols == whole.n_cols &&
                 m.n_mats == whole.n_mats && m.row_bytes == whole.row_bytes &&
                 m.step_bytes == whole.step_bytes;
  for (int64_t mat = 0; is_same && m.data && mat < m.n_mats; ++mat)
    is_same = std::memcmp(m.row(mat, 0), whole.row(mat, first), n_bytes) == 0;
  return is_same;
}

void check_member(const Weights& member, const Weights& alone, int64_t number) {
  const Matrices ours(member), all(alone);
  for (size_t i = 0; i < all.whole.size(); ++i) {
    BOOST_TEST(ours.whole[i].n_rows == all.whole[i].n_rows);
    BOOST_TEST(ours.whole[i].n_whole_rows == 0);
    BOOST_TEST(has_rows(ours.whole[i], all.whole[i], 0));
  }
  for (size_t i = 0; i < all.divided.size(); ++i) {
    const int64_t n_rows = all.divided[i].n_rows, n_members = divides_rows(n_rows, kMembers) ? kMembers : 1;
    BOOST_TEST(ours.divided[i].n_rows == n_rows / n_members);
    BOOST_TEST(ours.divided[i].whole_rows() == n_rows);
    BOOST_TEST(has_rows(ours.divided[i], all.divided[i], n_members == 1 ? 0 : number * n_rows / n_members));
  }
}

// Two layers, the second with experts, and a block for drafts. Where is_even, tokens are added to the
// vocabulary until a team divides the head.
GgufWriter model_of(TinyModel shape, bool is_even, bool is_tied) {
  shape.n_layers = 2, shape.n_dense_layers = 1, shape.n_routed_experts = 8;
  GgufWriter model = tiny_model(shape);
  std::vector<std::string> heads = {"token_embd.weight", "output.weight"};
  if (shape.has_mtp_head) heads.push_back("blk.2.nextn.shared_head_head.weight");
  if (shape.has_mtp_embed) heads.push_back("blk.2.nextn.embed_tokens.weight");
  for (const std::string& name : heads) {
    GgufWriter::Tensor& tensor = model.tensor(name);
    const size_t n_row_bytes = tensor.data.size() / tensor.ne[1];
    while (is_even && !divides_rows(static_cast<int64_t>(tensor.ne[1]), kMembers)) {
      const Bytes row(tensor.data.begin(), tensor.data.begin() + static_cast<std::ptrdiff_t>(n_row_bytes));
      tensor.data.insert(tensor.data.end(), row.begin(), row.end()), ++tensor.ne[1];
    }
  }
  if (is_tied) model.remove_tensor("output.weight");
  return model;
}

void check_file(const GgufWriter& model) {
  const TempDir dir;
  model.write(dir.file("model.gguf"));
  const GgufFile file(dir.file("model.gguf"));
  const ModelArgs args = read_model_args(file);
  BOOST_TEST_REQUIRE(can_divide(args, kMembers));
  const uint64_t n_planned = total_bytes(share_of(model_bytes(file, args), kMembers));
  BOOST_TEST(n_planned < total_bytes(model_bytes(file, args)));
  for (const Where where : {Where::mapped, Where::island, Where::banded}) {
    Devices devices(where);
    const Weights alone = load_weights(file, args, *devices.alone);
    const std::vector<Weights> weights = load_weights(file, args, devices.members);
    devices.wait();
    BOOST_TEST_REQUIRE(weights.size() == 2u);
    for (size_t m = 0; m < weights.size(); ++m) {
      check_member(weights[m], alone, static_cast<int64_t>(m));
      if (const auto* device = dynamic_cast<CountingDevice*>(devices.backends[m].get()))
        BOOST_TEST(device->n_bytes() == n_planned);
    }
  }
}

}  // namespace

BOOST_AUTO_TEST_CASE(members_of_a_team_have_the_rows_of_the_file) {
  for (const bool is_fused : {false, true})
    for (const bool is_tied : {false, true})
      for (const bool is_even : {false, true}) {
        TinyModel shape;
        shape.fuse_gate_up = is_fused;
        shape.has_mtp_embed = shape.has_mtp_head = is_fused;
        check_file(model_of(shape, is_even, is_tied));
      }
}

// Factors of a head, or of the embedding, are multiplied in while the rows are loaded; those of MLPs stay
// beside them.
BOOST_AUTO_TEST_CASE(members_of_a_team_have_the_rows_of_scaled_matrices) {
  for (const bool is_tied : {false, true}) {
    TinyModel shape;
    shape.only_types = {TensorType::nvfp4}, shape.fuse_gate_up = true;
    GgufWriter model = model_of(shape, true, is_tied);
    take_out_powers(model);
    add_scales(model, is_tied ? "token_embd.scale" : "output.scale", {0.37f});
    check_file(model);
  }
}

// Of each expert the file has the gate's rows, then the up projection's.
BOOST_AUTO_TEST_CASE(members_of_a_team_have_their_rows_of_fused_gate_and_up) {
  const TempDir dir;
  TinyModel shape;
  shape.fuse_gate_up = true;
  model_of(shape, true, false).write(dir.file("model.gguf"));
  const GgufFile file(dir.file("model.gguf"));
  const ModelArgs args = read_model_args(file);
  const int64_t inter = args.moe_inter_dim, n_rows = inter / kMembers;
  const GgufTensor* both = file.find_tensor("blk.1.ffn_gate_up_exps.weight");
  for (const Where where : {Where::mapped, Where::island}) {
    Devices devices(where);
    const std::vector<Weights> weights = load_weights(file, args, devices.members);
    devices.wait();
    for (int64_t m = 0; m < kMembers; ++m) {
      const ExpertStacks& routed = weights[static_cast<size_t>(m)].layers[1].experts.routed;
      const size_t n_row_bytes = routed.w1.row_bytes, n_bytes = static_cast<size_t>(n_rows) * n_row_bytes;
      const auto there = [&](int64_t row) { return both->data + static_cast<size_t>(row) * n_row_bytes; };
      for (int64_t e = 0; e < args.n_routed_experts; ++e) {
        const int64_t gate = 2 * e * inter + m * n_rows, up = gate + inter;
        BOOST_TEST(std::memcmp(routed.w1.row(e, 0), there(gate), n_bytes) == 0);
        BOOST_TEST(std::memcmp(routed.w3.row(e, 0), there(up), n_bytes) == 0);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(the_head_of_a_team_is_a_part_of_the_embedding_where_they_are_tied) {
  const TempDir dir;
  model_of({}, true, true).write(dir.file("model.gguf"));
  const GgufFile file(dir.file("model.gguf"));
  const ModelArgs args = read_model_args(file);
  for (const Where where : {Where::mapped, Where::island, Where::banded}) {
    Devices devices(where);
    const std::vector<Weights> weights = load_weights(file, args, devices.members);
    for (size_t m = 0; m < weights.size(); ++m) {
      const int64_t first = static_cast<int64_t>(m) * args.vocab_size / kMembers;
      BOOST_TEST(weights[m].head.data == weights[m].embed.row(0, first));
      BOOST_TEST(weights[m].draft.head.data == weights[m].head.data);
      BOOST_TEST(weights[m].draft.embed.data == weights[m].embed.data);
    }
  }
}

// All pieces of all members are in one list, whose length does not change.
BOOST_AUTO_TEST_CASE(the_weights_of_a_team_are_loaded_together) {
  const TempDir dir;
  model_of({}, true, false).write(dir.file("model.gguf"));
  const GgufFile file(dir.file("model.gguf"));
  const ModelArgs args = read_model_args(file);
  const auto n_loaded = [&](std::span<const WeightPlaces> members) {
    std::set<uint64_t> n_all;
    load_weights(file, args, members, [&](uint64_t, uint64_t n) { n_all.insert(n); });
    BOOST_TEST(n_all.size() == 1u);
    return *n_all.begin();
  };
  Devices devices(Where::island);
  const std::span<const WeightPlaces> members = devices.members;
  BOOST_TEST(n_loaded(members) == n_loaded(members.first(1)) + n_loaded(members.last(1)));
}

BOOST_AUTO_TEST_CASE(members_of_a_team_have_the_rows_of_random_weights) {
  ModelArgs args = full_size_args(2, 1);
  args.dim = 512, args.inter_dim = 1024, args.moe_inter_dim = 256, args.n_heads = 4, args.q_lora_rank = 256;
  args.index_n_heads = 4, args.n_routed_experts = 8, args.n_expert_groups = 2, args.n_limited_groups = 1;
  args.n_draft_layers = 1;
  const SyntheticTypes types;
  for (const int64_t vocab_size : {1024, 1000}) {
    args.vocab_size = vocab_size;
    const uint64_t n_planned = total_bytes(share_of(model_bytes(args, types), kMembers));
    for (const Where where : {Where::mapped, Where::island, Where::banded}) {
      Devices devices(where);
      const Weights alone = synthetic_weights(args, types, all_on(*devices.alone));
      std::vector<Weights> weights;
      for (const WeightPlaces& places : devices.members)
        weights.push_back(synthetic_weights(args, types, places));
      devices.wait();
      for (size_t m = 0; m < weights.size(); ++m) {
        check_member(weights[m], alone, static_cast<int64_t>(m));
        if (const auto* device = dynamic_cast<CountingDevice*>(devices.backends[m].get()))
          BOOST_TEST(device->n_bytes() == n_planned);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(what_a_member_reads_is_its_share_of_what_one_device_reads) {
  const ModelArgs args = full_size_args(61, 3);
  const ModelBytes whole = model_bytes(args, {});
  for (const int64_t n_members : {2, 4, 8}) {
    const auto n = static_cast<uint64_t>(n_members);
    const ModelBytes share = share_of(whole, n_members);
    for (size_t i = 0; i < whole.layers.size(); ++i) {
      const LayerBytes &ours = share.layers[i], &all = whole.layers[i];
      BOOST_TEST(n * ours.experts == all.experts);
      BOOST_TEST(n * ours.experts_read == all.experts_read);
      BOOST_TEST(n * (ours.core - ours.divided) == n * all.core - n * all.divided);
      BOOST_TEST(n * ours.divided == all.divided);
    }
    BOOST_TEST(share.embedding == whole.embedding);
    BOOST_TEST(n * (share.head - 4 * 7168) == whole.head - 4 * 7168);
  }
  BOOST_TEST(total_bytes(share_of(whole, 1)) == total_bytes(whole));
  BOOST_TEST(share_of(whole, 1).layers[3].link_read == whole.layers[3].link_read);
}

BOOST_AUTO_TEST_CASE(a_model_has_as_many_members_as_divide_its_widths) {
  const ModelArgs full = full_size_args(61, 3);
  for (int64_t n = 0; n < 20; ++n) BOOST_TEST(can_divide(full, n) == (n == 2 || n == 4 || n == 8));
  const auto without = [&](int64_t ModelArgs::*width, int64_t value) {
    ModelArgs args = full;
    args.*width = value;
    return can_divide(args, 2);
  };
  BOOST_TEST(!without(&ModelArgs::n_heads, 127));
  BOOST_TEST(!without(&ModelArgs::dim, 7168 + 16));
  BOOST_TEST(!without(&ModelArgs::inter_dim, 18432 + 16));
  BOOST_TEST(!without(&ModelArgs::moe_inter_dim, 2048 + 64));
  BOOST_TEST(without(&ModelArgs::inter_dim, 0));  // without dense layers
}

// Shares of fewer rows than a band would need other sums.
BOOST_AUTO_TEST_CASE(rows_without_equal_shares_of_bands_are_refused) {
  ModelArgs args = full_size_args(1, 1);
  args.dim = 256, args.inter_dim = 256 + 16, args.vocab_size = 32, args.n_heads = 2, args.q_lora_rank = 256;
  const Devices devices(Where::island);
  BOOST_CHECK_EXCEPTION(
      synthetic_weights(args, {TensorType::q8_0, TensorType::q8_0}, devices.members.front()), Error,
      [](const Error& error) { return error.kind() == ErrorKind::internal; });
}

BOOST_AUTO_TEST_SUITE_END()
