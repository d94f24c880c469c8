// The block for drafts in a model's file or in one of its own: what is loaded, where it lies, what is
// refused.
#include <boost/test/unit_test.hpp>
#include <cstring>
#include <memory>

#include "base/error.h"
#include "engine/engine.h"
#include "engine/sequence.h"
#include "tests/support/company.h"
#include "tests/support/contains.h"
#include "tests/support/island_backend.h"
#include "tests/support/load_weights.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_file.h"
#include "weights/weights.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(draft_file)

namespace {

TinyModel shape_of(bool has_block) {
  TinyModel shape = least_shape();
  shape.has_mtp = has_block;
  return shape;
}

// The same model in two files, as the converter writes them: one without its block, and one of the block,
// with the model's embedding beside it.
struct TwoFiles {
  TempDir dir;
  std::string model = dir.file("model.gguf"), block = dir.file("block.gguf"), whole = dir.file("whole.gguf");

  TwoFiles() {
    write_tiny_model(model, shape_of(false));
    write_tiny_model(whole, shape_of(true));
    write_block(shape_of(true));
  }
  void write_block(const TinyModel& shape) const {
    GgufWriter writer = tiny_model(shape);
    std::erase_if(writer.tensors(), [](const GgufWriter::Tensor& tensor) {
      return !tensor.name.starts_with("blk.2.") && !tensor.name.starts_with("token_embd");
    });
    writer.write(block);
  }
};

void refused(const std::function<void()>& act, const std::vector<std::string>& parts) {
  BOOST_CHECK_EXCEPTION(act(), Error, [&](const Error& error) {
    const std::string text = std::string(error.what()) + " | " + error.hint();
    BOOST_TEST(!contains(text, "\n"));
    for (const std::string& part : parts) BOOST_TEST(contains(text, part), text << " names " << part);
    return error.kind() == ErrorKind::model;
  });
}

std::vector<uint8_t> bytes_of(const WeightMatrix& m) {
  return {m.data, m.data + static_cast<size_t>(m.n_rows * m.n_mats) * m.row_bytes};
}
std::vector<uint8_t> bytes_of(const GgufFile& file, const std::string& name) {
  const GgufTensor* tensor = file.find_tensor(name);
  return tensor ? std::vector<uint8_t>(tensor->data, tensor->data + tensor->n_bytes) : std::vector<uint8_t>();
}
std::vector<uint8_t> bytes_of(const Vector& vector) {
  const auto* data = reinterpret_cast<const uint8_t*>(vector.data());
  return {data, data + vector.n_bytes()};
}

EngineOptions drafting() {
  EngineOptions options;
  options.backend = "cpu", options.n_threads = 1, options.context = 64, options.n_guesses = 2;
  return options;
}

GgufFile opened(const std::string& path, const std::vector<std::string>& added) {
  std::vector<std::string> warnings;
  return open_model(path, added, warnings);
}

std::vector<float> logits_of(Engine& engine) { return run_alone(engine, random_tokens(24, 1), 16); }

}  // namespace

// On one device, and with a border before the last layer, where embedding and norm are needed once more.
BOOST_AUTO_TEST_CASE(the_block_is_loaded_with_its_own_ends_or_the_models) {
  for (const bool has_own : {false, true})
    for (const bool is_tied : {false, true})
      for (const int n_devices : {0, 1, 2}) {  // 0: the mapped file
        TinyModel shape = shape_of(true);
        shape.has_mtp_embed = shape.has_mtp_head = shape.has_mtp_norm = has_own;
        if (is_tied) shape.without.insert("output.weight");
        const TinyFile model(shape);
        const GgufFile file(model.path);
        const ModelArgs args = read_model_args(file);
        BOOST_TEST(args.n_layers == 2);
        BOOST_TEST_REQUIRE(args.n_draft_layers == 1);
        CpuBackend host(1);
        IslandBackend first, second;
        const Weights weights = load_weights(file, args, {[&](int64_t layer) -> Backend& {
                                               if (n_devices == 0) return host;
                                               return n_devices == 2 && layer > 0 ? second : first;
                                             }});
        first.download(nullptr, nullptr, 0), second.download(nullptr, nullptr, 0);
        BOOST_TEST_REQUIRE(weights.layers.size() == 3u);
        BOOST_TEST(!weights.layers[2].is_dense);
        BOOST_TEST((bytes_of(weights.layers[2].indexer.wk) == bytes_of(file, "blk.2.indexer.attn_k.weight")));
        const DraftWeights& draft = weights.draft;
        const auto own = [&](const char* name, const char* models) {
          return bytes_of(file, has_own ? std::string("blk.2.nextn.") + name : models);
        };
        const char* head = is_tied ? "token_embd.weight" : "output.weight";
        BOOST_TEST((bytes_of(draft.eh_proj) == bytes_of(file, "blk.2.nextn.eh_proj.weight")));
        BOOST_TEST((bytes_of(draft.enorm) == bytes_of(file, "blk.2.nextn.enorm.weight")));
        BOOST_TEST((bytes_of(draft.hnorm) == bytes_of(file, "blk.2.nextn.hnorm.weight")));
        BOOST_TEST((bytes_of(draft.norm) == own("shared_head_norm.weight", "output_norm.weight")));
        BOOST_TEST((bytes_of(draft.embed) == own("embed_tokens.weight", "token_embd.weight")));
        BOOST_TEST((bytes_of(draft.head) == own("shared_head_head.weight", head)));
        const bool is_there = n_devices < 2 || is_tied;  // on the last device, with the model's
        if (!has_own) BOOST_TEST((draft.embed.data == weights.embed.data) == (n_devices < 2));
        if (!has_own && is_tied) BOOST_TEST(draft.embed.data == weights.head.data);
        BOOST_TEST((draft.head.data == weights.head.data) == !has_own);
        // What the plan counts is what was taken.
        const ModelBytes bytes = model_bytes(file, args);
        BOOST_TEST(bytes.draft_embedding == (has_own || is_tied ? 0 : bytes.embedding));
        uint64_t n_planned = total_bytes(bytes) + (is_there ? 0 : bytes.draft_embedding);
        if (n_devices == 2) n_planned += bytes.tied;
        if (n_devices == 0) continue;
        const uint64_t n_used =
            first.memory_info(Place::host).n_bytes_used + second.memory_info(Place::host).n_bytes_used;
        constexpr uint64_t kBesideTensor = 256;  // a matrix has so much behind it
        BOOST_TEST(n_used >= n_planned);
        BOOST_TEST(n_used <= n_planned + kBesideTensor * (file.tensors().size() + 1));
      }
}

