// A model whose matrices, those of one layer too, have as many storage types as there are computes what its
// values say: as the model of the same values in f32 does.
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <cmath>
#include <set>

#include "engine/engine.h"
#include "tests/support/company.h"
#include "tests/support/supported_types.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"
#include "tests/support/tiny_sequence.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(mixed_types)

namespace {

// It chooses neither rows nor experts: nothing jumps.
TinyModel smooth_shape() {
  TinyModel shape;
  shape.n_layers = 3, shape.n_dense_layers = 1, shape.has_mtp = false;
  shape.index_topk = 4096;
  shape.n_routed_experts = shape.n_activated_experts = 4;
  shape.n_expert_groups = shape.n_limited_groups = 1;
  shape.only_types = supported_types();
  return shape;
}

std::vector<float> logits_of(const GgufFile& file, int64_t n_prompt) {
  EngineOptions options;
  options.kv_type = KvType::f32;
  options.context = 64;
  Engine engine(file, options);
  return run_alone(engine, random_tokens(40, 1), n_prompt);
}

}  // namespace

BOOST_AUTO_TEST_CASE(every_matrix_is_computed_by_its_own_type) {
  const TempDir dir;
  const std::string mixed_path = dir.file("mixed.gguf"), plain_path = dir.file("plain.gguf");
  const GgufWriter model = tiny_model(smooth_shape());
  model.write(mixed_path);
  model.as_f32().write(plain_path);
  const GgufFile mixed(mixed_path), plain(plain_path);
  std::set<TensorType> used, used_in_layer;
  for (const GgufTensor& tensor : mixed.tensors()) {
    used.insert(tensor.type);
    if (tensor.name.starts_with("blk.1.")) used_in_layer.insert(tensor.type);
  }
  BOOST_TEST(used.size() == supported_types().size());
  BOOST_TEST(used_in_layer.size() >= 15u);
  for (const int64_t n_prompt : {40, 0}) {
    const std::vector<float> ours = logits_of(mixed, n_prompt), expected = logits_of(plain, n_prompt);
    BOOST_REQUIRE(ours.size() == expected.size());
    float largest = 0, worst = 0;
    for (size_t i = 0; i < ours.size(); ++i) {
      largest = std::max(largest, std::fabs(expected[i]));
      worst = std::fabs(ours[i] - expected[i]) <= worst ? worst : std::fabs(ours[i] - expected[i]);
    }
    BOOST_TEST(worst <= 1e-4f * largest);
  }
}

BOOST_AUTO_TEST_SUITE_END()
