// A model that lies in several files: its own, and others with the indexer or the block for drafts that it
// lacks. Each is checked against the model, whose GgufFile then takes its tensors in, so that all readers
// find them where they look for them.
#include <algorithm>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "base/text.h"
#include "weights/config.h"

namespace dsv32 {
namespace {

struct Size {
  const char* key;
  int64_t ModelArgs::*of;
};
constexpr Size kSizes[] = {
    {"block_count without nextn_predict_layers", &ModelArgs::n_layers},
    {"leading_dense_block_count", &ModelArgs::n_dense_layers},
    {"embedding_length", &ModelArgs::dim},
    {"feed_forward_length", &ModelArgs::inter_dim},
    {"attention.head_count", &ModelArgs::n_heads},
    {"attention.q_lora_rank", &ModelArgs::q_lora_rank},
    {"attention.kv_lora_rank", &ModelArgs::kv_lora_rank},
    {"attention.key_length_mla without rope.dimension_count", &ModelArgs::qk_nope_head_dim},
    {"attention.value_length_mla", &ModelArgs::v_head_dim},
    {"rope.dimension_count", &ModelArgs::qk_rope_head_dim},
    {"expert_count", &ModelArgs::n_routed_experts},
    {"expert_used_count", &ModelArgs::n_activated_experts},
    {"expert_group_count", &ModelArgs::n_expert_groups},
    {"expert_group_used_count", &ModelArgs::n_limited_groups},
    {"expert_shared_count", &ModelArgs::n_shared_experts},
    {"expert_feed_forward_length", &ModelArgs::moe_inter_dim},
};
constexpr Size kIndexerSizes[] = {
    {"attention.indexer.head_count", &ModelArgs::index_n_heads},
    {"attention.indexer.key_length", &ModelArgs::index_head_dim},
    {"attention.indexer.top_k", &ModelArgs::index_topk},
};

constexpr std::string_view kIndexedVersion = "V3.2";  // the first with an indexer, and of those after it

// Which of DeepSeek's models the values of these keys name; empty: none.
std::string version_in(const GgufFile& file, std::initializer_list<const char*> keys) {
  std::string names = "-";  // in words with hyphens between them
  for (const char* key : keys) names += upper_case(std::string(file.get_string(key).value_or(""))) + "-";
  for (const char* border : {" ", "_", "DEEPSEEK"}) names = replaced(names, border, "-");
  for (const char* version : {"V3.2-Exp", "V3.2-Speciale", "V3.2", "V3.1", "R1T2", "R1T", "R1", "V3"})
    if (names.find("-" + upper_case(version) + "-") != names.npos) return version;
  return {};
}

// Which one the file is; empty: its names do not say. V3.2 is trained from a base of V3.2-Exp, so a base
// counts only without a name.
std::string version_of(const GgufFile& file) {
  const std::string own =
      version_in(file, {"general.name", "general.basename", "general.version", "general.finetune"});
  return own.empty() ? version_in(file, {"general.base_model.0.name"}) : own;
}

// A model, and a file with what it lacks.
class Addition {
 public:
  Addition(const GgufFile& model, const GgufFile& added)
      : model_(model), added_(added), args_(read_model_args(model)), added_args_(read_part_args(added)) {}

  // Throws unless the file has something for this model, and was made for it.
  void check(std::vector<std::string>& warnings) const {
    check_sizes(kSizes);
    if (args_.has_indexer() && added_args_.has_indexer()) check_sizes(kIndexerSizes);
    check_version(warnings);
    if (added_args_.n_draft_layers == 0 && !has_indexer())
      refuse(format(" holds neither an indexer, blk.N.indexer.*, nor a block for drafts, blk.%lld.nextn.*",
                    as_ll(args_.n_layers)));
    for (const GgufTensor& tensor : added_.tensors())
      if (const GgufTensor* known = model_.find_tensor(tensor.name); known && !may_repeat(tensor))
        refuse(
            format(": tensor %s is in %s too", tensor.name.c_str(), visible(model_.path_of(*known)).c_str()));
    check_layers();
  }

  bool is_wanted(const GgufTensor& tensor) const {
    return block_of(tensor.name) >= 0 && !(may_repeat(tensor) && model_.find_tensor(tensor.name));
  }