BOOST_AUTO_TEST_CASE(without_drafts_the_block_is_not_looked_at) {
  const TinyFile model(shape_of(true));
  const GgufFile file(model.path);
  const ModelArgs args = read_model_args(file).without_draft();
  CpuBackend backend(1);
  const Weights weights = load_weights(file, args, backend);
  BOOST_TEST(weights.layers.size() == 2u);
  BOOST_TEST(weights.draft.eh_proj.data == nullptr);
}

// Whatever is wrong with the block is one line, and without drafts it is no obstacle.
BOOST_AUTO_TEST_CASE(a_block_of_another_shape_is_refused_unless_drafts_are_off) {
  const auto check = [](const TinyModel& shape, const std::function<void(GgufWriter&)>& change,
                        std::vector<std::string> parts) {
    const TempDir dir;
    GgufWriter writer = tiny_model(shape);
    change(writer);
    writer.write(dir.file("model.gguf"));
    const GgufFile file(dir.file("model.gguf"));
    parts.push_back("--draft off");
    refused([&] { Engine(file, drafting()); }, parts);
    EngineOptions off = drafting();
    off.n_guesses = 0;
    const TinyFile plain(shape_of(false));
    const GgufFile without(plain.path);
    Engine engine(file, off), expected(without, off);
    BOOST_TEST((logits_of(engine) == logits_of(expected)));
  };
  for (const char* name :
       {"nextn.eh_proj.weight", "nextn.enorm.weight", "nextn.hnorm.weight", "attn_norm.weight",
        "attn_kv_a_mqa.weight", "indexer.attn_k.weight", "indexer.k_norm.bias", "ffn_gate_exps.weight",
        "ffn_down_exps.weight", "ffn_down_shexp.weight", "exp_probs_b.bias"})
    check(shape_of(true), [&](GgufWriter& writer) { writer.remove_tensor(std::string("blk.2.") + name); },
          {std::string("blk.2.") + name, "is missing"});
  check(shape_of(true),
        [](GgufWriter& writer) {
          writer.remove_tensor("blk.2.nextn.eh_proj.weight");
          writer.add_tensor("blk.2.nextn.eh_proj.weight", TensorType::f32, {256, 256}, Bytes(4 * 256 * 256));
        },
        {"blk.2.nextn.eh_proj.weight", "has shape [256, 256], expected [512, 256]"});
  check(shape_of(true),
        [](GgufWriter& writer) {
          writer.remove_tensor("blk.2.nextn.enorm.weight");
          writer.add_tensor("blk.2.nextn.enorm.weight", static_cast<TensorType>(34), {256}, Bytes(1024));
        },
        {"blk.2.nextn.enorm.weight", "cannot read"});
  check(shape_of(true),
        [](GgufWriter& writer) {
          writer.add_tensor("blk.2.nextn.more.weight", TensorType::f32, {256}, Bytes(1024));
        },
        {"blk.2.nextn.more.weight"});
}

