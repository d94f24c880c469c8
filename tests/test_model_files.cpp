// Model files that are well-formed GGUF and yet not a model that can run: each is refused with one
// Error{model} that names what is wrong; and those that must be accepted are.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <functional>
#include <string>

#include "base/error.h"
#include "engine/sampler.h"
#include "engine/sequence.h"
#include "tests/support/contains.h"
#include "tests/support/one_row.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(model_files)

namespace {

TinyModel small_shape() {
  TinyModel shape;
  shape.n_layers = 2, shape.n_dense_layers = 1, shape.n_routed_experts = 8;
  return shape;
}

EngineOptions small_context() {
  EngineOptions options;
  options.context = 64;
  options.n_threads = 1;
  return options;
}

// Opens a model of that shape, runs one token and returns its logits.
std::vector<float> run(const TinyModel& shape) {
  const TempDir dir;
  const std::string path = dir.file("model.gguf");
  write_tiny_model(path, shape);
  const GgufFile file(path);
  Engine engine(file, small_context());
  ByHand sequence(engine);
  const int32_t token = 1;
  sequence.sync(std::span(&token, 1));
  return sequence.logits();
}

void check_refused(const TinyModel& shape, const std::string& named) {
  BOOST_TEST_CONTEXT(named)
  BOOST_CHECK_EXCEPTION(run(shape), Error, [&](const Error& error) {
    BOOST_TEST_MESSAGE(error.what());
    return error.kind() == ErrorKind::model && contains(error.what(), named);
  });
}

void check_refused_value(const char* key, uint32_t value) {
  TinyModel shape = small_shape();
  shape.replace_u32[std::string("deepseek32.") + key] = value;
  check_refused(shape, key);
}

}  // namespace

BOOST_AUTO_TEST_CASE(sizes_that_cannot_be_are_refused_by_key) {
  for (const uint32_t n : {0u, 1u, 1000000u})
    check_refused_value("block_count", n);  // 1: the MTP block alone
  for (const uint32_t n : {0u, 65536u}) check_refused_value("expert_count", n);
  for (const uint32_t n : {0u, 9u}) check_refused_value("expert_used_count", n);
  for (const uint32_t n : {0u, 3u, 9u}) check_refused_value("expert_group_count", n);
  for (const uint32_t n : {0u, 5u}) check_refused_value("expert_group_used_count", n);
  for (const uint32_t n : {0u, 1u << 31}) check_refused_value("attention.indexer.top_k", n);
  for (const uint32_t n : {0u, 96u, 32u}) check_refused_value("attention.indexer.key_length", n);
  for (const uint32_t n : {0u, 63u}) check_refused_value("rope.dimension_count", n);
  for (const uint32_t n : {0u, 64u}) check_refused_value("attention.key_length_mla", n);
  check_refused_value("attention.value_length_mla", 0);
  check_refused_value("attention.head_count", 0);
  check_refused_value("expert_gating_func", 1);
  check_refused_value("context_length", 0);
}

BOOST_AUTO_TEST_CASE(sizes_that_the_tensors_contradict_are_refused_by_tensor) {
  const auto refused = [](const char* key, uint32_t value, const char* tensor) {
    TinyModel shape = small_shape();
    shape.replace_u32[std::string("deepseek32.") + key] = value;
    check_refused(shape, tensor);
  };
  refused("attention.head_count", 7, "attn_q_b");
  refused("attention.key_length_mla", 193, "attn_q_b");
  refused("attention.value_length_mla", 64, "attn_v_b");
  refused("attention.q_lora_rank", 128, "attn_q_a_norm");
  refused("attention.kv_lora_rank", 256, "attn_kv_a_norm");
  refused("embedding_length", 512, "token_embd");
  refused("feed_forward_length", 256, "ffn_gate");
  refused("expert_feed_forward_length", 512, "ffn_gate_exps");
  refused("attention.indexer.head_count", 8, "indexer.attn_q_b");
  refused("block_count", 5, "blk.3");
}

BOOST_AUTO_TEST_CASE(a_missing_key_or_tensor_is_named) {
  for (const char* key :
       {"deepseek32.block_count", "deepseek32.attention.q_lora_rank", "deepseek32.attention.indexer.top_k",
        "deepseek32.expert_used_count", "deepseek32.attention.key_length_mla"}) {
    TinyModel shape = small_shape();
    shape.without = {key};
    check_refused(shape, key);
  }
  for (const char* tensor :
       {"token_embd.weight", "output_norm.weight", "blk.0.attn_k_b.weight", "blk.1.ffn_down_exps.weight",
        "blk.1.indexer.k_norm.bias", "blk.0.ffn_up.weight"}) {
    TinyModel shape = small_shape();
    shape.without = {tensor};
    check_refused(shape, tensor);
  }
}

BOOST_AUTO_TEST_CASE(another_architecture_is_refused_by_name) {
  for (const char* architecture : {"llama", "glm-dsa", "deepseek4"}) {
    TinyModel shape = small_shape();
    shape.architecture = architecture;
    check_refused(shape, "general.architecture");
  }
}

BOOST_AUTO_TEST_CASE(keys_that_converters_leave_out_have_defaults) {
  const std::vector<float> expected = run(small_shape());
  TinyModel shape = small_shape();
  shape.without = {"deepseek32.expert_gating_func", "deepseek32.expert_weights_norm",
                   "deepseek32.rope.scaling.yarn_beta_fast", "deepseek32.rope.scaling.yarn_beta_slow",
                   "deepseek32.expert_shared_count"};
  BOOST_TEST(run(shape) == expected);
}

