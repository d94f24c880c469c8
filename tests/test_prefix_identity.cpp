// Whose pages they are: only a model of the same bytes and settings finds them, and only once that is known.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/known_prompt.h"
#include "tests/support/load_weights.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(prefix_identity)

using namespace dsv32::known_prompt;

namespace {

// Swaps pieces of 256 bytes of each stack of experts, away from its beginning, middle and end.
void permute_experts(const std::string& path) {
  std::vector<uint64_t> places;
  {
    const GgufFile file(path);
    for (const GgufTensor& tensor : file.tensors())
      if (tensor.name.find("_exps") != std::string::npos)
        places.push_back(tensor.offset + tensor.n_bytes / 4);
  }
  BOOST_REQUIRE(places.size() >= 3u);
  std::fstream bytes(path, std::ios::in | std::ios::out | std::ios::binary);
  std::string pieces(512, '\0');
  for (const uint64_t at : places) {
    bytes.seekg(static_cast<std::streamoff>(at)).read(pieces.data(), 512);
    std::swap_ranges(pieces.begin(), pieces.begin() + 256, pieces.begin() + 256);
    bytes.seekp(static_cast<std::streamoff>(at)).write(pieces.data(), 512);
  }
}

}  // namespace

// What decides the bytes of a page decides who may have it; nothing else does.
BOOST_AUTO_TEST_CASE(only_the_same_model_finds_its_pages) {
  const TempDir dir;
  const std::string cache = dir.file("cache");
  fill(cache);
  const std::vector<int32_t> tokens = leaving_at(kBase);
  const int64_t n_stored = kBase / kPageTokens * kPageTokens;
  const auto n_found = [&](const EngineOptions& options, const std::string& path) {
    const GgufFile file(path);
    Engine engine(file, options);
    ByHand sequence(engine);
    return sequence.sync(tokens);
  };
  EngineOptions same = options_in(cache);
  same.cache->write = WritePolicy::write_back;
  same.cache->limits.max_bytes = 1 << 30;
  same.context = 450, same.n_threads = 1, same.chunk = 100, same.topk_buffer = 40;
  const std::string moved = dir.file("moved.gguf");
  std::filesystem::copy_file(tiny_path(), moved);
  BOOST_TEST(n_found(same, moved) == n_stored);

  EngineOptions other_type = same;
  other_type.kv_type = KvType::bf16;
  BOOST_TEST(n_found(other_type, tiny_path()) == 0);

  EngineOptions drafting = same;  // its pages hold the block for drafts too
  drafting.n_guesses = 1;
  BOOST_TEST(n_found(drafting, tiny_path()) == 0);
  BOOST_TEST(n_found(drafting, tiny_path()) == n_stored);
  BOOST_TEST(n_found(same, tiny_path()) == n_stored);

  TinyModel shape;
  shape.n_layers = 2, shape.n_dense_layers = 1, shape.index_topk = 32;
  const auto other_model = [&](const char* name, const TinyModel& other) {
    write_tiny_model(dir.file(name), other);
    return n_found(same, dir.file(name));
  };
  BOOST_TEST(other_model("same.gguf", shape) == n_stored);
  TinyModel seed = shape, quantised = shape, yarn = shape;
  seed.seed = 2;
  quantised.types["blk.1.attn_output.weight"] = TensorType::f16;
  yarn.original_seq_len = 2048;
  BOOST_TEST(other_model("seed.gguf", seed) == 0);
  BOOST_TEST(other_model("quantised.gguf", quantised) == 0);
  BOOST_TEST(other_model("yarn.gguf", yarn) == 0);

  // Values of experts in another order, in the middle of their tensors.
  const std::string permuted = dir.file("permuted.gguf");
  std::filesystem::copy_file(tiny_path(), permuted);
  permute_experts(permuted);
  BOOST_TEST(n_found(same, permuted) == 0);
}

// Until it is known whose pages they are, prefixes are shared in memory alone; then what was computed is
// stored, and what is stored is found.
BOOST_AUTO_TEST_CASE(nothing_is_found_or_stored_until_the_model_is_known) {
  const TempDir dir;
  const GgufFile file(tiny_path());
  bool is_known = false;
  const auto open = [&] {
    const ModelSource source(
        read_model_args(file), model_bytes(file, read_model_args(file)),
        [&](const ModelArgs& args, const WeightPlaces& places) { return load_weights(file, args, places); },
        [&](const CacheLayout&, const std::string&) {
          return [&] { return is_known ? std::optional(Hash256{1}) : std::nullopt; };
        });
    return std::make_unique<Engine>(source, options_in(dir.file("cache")));
  };
  const int64_t n_stored = kBase / kPageTokens * kPageTokens;
  const auto sync = [](Engine& engine, const std::vector<int32_t>& tokens) {
    ByHand sequence(engine);
    return sequence.sync(tokens);
  };
  {
    const auto engine = open();
    BOOST_TEST(sync(*engine, base()) == 0);
    BOOST_TEST(sync(*engine, leaving_at(kBase)) == n_stored);  // in memory
  }
  {
    const auto engine = open();  // that run ended before it knew
    is_known = true;
    BOOST_TEST(sync(*engine, base()) == 0);
  }
  is_known = false;
  {
    const auto engine = open();
    BOOST_TEST(sync(*engine, leaving_at(100)) == 0);
    is_known = true;  // between two prompts
    BOOST_TEST(sync(*engine, base()) == n_stored);
  }
  is_known = false;
  {
    const auto engine = open();
    BOOST_TEST(sync(*engine, random_tokens(330, 4)) == 0);
    is_known = true;  // only when it ends
  }
  BOOST_TEST(sync(*open(), random_tokens(330, 4)) == 5 * kPageTokens);
}

BOOST_AUTO_TEST_SUITE_END()
