// Files of one model as different converters write it: each says what the plain file says, bit for bit where
// only the form differs.
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>

#include "base/error.h"
#include "engine/engine.h"
#include "tests/support/company.h"
#include "tests/support/contains.h"
#include "tests/support/island_backend.h"
#include "tests/support/scaled_model.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"
#include "tests/support/tiny_sequence.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(file_variants)

namespace {

using Change = std::function<void(GgufWriter&)>;

constexpr int64_t kTokens = 24, kPrompt = 16;

// Two layers, the second with experts, and positions chosen among after the first eight.
TinyModel two_layers(std::vector<TensorType> types = {}) {
  TinyModel shape;
  shape.n_layers = 2, shape.n_dense_layers = 1, shape.n_routed_experts = 8, shape.index_topk = 8;
  shape.only_types = std::move(types);
  return shape;
}

struct Where {
  bool is_apart = false;  // on a device, where all is loaded
  int64_t n_cpu_experts = 0;
  KvType kv_type = KvType::fp8;
};

struct Answer {
  std::vector<float> logits;  // of every token: a prompt's and decoded ones
  std::vector<std::string> warnings;
};

Answer answer_of(const GgufWriter& model, const Where& where = {}) {
  const TempDir dir;
  model.write(dir.file("model.gguf"));
  const GgufFile file(dir.file("model.gguf"));
  EngineOptions options;
  options.context = 64, options.kv_type = where.kv_type;
  if (where.is_apart) options.gpus = {0}, options.n_cpu_experts = where.n_cpu_experts;
  if (where.is_apart) options.backends = {std::make_shared<IslandBackend>()};
  Engine engine(file, options);
  return {run_alone(engine, random_tokens(kTokens, 1), kPrompt), engine.warnings()};
}

// On the CPU, which computes with the mapped file, and on a device.
void check_same(const GgufWriter& ours, const GgufWriter& expected, int64_t n_cpu_experts = 0) {
  for (const bool is_apart : {false, true}) {
    const Where where{is_apart, is_apart ? n_cpu_experts : 0};
    const std::vector<float> logits = answer_of(ours, where).logits;
    BOOST_TEST(std::ranges::all_of(logits, [](float logit) { return std::isfinite(logit); }));
    BOOST_TEST((logits == answer_of(expected, where).logits), (is_apart ? "on a device" : "on the CPU"));
  }
}

void check_same(const TinyModel& shape, const Change& change) {
  GgufWriter ours = tiny_model(shape);
  change(ours);
  check_same(ours, tiny_model(shape));
}

void check_refused(const TinyModel& shape, const Change& change, const std::vector<std::string>& named) {
  GgufWriter model = tiny_model(shape);
  change(model);
  BOOST_CHECK_EXCEPTION(answer_of(model), Error, [&](const Error& error) {
    BOOST_TEST_MESSAGE(error.what());
    return error.kind() == ErrorKind::model &&
           std::ranges::all_of(named, [&](const std::string& part) { return contains(error.what(), part); });
  });
}

// Any factor in a matrix's values.
float factor_of(size_t i) { return 0.3f + 0.17f * static_cast<float>(i % 7); }

}  // namespace

BOOST_AUTO_TEST_CASE(factors_that_are_powers_of_two_change_no_bit) {
  for (const bool is_fused : {false, true}) {
    TinyModel shape = two_layers({TensorType::nvfp4});
    shape.n_layers = 3, shape.fuse_gate_up = is_fused;
    GgufWriter scaled = tiny_model(shape);
    take_out_powers(scaled);
    for (const int64_t n_cpu_experts : {0, 1}) check_same(scaled, tiny_model(shape), n_cpu_experts);
  }
  TinyModel shape = two_layers({TensorType::nvfp4});  // experts so wide that the link has a share of them
  shape.moe_inter_dim = 1024, shape.n_routed_experts = 4, shape.n_expert_groups = shape.n_limited_groups = 1;
  GgufWriter scaled = tiny_model(shape);
  take_out_powers(scaled);
  check_same(scaled, tiny_model(shape), 1);
}

BOOST_AUTO_TEST_CASE(factors_of_one_are_none) {
  check_same(two_layers({TensorType::nvfp4}), [](GgufWriter& model) {
    add_scales(model, "blk.1.ffn_up_exps.scale", std::vector<float>(8, 1));
    add_scales(model, "blk.0.attn_output.scale", {1});
    add_scales(model, "output.weight.scale", {1});
  });
}