  std::string keys() const { return added_args_.architecture + ".attention.indexer."; }

 private:
  // The file of a block for drafts may have the tensors outside of blocks too. The block's indexer may come
  // with the block and with the model's indexer.
  bool may_repeat(const GgufTensor& tensor) const {
    const int64_t block = block_of(tensor.name);
    return block < 0 ? added_args_.n_draft_layers > 0 : block >= args_.n_layers && is_of_indexer(tensor);
  }
  static std::string name_of(const GgufFile& file) { return visible(file.path()); }
  bool has_indexer() const { return std::ranges::any_of(added_.tensors(), is_of_indexer); }

  [[noreturn]] void refuse(const std::string& what) const {
    fail(ErrorKind::model, name_of(added_) + what,
         "--with takes what the model's file lacks, from a file of the same model");
  }

  void check_sizes(std::span<const Size> sizes) const {
    for (const Size& size : sizes)
      if (added_args_.*size.of != args_.*size.of)
        refuse(format(": %s is %lld, expected %lld as in %s", size.key, as_ll(added_args_.*size.of),
                      as_ll(args_.*size.of), name_of(model_).c_str()));
  }

  // An indexer has the same tensors in every layer.
  void check_layers() const {
    std::set<std::string> names;  // behind "blk.N"
    for (const GgufTensor& tensor : added_.tensors())
      if (is_of_indexer(tensor) && block_of(tensor.name) < args_.n_layers)
        names.insert(tensor.name.substr(tensor.name.find(".indexer.")));
    for (const std::string& name : names)
      for (int64_t layer = 0; layer < args_.n_layers; ++layer)
        if (const std::string full = format("blk.%lld", as_ll(layer)) + name; !added_.find_tensor(full))
          refuse(": tensor " + visible(full) + " is missing");
  }

  // V3, V3.1 and R1 have the sizes of V3.2, but no indexer.
  void check_version(std::vector<std::string>& warnings) const {
    const std::string own = version_of(model_);
    std::string its = version_of(added_);
    if (its.empty() && has_indexer()) its = kIndexedVersion;
    if (own.empty() && has_indexer() && !its.starts_with(kIndexedVersion))
      refuse(" is of " + its + ", which has no indexer");
    if (own.empty() || its.empty() || own == its) return;
    if (!own.starts_with(kIndexedVersion) || !its.starts_with(kIndexedVersion))
      refuse(" is of " + its + ", expected a file of " + own + " as " + name_of(model_) + " is");
    warnings.push_back(name_of(added_) + " is of " + its + ", but " + name_of(model_) + " of " + own +
                       ": they were not trained together");
  }

  const GgufFile &model_, &added_;
  const ModelArgs args_, added_args_;
};

}  // namespace

GgufFile open_model(const std::string& path, const std::vector<std::string>& added_paths,
                    std::vector<std::string>& warnings) {
  GgufFile model(path);
  for (const std::string& added_path : added_paths) {
    if (std::error_code error; !std::filesystem::exists(added_path, error) && !error)
      fail(ErrorKind::model, visible(added_path) + ": there is no such file, expected one for --with");
    GgufFile added(added_path);
    const Addition addition(model, added);
    addition.check(warnings);
    model.take(
        std::move(added), [&](const GgufTensor& tensor) { return addition.is_wanted(tensor); },
        addition.keys());
  }
  return model;
}

// The parts of a model often have a folder of their own.
std::string indexer_beside(const std::string& path) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(path).parent_path();
  for (const fs::path& place : {folder, folder / ".."}) {
    std::string found;
    std::error_code error;
    for (fs::directory_iterator at(place / ".", error), end; !error && at != end; at.increment(error))
      if (const std::string name = at->path().filename().string();
          is_indexer_name(name) && (found.empty() || name < found))
        found = name;
    if (!found.empty()) return (place / found).lexically_normal().string();
  }
  return {};
}

bool is_indexer_name(const std::string& path) {
  const std::string name = upper_case(path.substr(path.rfind('/') + 1));
  return name.find("INDEXER") != name.npos && name.ends_with(".GGUF");
}

}  // namespace dsv32
