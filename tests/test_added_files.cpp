// A model whose indexer lies in a file of its own: what is taken in, what is computed with it, what is
// refused. Files of blocks for drafts: test_draft_file.cpp.
#include <boost/test/unit_test.hpp>
#include <filesystem>

#include "base/error.h"
#include "engine/engine.h"
#include "engine/sequence.h"
#include "tests/support/company.h"
#include "tests/support/contains.h"
#include "tests/support/gguf_copy.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_file.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(added_files)

namespace {

using Names = std::vector<std::string>;

std::string same(const std::string& key) { return key; }

// A model in one file, and in two: as deepseek2 without its indexer, and the indexer alone.
struct Files {
  TempDir dir;
  std::string whole = dir.file("whole.gguf"), dense = dir.file("dense.gguf"),
              indexer = dir.file("x-Indexer-Q8_0.gguf");

  explicit Files(bool has_block) {
    TinyModel shape = least_shape();
    shape.has_mtp = has_block;
    write_tiny_model(whole, shape);
    without_indexer(GgufFile(whole), "deepseek2").write(dense);
    indexer_of(GgufFile(whole)).write(indexer);
  }
  // The indexer's file with one key more.
  std::string named(const std::string& key, const std::string& value) const {
    GgufWriter writer = gguf_copy(
        GgufFile(indexer), [&](const std::string& k) { return k == key ? "" : k; },
        [](const GgufTensor&) { return true; });
    writer.add(key, value);
    writer.write(dir.file("named.gguf"));
    return dir.file("named.gguf");
  }
  // The file at `path` without what says whose it is, but with another name.
  void rename(const std::string& path, const std::string& name) const {
    const GgufFile file(path);
    GgufWriter writer = gguf_copy(
        file, [](const std::string& k) { return k == "general.name" ? "" : k; },
        [](const GgufTensor&) { return true; });
    if (!name.empty()) writer.add("general.name", name);
    writer.write(path + ".new");
    std::filesystem::rename(path + ".new", path);
  }
};

GgufFile opened(const std::string& path, const Names& added) {
  Names warnings;
  GgufFile file = open_model(path, added, warnings);
  BOOST_TEST(warnings.empty());
  return file;
}

EngineOptions on_cpu(std::optional<int64_t> n_guesses = 0) {
  EngineOptions options;
  options.backend = "cpu", options.n_threads = 1, options.context = 192, options.n_guesses = n_guesses;
  return options;
}

// More tokens than the indexer selects rows.
std::vector<float> logits_of(Engine& engine) { return run_alone(engine, random_tokens(160, 1), 120); }
std::vector<float> logits_of(const GgufFile& file) {
  Engine engine(file, on_cpu());
  return logits_of(engine);
}

std::string warnings_of(const GgufFile& file) {
  std::string text;
  Engine engine(file, on_cpu());
  for (const std::string& warning : engine.warnings()) text += warning + "\n";
  return text;
}

void refused(const std::function<void()>& act, const Names& parts) {
  BOOST_CHECK_EXCEPTION(act(), Error, [&](const Error& error) {
    const std::string text = std::string(error.what()) + " | " + error.hint();
    BOOST_TEST(!contains(text, "\n"));
    for (const std::string& part : parts) BOOST_TEST(contains(text, part), text << " names " << part);
    return error.kind() == ErrorKind::model;
  });
}

}  // namespace

BOOST_AUTO_TEST_CASE(an_indexer_from_a_file_of_its_own_makes_a_dense_model_the_sparse_one) {
  const Files files(false);
  const GgufFile whole(files.whole), dense(files.dense), joined = opened(files.dense, {files.indexer});
  BOOST_TEST(!read_model_args(dense).has_indexer());
  const ModelArgs args = read_model_args(joined), expected = read_model_args(whole);
  BOOST_TEST((args.selector() == Selector::indexer));
  BOOST_TEST(args.index_topk == expected.index_topk);
  BOOST_TEST(args.index_n_heads == expected.index_n_heads);
  BOOST_TEST(joined.n_parts() == 2u);
  BOOST_TEST(joined.tensors().size() == whole.tensors().size());
  for (const GgufTensor& tensor : whole.tensors()) {
    const GgufTensor* found = joined.find_tensor(tensor.name);
    BOOST_TEST_REQUIRE(found, tensor.name);
    BOOST_TEST((found->n_bytes == tensor.n_bytes &&
                std::equal(tensor.data, tensor.data + tensor.n_bytes, found->data)),
               tensor.name);
  }
  const std::vector<float> logits = logits_of(joined);
  BOOST_TEST((logits == logits_of(whole)));
  BOOST_TEST((logits != logits_of(dense)));
  BOOST_TEST(warnings_of(joined) == "");
}