BOOST_AUTO_TEST_CASE(other_shapes_run) {
  const auto check = [](const TinyModel& shape) {
    const std::vector<float> logits = run(shape);
    BOOST_TEST(logits.size() > 256u);
    BOOST_TEST(std::ranges::all_of(logits, [](float logit) { return std::isfinite(logit); }));
  };
  TinyModel shape = small_shape();
  shape.n_heads = 5, shape.n_expert_groups = 1, shape.n_limited_groups = 1, shape.index_topk = 7;
  check(shape);
  shape = small_shape();
  shape.n_shared_experts = 2, shape.has_mtp = false, shape.index_n_heads = 3, shape.index_head_dim = 64;
  check(shape);
  shape = small_shape();
  shape.n_shared_experts = 0, shape.n_dense_layers = 0;
  check(shape);
  shape = small_shape();
  shape.n_dense_layers = 2, shape.kv_lora_rank = 160, shape.v_head_dim = 96, shape.qk_rope_head_dim = 32;
  shape.only_types = {TensorType::bf16};
  check(shape);
  shape = small_shape();
  shape.architecture = "deepseek2", shape.has_indexer = false;
  check(shape);
}

BOOST_AUTO_TEST_CASE(the_mtp_block_changes_nothing) {
  TinyModel shape = small_shape();
  const std::vector<float> with = run(shape);
  shape.has_mtp = false;
  BOOST_TEST(run(shape) == with);
}

// Input 22: the weights hold something that is no number. The run stops with a message.
BOOST_AUTO_TEST_CASE(damaged_weights_stop_the_run) {
  const TempDir dir;
  for (const char* name : {"blk.1.exp_probs_b.bias", "output_norm.weight", "blk.0.attn_norm.weight"}) {
    const TinyModel shape = small_shape();
    const std::string path = dir.file("damaged.gguf");
    write_tiny_model(path, shape);
    uint64_t offset = 0, n_bytes = 0;
    {
      const GgufFile file(path);
      const GgufTensor* tensor = file.find_tensor(name);
      BOOST_REQUIRE(tensor);
      offset = tensor->offset, n_bytes = tensor->n_bytes;
    }
    std::FILE* out = std::fopen(path.c_str(), "r+b");
    BOOST_REQUIRE(out);
    std::fseek(out, static_cast<long>(offset), SEEK_SET);
    const float bad = NAN;
    for (uint64_t i = 0; i < n_bytes; i += sizeof bad) std::fwrite(&bad, sizeof bad, 1, out);
    std::fclose(out);
    const GgufFile file(path);
    Engine engine(file, small_context());
    ByHand sequence(engine);
    const std::vector<int32_t> tokens = {1, 2, 3};
    sequence.sync(tokens);
    OneRow sampler({}, engine.backend());
    const std::vector<float>& logits = sequence.logits();
    if (std::string(name) == "blk.1.exp_probs_b.bias") {
      BOOST_CHECK_NO_THROW(sampler.sample(logits));  // a bias only orders experts: any choice is finite
      continue;
    }
    BOOST_CHECK_EXCEPTION(sampler.sample(logits), Error,
                          [](const Error& error) { return error.kind() == ErrorKind::model; });
  }
}

BOOST_AUTO_TEST_CASE(options_that_do_not_fit_the_model_are_refused_by_flag) {
  const TempDir dir;
  const std::string path = dir.file("model.gguf");
  write_tiny_model(path, small_shape());
  const GgufFile file(path);
  const auto refused = [&](const std::function<void(EngineOptions&)>& change, const char* flag) {
    EngineOptions options = small_context();
    change(options);
    BOOST_CHECK_EXCEPTION(Engine(file, options), Error, [&](const Error& error) {
      return error.kind() == ErrorKind::usage && contains(error.what(), flag);
    });
  };
  refused([](EngineOptions& o) { o.context = 0; }, "--ctx");
  refused([](EngineOptions& o) { o.context = 1 << 20; }, "--ctx");
  refused([](EngineOptions& o) { o.context = 1000, o.topk_buffer = 63; }, "--topk-buffer");
  refused([](EngineOptions& o) { o.chunk = 0; }, "--chunk");
  refused([](EngineOptions& o) { o.backend = "abacus"; }, "--backend");
}

BOOST_AUTO_TEST_CASE(a_prompt_that_does_not_fit_is_refused_with_the_counts) {
  const TempDir dir;
  const std::string path = dir.file("model.gguf");
  write_tiny_model(path, small_shape());
  const GgufFile file(path);
  Engine engine(file, small_context());
  ByHand sequence(engine);
  const auto refused = [&](const std::vector<int32_t>& tokens, ErrorKind kind, const char* part) {
    BOOST_CHECK_EXCEPTION(sequence.sync(tokens), Error, [&](const Error& error) {
      return error.kind() == kind && contains(error.what(), part);
    });
  };
  refused(std::vector<int32_t>(65, 1), ErrorKind::context_full, "65");
  refused({}, ErrorKind::usage, "empty");
  refused({1, -1}, ErrorKind::usage, "-1");
  refused({1, 1 << 20}, ErrorKind::usage, "1048576");
  sequence.sync(std::vector<int32_t>(64, 1));
  BOOST_CHECK_THROW(sequence.step(1), Error);
}

BOOST_AUTO_TEST_SUITE_END()