// As the f32 values that matrices and factors stand for. Nothing is chosen, so that nothing jumps.
BOOST_AUTO_TEST_CASE(any_factors_are_those_of_the_values) {
  TinyModel shape = two_layers({TensorType::nvfp4, TensorType::q4_k});
  shape.index_topk = 4096, shape.n_activated_experts = shape.n_routed_experts;
  shape.n_expert_groups = shape.n_limited_groups = 1;
  GgufWriter scaled = tiny_model(shape), plain = scaled.as_f32();
  size_t n_scaled = 0;
  const std::vector<GgufWriter::Tensor> matrices = scaled.tensors();
  for (const GgufWriter::Tensor& tensor : matrices) {
    if (!is_ffn(tensor.name) || contains(tensor.name, "blk.2.")) continue;
    std::vector<float> scales, values = tensor.values();
    for (size_t mat = 0; mat < (tensor.ne.size() > 2 ? tensor.ne[2] : 1); ++mat)
      scales.push_back(factor_of(mat + n_scaled));
    for (size_t i = 0; i < values.size(); ++i) values[i] *= scales[i * scales.size() / values.size()];
    plain.tensor(tensor.name).set(TensorType::f32, values);
    add_scales(scaled, tensor.name.substr(0, tensor.name.rfind('.')) + ".scale", scales);
    ++n_scaled;
  }
  BOOST_TEST(n_scaled == 9u);
  for (const Where& where : {Where{false, 0, KvType::f32}, {true, 0, KvType::f32}, {true, 1, KvType::f32}}) {
    const std::vector<float> ours = answer_of(scaled, where).logits,
                             expected = answer_of(plain, where).logits;
    float largest = 0, worst = 0;
    for (size_t i = 0; i < ours.size(); ++i) {
      largest = std::max(largest, std::fabs(expected[i]));
      worst = std::max(worst, std::fabs(ours[i] - expected[i]));
    }
    BOOST_TEST(worst <= 1e-5f * largest);
  }
}

// Matrices that no gate follows are multiplied when they are loaded, and are f16 from then on.
BOOST_AUTO_TEST_CASE(factors_of_other_matrices_are_multiplied_in) {
  GgufWriter scaled = tiny_model(two_layers({TensorType::nvfp4})), plain = scaled;
  for (const char* name :
       {"token_embd", "output", "blk.0.attn_q_a", "blk.0.attn_q_b", "blk.1.attn_kv_a_mqa", "blk.0.attn_k_b",
        "blk.1.attn_v_b", "blk.1.attn_output", "blk.0.indexer.attn_q_b", "blk.1.indexer.attn_k"}) {
    const std::string weight = std::string(name) + ".weight";
    std::vector<float> values = scaled.tensor(weight).values();
    for (float& value : values) value *= 0.37f;
    plain.tensor(weight).set(TensorType::f16, values);
    add_scales(scaled, std::string(name) + ".scale", {0.37f});
  }
  check_same(scaled, plain);
}

BOOST_AUTO_TEST_CASE(factors_that_cannot_be_are_refused) {
  const auto with = [](std::vector<float> scales) {
    return [scales](GgufWriter& model) { add_scales(model, "blk.1.ffn_up_exps.scale", scales); };
  };
  check_refused(two_layers(), with(std::vector<float>(7, 2)), {"blk.1.ffn_up_exps.scale", "[7]", "[8]"});
  check_refused(two_layers(), with(std::vector<float>(8, NAN)), {"blk.1.ffn_up_exps.scale", "finite"});
}

namespace {

// attn_kv_b of a layer: per head the K part's rows, transposed back, and the V part's.
void join_kv_b(GgufWriter& model, const TinyModel& shape, int layer) {
  const std::string blk = "blk." + std::to_string(layer) + ".";
  const GgufWriter::Tensor k = model.tensor(blk + "attn_k_b.weight"),
                           v = model.tensor(blk + "attn_v_b.weight");
  const size_t nope = shape.qk_nope_head_dim, rank = shape.kv_lora_rank, v_dim = shape.v_head_dim;
  const std::vector<float> k_values = k.values(), v_values = v.values();
  std::vector<float> values;
  for (size_t head = 0; head < shape.n_heads; ++head) {
    for (size_t c = 0; c < nope; ++c)
      for (size_t r = 0; r < rank; ++r) values.push_back(k_values[(head * rank + r) * nope + c]);
    const auto first = v_values.begin() + static_cast<std::ptrdiff_t>(head * v_dim * rank);
    values.insert(values.end(), first, first + static_cast<std::ptrdiff_t>(v_dim * rank));
  }
  GgufWriter::Tensor both{blk + "attn_kv_b.weight", v.type, {rank, shape.n_heads * (nope + v_dim)}, {}};
  both.set(v.type, values);
  model.remove_tensor(k.name), model.remove_tensor(v.name);
  model.tensors().push_back(both);
}

}  // namespace