// Of a model that has the indexer's keys, but not its tensors.
BOOST_AUTO_TEST_CASE(a_deepseek32_file_that_lacks_its_indexer_gets_it) {
  const Files files(true);
  const GgufFile whole(files.whole);
  gguf_copy(whole, same, [](const GgufTensor& tensor) { return !is_of_indexer(tensor); }).write(files.dense);
  refused([&] { logits_of(GgufFile(files.dense)); }, {"blk.0.indexer.", "is missing"});
  const GgufFile joined = opened(files.dense, {files.indexer});
  BOOST_TEST((logits_of(joined) == logits_of(whole)));
  const auto without_keys = [](const std::string& key) {
    return contains(key, ".attention.indexer.") ? "" : key;
  };
  gguf_copy(whole, without_keys, [](const GgufTensor& tensor) {
    return !is_of_indexer(tensor);
  }).write(files.dense);
  BOOST_TEST(!read_model_args(GgufFile(files.dense)).has_indexer());
  BOOST_TEST((logits_of(opened(files.dense, {files.indexer})) == logits_of(whole)));
}

// In any order; the indexer of the block may come with either.
BOOST_AUTO_TEST_CASE(an_indexer_and_a_block_for_drafts_come_together) {
  const Files files(true);
  const GgufFile whole(files.whole);
  const std::string block = files.dir.file("block.gguf"), rest = files.dir.file("rest.gguf");
  gguf_copy(whole, same, [](const GgufTensor& tensor) { return block_of(tensor.name) == 2; }).write(block);
  gguf_copy(GgufFile(files.dense), same, [](const GgufTensor& tensor) {
    return block_of(tensor.name) < 2;
  }).write(rest);
  Engine expected(whole, on_cpu(2));
  for (const Names& added : {Names{files.indexer, block}, Names{block, files.indexer}}) {
    const GgufFile joined = opened(rest, added);
    BOOST_TEST(joined.tensors().size() == whole.tensors().size());
    Engine engine(joined, on_cpu(2));
    BOOST_TEST(engine.args().n_draft_layers == 1);
    BOOST_TEST((logits_of(engine) == logits_of(expected)));
  }
  // The block alone: the model stays dense, and so does the block.
  const GgufFile joined = opened(rest, {block});
  Engine engine(joined, on_cpu(2));
  BOOST_TEST(engine.args().n_draft_layers == 1);
  BOOST_TEST((logits_of(engine) == logits_of(GgufFile(rest))));
}

BOOST_AUTO_TEST_CASE(what_does_not_belong_to_the_model_is_refused) {
  const Files files(false);
  refused([&] { opened(files.whole, {files.indexer}); },
          {"Indexer-Q8_0.gguf: tensor blk.0.indexer.", "is in", "whole.gguf too", "--with"});
  refused([&] { opened(files.dense, {files.indexer, files.indexer}); }, {"is in", "Indexer-Q8_0.gguf too"});
  GgufWriter repeats = gguf_copy(GgufFile(files.indexer), same, [](const GgufTensor&) { return true; });
  const std::string more = files.dir.file("more.gguf");
  repeats.add_tensor("output_norm.weight", TensorType::f32, {256}, Bytes(1024));
  repeats.write(more);
  refused([&] { opened(files.dense, {more}); },
          {"more.gguf: tensor output_norm.weight is in", "dense.gguf too"});
  refused([&] { opened(files.dense, {files.dir.file("absent.gguf")}); },
          {"absent.gguf: there is no such file", "--with"});
  refused([&] { opened(files.dense, {files.dense}); }, {"dense.gguf holds neither an indexer"});
  refused([&] { read_model_args(GgufFile(files.indexer)); }, {"holds nothing but an indexer", "--with"});
  refused([&] { opened(files.indexer, {files.indexer}); }, {"holds nothing but an indexer"});
  const auto of_shape = [&](const std::function<void(TinyModel&)>& change, const Names& parts) {
    TinyModel shape = least_shape();
    shape.has_mtp = false;
    change(shape);
    const TinyFile other(shape);
    const std::string path = files.dir.file("other.gguf");
    indexer_of(GgufFile(other.path)).write(path);
    refused([&] { logits_of(opened(files.dense, {path})); }, parts);
  };
  of_shape([](TinyModel& shape) { shape.dim = 512; }, {"other.gguf: embedding_length is 512, expected 256"});
  of_shape([](TinyModel& shape) { shape.n_layers = 3; }, {"block_count", "is 3, expected 2"});
  of_shape([](TinyModel& shape) { shape.q_lora_rank = 128; }, {"q_lora_rank is 128, expected 256"});
  of_shape([](TinyModel& shape) { shape.without = {"blk.1.indexer.attn_k.weight"}; },
           {"other.gguf: tensor blk.1.indexer.attn_k.weight is missing", "--with"});
  of_shape(
      [](TinyModel& shape) {
        shape.replace_u32 = {{"deepseek32.feed_forward_length", 768}};
      },
      {"other.gguf: feed_forward_length is 768"});
  of_shape(
      [](TinyModel& shape) {
        shape.replace_u32 = {{"deepseek32.expert_group_count", 2}};
      },
      {"other.gguf: expert_group_count is 2"});
  of_shape([](TinyModel& shape) { shape.without = {"deepseek32.attention.indexer.top_k"}; },
           {"other.gguf: deepseek32.attention.indexer.top_k is missing"});
  of_shape(
      [](TinyModel& shape) {
        shape.replace_u32 = {{"deepseek32.attention.indexer.head_count", 8}};
      },
      {"blk.0.indexer.", "has shape"});
}

