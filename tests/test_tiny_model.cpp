// tests/support: random weights of the deviation asked for in every format, and models that open and hold
// what they say.
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include "gguf/gguf.h"
#include "gguf/random_weights.h"
#include "tests/support/supported_types.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"
#include "tests/support/tiny_vocabulary.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(tiny_models)

namespace {

bool is_of_block(const GgufTensor& tensor, const std::string& block) {
  return tensor.name.rfind(block + ".", 0) == 0;
}

// A model small enough to write a dozen of them.
TinyModel small_shape() {
  TinyModel shape;
  shape.n_layers = 3, shape.n_dense_layers = 1, shape.n_routed_experts = 4;
  return shape;
}

}  // namespace

BOOST_AUTO_TEST_CASE(random_weights_have_the_deviation_asked_for) {
  for (const TensorType type : supported_types()) {
    constexpr uint64_t kRows = 256, kCols = 512;
    Rng rng(3);
    const auto bytes = random_weights(type, kRows, kCols, rng, 0.0625f);
    BOOST_REQUIRE(bytes.size() == kRows * row_bytes(type, kCols));
    std::vector<float> row(kCols);
    double sum = 0, sum_of_squares = 0;
    for (uint64_t i = 0; i < kRows; ++i) {
      dequantize_row(type, bytes.data() + i * row_bytes(type, kCols), row.data(), kCols);
      for (const float value : row) sum += value, sum_of_squares += double(value) * value;
    }
    const double n = double(kRows * kCols), mean = sum / n,
                 deviation = std::sqrt(sum_of_squares / n - mean * mean);
    BOOST_TEST_CONTEXT(type_name(type)) {
      BOOST_TEST(std::fabs(deviation / 0.0625 - 1) < 0.04);
      BOOST_TEST(std::fabs(mean / 0.0625) < 0.04);
    }
  }
}

BOOST_AUTO_TEST_CASE(the_seed_decides_every_byte) {
  TinyModel shape = small_shape();
  const Bytes first = tiny_model(shape).image().bytes;
  BOOST_TEST((tiny_model(shape).image().bytes == first));
  shape.seed = 2;
  BOOST_TEST((tiny_model(shape).image().bytes != first));
}

BOOST_AUTO_TEST_CASE(the_default_mixes_types_outside_the_mtp_block) {
  TempDir dir;
  const std::string path = dir.file("tiny.gguf");
  write_tiny_model(path, {});
  BOOST_TEST(std::filesystem::file_size(path) < 20u << 20);
  const GgufFile file(path);
  std::set<TensorType> used;
  for (const GgufTensor& tensor : file.tensors())
    if (!is_of_block(tensor, "blk.5")) used.insert(tensor.type);
  BOOST_TEST(used.size() == 16u);
  BOOST_TEST(file.find_tensor("blk.5.nextn.eh_proj.weight"));
  BOOST_TEST(*file.get_u32("deepseek32.block_count") == 6u);
  BOOST_TEST(*file.get_u32("deepseek32.nextn_predict_layers") == 1u);
  const GgufTensor* k_b = file.find_tensor("blk.0.attn_k_b.weight");
  BOOST_REQUIRE(k_b);
  BOOST_TEST(k_b->ne == (std::array<uint64_t, 4>{128, 512, 8, 1}));
}

BOOST_AUTO_TEST_CASE(counts_of_tensors_follow_the_converter) {
  TinyModel shape = small_shape();
  const auto n_tensors = [&] {
    const GgufImage image = tiny_model(shape).image();
    return GgufFile(image.bytes, "tiny").tensors().size();
  };
  // 3 global; 18 in a dense layer, 23 in one of experts, 4 more in the MTP block (reference: 1391 = 3 + 3 x
  // 18 + 58 x 23).
  BOOST_TEST(n_tensors() == 3u + 18 + 2 * 23 + 23 + 4);
  shape.has_mtp = false;
  BOOST_TEST(n_tensors() == 3u + 18 + 2 * 23);
  shape.has_indexer = false;
  BOOST_TEST(n_tensors() == 3u + 13 + 2 * 18);
  shape.fuse_gate_up = true;
  BOOST_TEST(n_tensors() == 3u + 13 + 2 * 17);
}

BOOST_AUTO_TEST_CASE(variants_hold_what_was_asked) {
  TinyModel shape = small_shape();
  shape.architecture = "deepseek2";
  shape.has_indexer = false;
  shape.fuse_gate_up = true;
  shape.only_types = {TensorType::q4_k};
  shape.types = {{"blk.1.attn_output.weight", TensorType::bf16}};
  shape.without = {"deepseek2.expert_group_count", "blk.1.exp_probs_b.bias"};
  shape.replace_u32 = {{"deepseek2.expert_count", 65536}};
  const GgufImage image = tiny_model(shape).image();
  const GgufFile file(image.bytes, "tiny");
  BOOST_TEST(*file.get_string("general.architecture") == "deepseek2");
  BOOST_TEST(!file.has("deepseek2.attention.indexer.top_k"));
  BOOST_TEST(!file.has("deepseek2.expert_group_count"));
  BOOST_TEST(*file.get_u32("deepseek2.expert_count") == 65536u);
  BOOST_TEST(!file.find_tensor("blk.1.exp_probs_b.bias"));
  BOOST_TEST(!file.find_tensor("blk.1.ffn_up_exps.weight"));
  const GgufTensor* fused = file.find_tensor("blk.1.ffn_gate_up_exps.weight");
  BOOST_REQUIRE(fused);
  BOOST_TEST(fused->ne == (std::array<uint64_t, 4>{256, 512, 4, 1}));
  BOOST_TEST((fused->type == TensorType::q4_k));
  BOOST_TEST((file.find_tensor("blk.1.attn_output.weight")->type == TensorType::bf16));
  // Rows of 128 values have no blocks of 256.
  BOOST_TEST((file.find_tensor("blk.1.attn_k_b.weight")->type == TensorType::q8_0));
}

BOOST_AUTO_TEST_CASE(the_vocabulary_is_sound) {
  const TinyVocabulary vocabulary = tiny_vocabulary();
  BOOST_TEST(vocabulary.types.size() == vocabulary.tokens.size());
  const std::set<std::string> tokens(vocabulary.tokens.begin(), vocabulary.tokens.end());
  BOOST_TEST(tokens.size() == vocabulary.tokens.size());
  for (int byte = 0; byte < 256; ++byte)
    BOOST_TEST(tokens.count(byte_character(static_cast<uint8_t>(byte))) == 1u);
  BOOST_TEST(byte_character(' ') == "Ġ");
  BOOST_TEST(byte_character('\n') == "Ċ");
  BOOST_TEST(byte_character(0xad) == "Ń");
  std::set<std::string> merges;
  for (const std::string& merge : vocabulary.merges) {
    const size_t space = merge.find(' ');
    const std::string left = merge.substr(0, space), right = merge.substr(space + 1);
    BOOST_TEST((tokens.count(left) && tokens.count(right) && tokens.count(left + right)), merge);
    BOOST_TEST(merges.insert(merge).second, merge);
  }
  BOOST_TEST(vocabulary.merges.size() > 300u);
  const auto type_of = [&](const std::string& token) {
    const auto found = std::find(vocabulary.tokens.begin(), vocabulary.tokens.end(), token);
    return vocabulary.types.at(static_cast<size_t>(found - vocabulary.tokens.begin()));
  };
  BOOST_TEST(type_of("<｜User｜>") == 3);
  BOOST_TEST(type_of("<think>") == 4);
  BOOST_TEST(type_of("Ġthe") == 1);
}

BOOST_AUTO_TEST_SUITE_END()