// Floats keep their bits on the way.
BOOST_AUTO_TEST_CASE(attn_kv_b_in_one_piece_is_taken_apart) {
  for (const TensorType type : {TensorType::f32, TensorType::f16, TensorType::bf16}) {
    TinyModel shape = two_layers();
    for (const int layer : {0, 1, 2})
      for (const char* name : {"attn_k_b", "attn_v_b"})
        shape.types["blk." + std::to_string(layer) + "." + name + ".weight"] = type;
    check_same(shape, [&](GgufWriter& model) {
      for (const int layer : {0, 1}) join_kv_b(model, shape, layer);
    });
  }
}

// As the K part in f16, and the V part as it lies.
BOOST_AUTO_TEST_CASE(a_quantised_attn_kv_b_is_taken_apart) {
  const TinyModel shape = two_layers();
  for (const TensorType type : {TensorType::q8_0, TensorType::q4_k}) {
    GgufWriter whole = tiny_model(shape), plain = whole;
    const size_t nope = shape.qk_nope_head_dim, rank = shape.kv_lora_rank, v_dim = shape.v_head_dim,
                 n_rows = shape.n_heads * (nope + v_dim), n_row_bytes = row_bytes(type, 512);
    Rng rng(1);
    GgufWriter::Tensor both{
        "blk.0.attn_kv_b.weight", type, {rank, n_rows}, random_weights(type, n_rows, rank, rng, 0.05f)};
    const std::vector<float> values = both.values();
    std::vector<float> k_values;
    Bytes v_rows;
    for (size_t head = 0; head < shape.n_heads; ++head) {
      const size_t first = head * (nope + v_dim);
      for (size_t r = 0; r < rank; ++r)
        for (size_t c = 0; c < nope; ++c) k_values.push_back(values[(first + c) * rank + r]);
      const auto v = both.data.begin() + static_cast<std::ptrdiff_t>((first + nope) * n_row_bytes);
      v_rows.insert(v_rows.end(), v, v + static_cast<std::ptrdiff_t>(v_dim * n_row_bytes));
    }
    plain.tensor("blk.0.attn_k_b.weight").set(TensorType::f16, k_values);
    plain.tensor("blk.0.attn_v_b.weight").type = type, plain.tensor("blk.0.attn_v_b.weight").data = v_rows;
    whole.remove_tensor("blk.0.attn_k_b.weight"), whole.remove_tensor("blk.0.attn_v_b.weight");
    whole.tensors().push_back(both);
    check_same(whole, plain);
  }
}

// The lengths of a head stand under other keys there, and those of the latent row nowhere.
BOOST_AUTO_TEST_CASE(files_from_before_the_split_have_other_keys) {
  TinyModel shape = two_layers({TensorType::f16});
  shape.architecture = "deepseek2", shape.has_indexer = false, shape.has_mtp = false;
  const GgufWriter plain = tiny_model(shape);
  shape.without = {"deepseek2.attention.key_length_mla", "deepseek2.attention.value_length_mla"};
  shape.replace_u32 = {{"deepseek2.attention.head_count_kv", shape.n_heads},
                       {"deepseek2.attention.key_length", 192},
                       {"deepseek2.attention.value_length", 128}};
  GgufWriter old = tiny_model(shape);
  for (const int layer : {0, 1}) join_kv_b(old, shape, layer);
  check_same(old, plain);
}

// ik_llama.cpp's way: all heads' rows in one matrix, and attn_kv_b beside them.
BOOST_AUTO_TEST_CASE(matrices_of_heads_may_be_one_matrix) {
  check_same(two_layers(), [](GgufWriter& model) {
    for (const char* name : {"blk.0.attn_k_b.weight", "blk.1.attn_v_b.weight"}) {
      std::vector<uint64_t>& ne = model.tensor(name).ne;
      ne = {ne[0], ne[1] * ne[2]};
    }
    model.add_tensor("blk.0.attn_kv_b.weight", TensorType::f32, {512, 8 * 256}, Bytes(4 * 512 * 8 * 256));
  });
}

BOOST_AUTO_TEST_CASE(the_routers_bias_has_three_names_and_must_be_there) {
  for (const char* name : {"blk.1.exp_probs_b.weight", "blk.1.exp_probs_b"})
    check_same(two_layers(), [=](GgufWriter& model) { model.tensor("blk.1.exp_probs_b.bias").name = name; });
  check_refused(two_layers(), [](GgufWriter& model) { model.remove_tensor("blk.1.exp_probs_b.bias"); },
                {"blk.1.exp_probs_b.bias is missing"});
}