BOOST_AUTO_TEST_CASE(a_second_block_and_few_bits_are_told_if_the_block_is_used) {
  const TempDir dir;
  TinyModel shape = shape_of(true);
  shape.types["blk.2.ffn_up_exps.weight"] = TensorType::q2_k;
  shape.types["blk.2.ffn_gate_exps.weight"] = shape.types["blk.2.ffn_down_exps.weight"] = TensorType::q4_k;
  shape.replace_u32 = {{"deepseek32.block_count", 4}, {"deepseek32.nextn_predict_layers", 2}};
  GgufWriter writer = tiny_model(shape);
  writer.add_tensor("blk.3.nextn.eh_proj.weight", TensorType::f32, {256}, Bytes(1024));
  writer.write(dir.file("model.gguf"));
  const GgufFile file(dir.file("model.gguf"));
  const auto warnings = [&](std::optional<int64_t> n_guesses) {
    EngineOptions options = drafting();
    options.n_guesses = n_guesses;
    std::string text;
    Engine engine(file, options);
    for (const std::string& warning : engine.warnings()) text += warning + "\n";
    return text;
  };
  for (const std::optional<int64_t> n_guesses : {std::optional<int64_t>(1), std::optional<int64_t>()}) {
    BOOST_TEST(contains(warnings(n_guesses), "2 blocks for drafts: the first, blk.2, is used"));
    BOOST_TEST(contains(warnings(n_guesses), "few guesses will be right"));
    BOOST_TEST(contains(warnings(n_guesses), "Q2_K"));
    BOOST_TEST(!contains(warnings(n_guesses), "Q4_K"));
  }
  BOOST_TEST(!contains(warnings(0), "drafts"));
}

BOOST_AUTO_TEST_CASE(a_block_in_a_file_of_its_own_is_the_same_block) {
  const TwoFiles files;
  const GgufFile joined = opened(files.model, {files.block}), whole(files.whole);
  BOOST_TEST(joined.n_parts() == 2u);
  BOOST_TEST(joined.files()[1].path() == files.block);
  BOOST_TEST(joined.tensors().size() == whole.tensors().size());
  for (const GgufTensor& tensor : whole.tensors())
    BOOST_TEST((bytes_of(joined, tensor.name) == bytes_of(whole, tensor.name)), tensor.name);
  BOOST_TEST(read_model_args(joined).n_draft_layers == 1);
  Engine engine(joined, drafting()), expected(whole, drafting());
  BOOST_TEST(engine.args().n_draft_layers == 1);
  BOOST_TEST((logits_of(engine) == logits_of(expected)));
  for (const bool is_apart : {false, true}) {  // the loader reads each part
    const auto backend = is_apart ? std::make_unique<IslandBackend>() : std::make_unique<CpuBackend>(1);
    const Weights weights = load_weights(joined, read_model_args(joined), *backend);
    backend->download(nullptr, nullptr, 0);
    BOOST_TEST((bytes_of(weights.draft.eh_proj) == bytes_of(whole, "blk.2.nextn.eh_proj.weight")));
  }
  // Its own embedding is the one under nextn.
  TinyModel own = shape_of(true);
  own.has_mtp_embed = true;
  files.write_block(own);
  const GgufFile other = opened(files.model, {files.block});
  BOOST_TEST((bytes_of(other, "token_embd.weight") == bytes_of(whole, "token_embd.weight")));
  BOOST_TEST(other.find_tensor("blk.2.nextn.embed_tokens.weight"));
  BOOST_TEST(opened(files.model, {}).n_parts() == 1u);
}

BOOST_AUTO_TEST_CASE(a_file_that_has_no_block_of_this_model_is_refused) {
  const TwoFiles files;
  refused([&] { opened(files.whole, {files.block}); },
          {"block.gguf: tensor blk.2.", "is in", "whole.gguf too", "--with"});
  refused([&] { opened(files.model, {files.model}); }, {"model.gguf: tensor token_embd.weight is in", "too"});
  refused([&] { read_model_args(GgufFile(files.block)); },
          {"block.gguf holds nothing but the block for drafts (MTP), blk.2", "--with"});
  refused([&] { opened(files.block, {files.block}); }, {"nothing but the block"});
  refused([&] { opened(files.model, {files.dir.file("none.gguf")}); }, {"none.gguf"});
  const auto check = [&](const std::function<void(TinyModel&)>& change,
                         const std::vector<std::string>& parts) {
    TinyModel shape = shape_of(true);
    change(shape);
    files.write_block(shape);
    refused([&] { opened(files.model, {files.block}); }, parts);
  };
  check([](TinyModel& shape) { shape.dim = 512; },
        {"block.gguf", "embedding_length is 512, expected 256 as in", "model.gguf"});
  check([](TinyModel& shape) { shape.n_routed_experts = 4, shape.n_expert_groups = 2; },
        {"expert_count is 4, expected 8"});
  check([](TinyModel& shape) { shape.index_topk = 64; }, {"indexer.top_k is 64, expected 32"});
  check(
      [](TinyModel& shape) {
        shape.replace_u32 = {{"deepseek32.block_count", 4}};
      },
      {"block_count without nextn_predict_layers is 3, expected 2"});
  // What only the tensors show is refused when they are loaded, with the name of their file.
  TinyModel lacking = shape_of(true);
  lacking.without = {"blk.2.attn_norm.weight"};
  files.write_block(lacking);
  const GgufFile joined = opened(files.model, {files.block});
  refused([&] { Engine(joined, drafting()); }, {"block.gguf: tensor blk.2.attn_norm.weight is missing"});
}

BOOST_AUTO_TEST_SUITE_END()