BOOST_AUTO_TEST_CASE(names_say_which_version_a_file_is_of) {
  const auto check = [](const std::string& models, const std::string& key, const std::string& indexers,
                        const Names& refusal, const std::string& warning = "") {
    const Files files(false);
    files.rename(files.dense, models), files.rename(files.indexer, "");
    const std::string indexer = indexers.empty() ? files.indexer : files.named(key, indexers);
    Names warnings;
    if (!refusal.empty()) return refused([&] { open_model(files.dense, {indexer}, warnings); }, refusal);
    open_model(files.dense, {indexer}, warnings);
    BOOST_TEST(warnings.size() == (warning.empty() ? 0u : 1u));
    if (!warning.empty()) BOOST_TEST(contains(warnings.at(0), warning));
  };
  for (const std::string model :
       {"DeepSeek-V3", "DeepSeek V3 0324", "DeepSeek_V3.1_Terminus", "Deepseek-R1-0528"}) {
    check(model, "general.name", "DeepSeek V3.2", {"is of V3.2, expected a file of", "dense.gguf"});
    check(model, "", "", {"is of V3.2, expected a file of"});  // which has an indexer
  }
  check("DeepSeek V3.2", "general.basename", "DeepSeek-R1", {"is of R1, expected a file of V3.2"});
  check("DeepSeek-R1T2-Chimera", "", "", {"is of V3.2, expected a file of R1T2"});
  check("a model of one's own", "general.name", "DeepSeek-R1", {"is of R1, which has no indexer"});
  check("DeepSeek V3.2", "general.name", "Deepseek V3.2 Exp", {}, "is of V3.2-Exp, but");
  check("DeepSeek-V3.2-Speciale", "", "", {}, "is of V3.2, but");
  check("DeepSeek-V3.2", "general.name", "DeepSeek V3.2", {});
  check("DeepSeek-V3.2", "", "", {});
  check("dsv32 demo", "general.name", "DeepSeek V3.2", {});
  check("a model of one's own", "general.name", "Deepseek V3.2 Exp", {});
  check("", "", "", {});
  // A model's own name counts before that of its base.
  const Files files(false);
  files.rename(files.dense, "DeepSeek-V3.2"), files.rename(files.indexer, "");
  GgufWriter based = gguf_copy(GgufFile(files.dense), same, [](const GgufTensor&) { return true; });
  based.add("general.base_model.0.name", "DeepSeek-V3.2-Exp-Base");
  based.write(files.dir.file("based.gguf"));
  Names warnings;
  open_model(files.dir.file("based.gguf"), {files.indexer}, warnings);
  BOOST_TEST(warnings.empty());
}

BOOST_AUTO_TEST_CASE(an_indexer_beside_a_dense_model_is_named) {
  const Files files(false);
  BOOST_TEST(contains(warnings_of(GgufFile(files.dense)), "attention runs dense"));
  BOOST_TEST(contains(warnings_of(GgufFile(files.dense)), "; --with " + files.indexer + " adds one"));
  const std::string parts = files.dir.file("parts");
  std::filesystem::create_directory(parts);
  BOOST_TEST(indexer_beside(parts + "/v3.2.gguf") == files.indexer);  // the folder of a model's parts
  std::filesystem::remove(files.indexer);
  BOOST_TEST(contains(warnings_of(GgufFile(files.dense)), "attention runs dense"));
  BOOST_TEST(!contains(warnings_of(GgufFile(files.dense)), "--with"));
  BOOST_TEST(indexer_beside("none.gguf") == "");
  BOOST_TEST(indexer_beside(files.dir.file("none") + "/none.gguf") == "");
}

BOOST_AUTO_TEST_SUITE_END()