BOOST_AUTO_TEST_CASE(deepseek2_with_an_indexer_uses_it) {
  TinyModel shape = two_layers();
  const GgufWriter expected = tiny_model(shape);
  shape.architecture = "deepseek2";
  const GgufWriter ours = tiny_model(shape);
  check_same(ours, expected);
  BOOST_TEST(answer_of(ours).warnings.empty());
  shape.has_indexer = false;
  BOOST_TEST((answer_of(tiny_model(shape)).logits != answer_of(expected).logits));
}

BOOST_AUTO_TEST_CASE(scaling_without_its_kind_is_yarn) {
  TinyModel shape = two_layers();
  const std::vector<float> expected = answer_of(tiny_model(shape)).logits;
  shape.without = {"deepseek32.rope.scaling.type"};
  const Answer found = answer_of(tiny_model(shape));
  BOOST_TEST((found.logits == expected));
  BOOST_REQUIRE(found.warnings.size() == 1u);
  BOOST_TEST(contains(found.warnings.front(), "rope.scaling.type"));
}

BOOST_AUTO_TEST_CASE(layers_without_an_indexer_of_their_own_are_refused) {
  check_same(two_layers(), [](GgufWriter& model) {
    model.add_array("deepseek32.attention.indexer.types", std::vector<uint32_t>{1, 1});
  });
  check_refused(two_layers(),
                [](GgufWriter& model) {
                  model.add_array("deepseek32.attention.indexer.types", std::vector<uint32_t>{1, 0});
                },
                {"attention.indexer.types is 0 for layer 1"});
}

// Layer 1 would be taken for the block for drafts, or be behind the last block.
BOOST_AUTO_TEST_CASE(a_count_that_drops_a_layer_is_refused) {
  for (const bool has_mtp : {false, true}) {
    TinyModel shape = two_layers();
    shape.has_mtp = has_mtp;
    shape.replace_u32 = {{"deepseek32.block_count", has_mtp ? 2 : 1}};
    check_refused(shape, [](GgufWriter&) {}, {"block_count", "is 1", "blk.1"});
  }
}

BOOST_AUTO_TEST_CASE(a_file_of_the_block_for_drafts_alone_says_so) {
  check_refused(two_layers(),
                [](GgufWriter& model) {
                  std::erase_if(model.tensors(), [](const GgufWriter::Tensor& tensor) {
                    return tensor.name.starts_with("blk.0.") || tensor.name.starts_with("blk.1.");
                  });
                },
                {"nothing but the block for drafts (MTP), blk.2"});
}

BOOST_AUTO_TEST_CASE(tensors_of_layers_that_nothing_reads_are_refused_by_name) {
  const auto with = [](std::vector<std::string> names) {
    return [names](GgufWriter& model) {
      for (const std::string& name : names) model.add_tensor(name, TensorType::f32, {256}, Bytes(1024));
    };
  };
  check_refused(two_layers(), with({"blk.0.attn_q_a.bias", "blk.1.post_attention_norm.weight"}),
                {"blk.0.attn_q_a.bias, blk.1.post_attention_norm.weight"});
  check_refused(two_layers(), with({"rope_freqs.weight"}), {"rope_freqs.weight"});
  check_refused(two_layers(), with({"output.bias"}), {"output.bias"});
  TinyModel dense = two_layers();
  dense.architecture = "deepseek2", dense.has_indexer = false;
  check_refused(dense, with({"blk.1.indexer.attn_k.weight"}), {"blk.1.indexer.attn_k.weight"});

  check_same(two_layers(), with({"blk.2.attn_q_a.bias", "blk.0.attn_output.input_scale"}));
  GgufWriter model = tiny_model(two_layers());
  with({"v.patch_embd.weight"})(model);
  const std::vector<std::string> warnings = answer_of(model).warnings;
  BOOST_REQUIRE(warnings.size() == 1u);
  BOOST_TEST(contains(warnings.front(), "v.patch_embd.weight"));
}

BOOST_AUTO_TEST_CASE(types_count_where_tensors_are_read) {
  constexpr auto kTq1 = static_cast<TensorType>(34), kI32 = static_cast<TensorType>(26),
                 kNewer = static_cast<TensorType>(1000);
  check_same(two_layers(), [&](GgufWriter& model) {
    model.tensor("blk.2.ffn_up_exps.weight").type = kTq1;
    model.tensor("blk.2.attn_output.weight").type = kNewer;
    model.add_tensor("blk.2.tokens", kI32, {4}, Bytes(16));
  });
  for (const auto& [type, name] : {std::pair{kTq1, "type TQ1_0"}, {kI32, "type I32"}, {kNewer, "type 1000"}})
    check_refused(two_layers(),
                  [type = type](GgufWriter& model) { model.tensor("blk.1.attn_output.weight").type = type; },
                  {"blk.1.attn_output.weight has ", name, "cannot read"});
}

BOOST_AUTO_TEST_SUITE_END()
