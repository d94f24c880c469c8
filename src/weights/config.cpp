#include "weights/config.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <set>

#include "base/error.h"
#include "base/text.h"

namespace dsv32 {
namespace {

// Far above any published model of this kind; these limits keep all products of dimensions from overflowing.
constexpr int64_t kMostLayers = 1000, kWidestDim = 1 << 20, kMostExperts = 1 << 15, kLongestContext = 1 << 28;

// One model's keys under its architecture's prefix.
class Keys {
 public:
  Keys(const GgufFile& file, std::string prefix) : file_(file), prefix_(std::move(prefix)) {}

  const GgufFile& file() const { return file_; }
  std::string full(const char* key) const { return prefix_ + "." + key; }

  // "FILE: KEY PROBLEM", as one Error{model}.
  [[noreturn]] __attribute__((format(printf, 3, 4))) void refuse(const char* key, const char* problem,
                                                                 ...) const {
    va_list args;
    va_start(args, problem);
    char text[512];
    std::vsnprintf(text, sizeof text, problem, args);
    va_end(args);
    fail(ErrorKind::model, visible(file_.path()) + ": " + full(key) + " " + text);
  }
  int64_t size(const char* key, int64_t most) const {
    const std::optional<uint32_t> value = file_.get_u32(full(key));
    if (!value) refuse(key, "is missing");
    return check(key, *value, 1, most);
  }
  int64_t size_or(const char* key, int64_t fallback, int64_t least, int64_t most) const {
    const std::optional<uint32_t> value = file_.get_u32(full(key));
    return value ? check(key, *value, least, most) : fallback;
  }
  float number_or(const char* key, float fallback, float least, float most) const {
    const float value = file_.get_f32(full(key)).value_or(fallback);
    if (!(value >= least && value <= most)) refuse(key, "is %g, expected %g to %g", value, least, most);
    return value;
  }
  // Some converters write one number per layer, 0 where it does not apply; all other numbers must be equal.
  int64_t uniform_size(const char* key, int64_t most) const {
    const auto values = file_.get_u32_or_array(full(key));
    if (!values || values->empty()) refuse(key, "is missing");
    for (const uint32_t value : *values)
      if (value != 0 && value != values->back())
        refuse(key, "differs from layer to layer (%u and %u), expected one size", value, values->back());
    return check(key, values->back(), 1, most);
  }

 private:
  int64_t check(const char* key, int64_t value, int64_t least, int64_t most) const {
    if (value < least || value > most)
      refuse(key, "is %lld, expected %lld to %lld", as_ll(value), as_ll(least), as_ll(most));
    return value;
  }

  const GgufFile& file_;
  std::string prefix_;
};

std::string read_architecture(const GgufFile& file) {
  const auto architecture = file.get_string("general.architecture");
  if (!architecture) fail(ErrorKind::model, visible(file.path()) + ": key general.architecture is missing");
  if (*architecture != "deepseek32" && *architecture != "deepseek2")
    fail(ErrorKind::model,
         format("%s: general.architecture is '%s', expected deepseek32", visible(file.path()).c_str(),
                visible(*architecture, false, 40).c_str()),
         "dsv32 runs DeepSeek-V3.2 (and deepseek2 files of the same shape) only");
  return std::string(*architecture);
}

void read_attention(const Keys& keys, ModelArgs& args) {
  args.n_heads = keys.size("attention.head_count", 4096);
  args.q_lora_rank = keys.size("attention.q_lora_rank", kWidestDim);
  args.kv_lora_rank = keys.size("attention.kv_lora_rank", kWidestDim);
  args.qk_rope_head_dim = keys.size("rope.dimension_count", 1 << 14);
  // Files with attn_kv_b in one piece have a head's lengths under keys that otherwise describe the latent
  // row.
  const bool has_whole_kv_b =
      keys.file().find_tensor("blk.0.attn_kv_b.weight") && !keys.file().find_tensor("blk.0.attn_k_b.weight");
  const bool is_split = keys.file().has(keys.full("attention.key_length_mla")) || !has_whole_kv_b;
  const int64_t key_length =
      keys.size(is_split ? "attention.key_length_mla" : "attention.key_length", 1 << 15);
  args.v_head_dim = keys.size(is_split ? "attention.value_length_mla" : "attention.value_length", 1 << 15);
  if (args.qk_rope_head_dim % 2 != 0)
    keys.refuse("rope.dimension_count", "is %lld, expected an even number", as_ll(args.qk_rope_head_dim));
  if (key_length <= args.qk_rope_head_dim)
    keys.refuse("attention.key_length_mla", "is %lld, expected more than the %lld of rope.dimension_count",
                as_ll(key_length), as_ll(args.qk_rope_head_dim));
  args.qk_nope_head_dim = key_length - args.qk_rope_head_dim;
}

void read_rope(const Keys& keys, ModelArgs& args) {
  args.rope_theta = keys.number_or("rope.freq_base", 10000, 1, 1e12f);
  const auto named = keys.file().get_string(keys.full("rope.scaling.type"));
  const bool is_meant = !named && keys.number_or("rope.scaling.factor", 1, 1, 1e6f) > 1;
  if (is_meant)
    args.warnings.push_back(format("%s has %s but no %s: taken as yarn", visible(keys.file().path()).c_str(),
                                   keys.full("rope.scaling.factor").c_str(),
                                   keys.full("rope.scaling.type").c_str()));
  const std::string_view type = named.value_or(is_meant ? "yarn" : "none");
  if (type == "none") return;
  if (type != "yarn")
    keys.refuse("rope.scaling.type", "is '%s', expected yarn", visible(type, false, 40).c_str());
  args.rope_factor = keys.number_or("rope.scaling.factor", 40, 1, 1e6f);
  args.original_seq_len = keys.size_or("rope.scaling.original_context_length", 4096, 1, kLongestContext);
  args.beta_fast = keys.number_or("rope.scaling.yarn_beta_fast", 32, 1e-3f, 1e6f);
  args.beta_slow = keys.number_or("rope.scaling.yarn_beta_slow", 1, 1e-3f, 1e6f);
  args.mscale = keys.number_or("rope.scaling.yarn_log_multiplier", 0.1f, 0, 10) / 0.1f;
}

// A deepseek2 file may have its indexer from a file of another architecture.
void read_indexer(const GgufFile& file, ModelArgs& args) {
  const bool is_of_v32 = file.has("deepseek32.attention.indexer.head_count");
  const Keys keys(file, is_of_v32 ? "deepseek32" : args.architecture);
  args.index_n_heads = keys.size("attention.indexer.head_count", 4096);
  args.index_head_dim = keys.size("attention.indexer.key_length", 1 << 14);
  args.index_topk = keys.size("attention.indexer.top_k", kLongestContext);
  if (!std::has_single_bit(static_cast<uint64_t>(args.index_head_dim)))
    keys.refuse("attention.indexer.key_length",
                "is %lld, expected a power of two (it is Hadamard-transformed)", as_ll(args.index_head_dim));
  if (args.index_head_dim < args.qk_rope_head_dim)
    keys.refuse("attention.indexer.key_length", "is %lld, expected at least the %lld of rope.dimension_count",
                as_ll(args.index_head_dim), as_ll(args.qk_rope_head_dim));
  const auto types = keys.file().get_u32_or_array(keys.full("attention.indexer.types"));
  for (size_t layer = 0; types && layer < types->size(); ++layer)
    if (const uint32_t type = (*types)[layer]; type != 1)
      keys.refuse("attention.indexer.types",
                  "is %u for layer %zu, expected 1: layers without an indexer of their own are not computed",
                  type, layer);
}

void read_experts(const Keys& keys, ModelArgs& args) {
  args.n_dense_layers =
      std::min(args.n_all_layers(), keys.size_or("leading_dense_block_count", 0, 0, kMostLayers));
  if (args.n_dense_layers > 0) args.inter_dim = keys.uniform_size("feed_forward_length", kWidestDim);
  if (args.n_dense_layers == args.n_all_layers()) return;

  args.n_routed_experts = keys.size("expert_count", kMostExperts);
  args.n_activated_experts = keys.size("expert_used_count", args.n_routed_experts);
  args.n_shared_experts = keys.size_or("expert_shared_count", 1, 0, 64);
  args.moe_inter_dim = keys.uniform_size("expert_feed_forward_length", kWidestDim);
  args.normalize_expert_weights = keys.file().get_bool(keys.full("expert_weights_norm")).value_or(true);
  // deepseek2 files of 2025 lack the group keys; a model of 256 experts has 8 groups, of which 4 are kept.
  const bool is_full_size = args.n_routed_experts == 256;
  args.route_scale = keys.number_or("expert_weights_scale", is_full_size ? 2.5f : 1.0f, -1e6f, 1e6f);
  args.n_expert_groups = keys.size_or("expert_group_count", is_full_size ? 8 : 1, 1, args.n_routed_experts);
  args.n_limited_groups = keys.size_or("expert_group_used_count", is_full_size ? 4 : args.n_expert_groups, 1,
                                       args.n_expert_groups);
  if (args.n_routed_experts % args.n_expert_groups != 0)
    keys.refuse("expert_group_count", "is %lld, expected a divisor of the %lld experts",
                as_ll(args.n_expert_groups), as_ll(args.n_routed_experts));
  if (args.n_activated_experts > args.n_routed_experts / args.n_expert_groups * args.n_limited_groups)
    keys.refuse("expert_used_count", "is %lld, more than the experts of %lld groups",
                as_ll(args.n_activated_experts), as_ll(args.n_limited_groups));
  const uint32_t gating = keys.file().get_u32(keys.full("expert_gating_func")).value_or(2);
  if (gating != 2) keys.refuse("expert_gating_func", "is %u, expected 2 (sigmoid)", gating);
}

// Blocks after the model's layers must be blocks for drafts (MTP), of which the first is used. Any other
// block is a layer that block_count misses.
void read_blocks(const Keys& keys, ModelArgs& args) {
  std::set<int64_t> blocks, with_nextn;
  for (const GgufTensor& tensor : keys.file().tensors()) {
    const int64_t block = block_of(tensor.name);
    if (is_of_indexer(tensor)) continue;  // which may be for a block that lies elsewhere
    blocks.insert(block);
    if (tensor.name.find(".nextn.") != tensor.name.npos) with_nextn.insert(block);
  }
  for (const int64_t block : blocks)
    if (block >= args.n_layers && !with_nextn.contains(block))
      keys.refuse(
          "block_count",
          "less nextn_predict_layers is %lld, but there is a layer blk.%lld, which has no nextn.* tensors",
          as_ll(args.n_layers), as_ll(block));
  args.n_draft_layers = with_nextn.contains(args.n_layers);
}

// Warns of tensors outside the blocks that nothing reads; refuses those that would change the computation.
void check_outer_tensors(const GgufFile& file, ModelArgs& args) {
  std::vector<std::string> others;
  for (const GgufTensor& tensor : file.tensors()) {
    const std::string_view name = tensor.name, kind = name.substr(0, name.find('.'));
    const bool is_matrix = kind == "token_embd" || kind == "output";
    const bool is_read =
        name == "output_norm.weight" || (is_matrix && (name.ends_with(".weight") || name.ends_with("scale")));
    if (block_of(name) >= 0 || is_read || name.find("nextn.") != name.npos) continue;
    if (kind.starts_with("output") || kind.starts_with("token_") || kind.starts_with("rope") ||
        kind.starts_with("position_"))
      fail(ErrorKind::model,
           format("%s: tensor %s belongs to another kind of model: dsv32 does not compute it",
                  visible(file.path()).c_str(), visible(name).c_str()));
    others.push_back(tensor.name);
  }
  if (!others.empty())
    args.warnings.push_back(format("%s has tensors that nothing reads: %s", visible(file.path()).c_str(),
                                   some_names(others).c_str()));
}

}  // namespace

int64_t block_of(std::string_view name) {
  int64_t block = -1;
  if (name.starts_with("blk.")) std::from_chars(name.data() + 4, name.data() + name.size(), block);
  return block;
}

std::string some_names(const std::vector<std::string>& names) {
  constexpr size_t kMost = 8;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kMost); ++i) text += (i ? ", " : "") + visible(names[i]);
  return names.size() > kMost ? text + format(" and %zu more", names.size() - kMost) : text;
}

float ModelArgs::softmax_scale() const {
  const double m = 1.0 + 0.1 * static_cast<double>(mscale) * std::log(static_cast<double>(rope_factor));
  return static_cast<float>(m * m / std::sqrt(static_cast<double>(qk_head_dim())));
}

ModelArgs read_model_args(const GgufFile& file) {
  ModelArgs args = read_part_args(file);
  bool has_first = false;
  const GgufTensor *nextn = nullptr, *indexer = nullptr;
  for (const GgufTensor& tensor : file.tensors()) {
    if (tensor.name.find(".nextn.") != tensor.name.npos) nextn = &tensor;
    if (is_of_indexer(tensor)) indexer = &tensor;
    has_first = has_first || (block_of(tensor.name) == 0 && !is_of_indexer(tensor));
  }
  if ((nextn || indexer) && !has_first)
    fail(ErrorKind::model,
         visible(file.path()) + " holds nothing but " +
             (nextn ? format("the block for drafts (MTP), blk.%lld", as_ll(block_of(nextn->name)))
                    : "an indexer"),
         "name the model's file, and this one with --with");
  return args;
}

ModelArgs read_part_args(const GgufFile& file) {
  ModelArgs args;
  args.architecture = read_architecture(file);
  const Keys keys(file, args.architecture);
  const int64_t n_blocks = keys.size("block_count", kMostLayers);
  const int64_t n_draft_blocks = keys.size_or("nextn_predict_layers", 0, 0, kMostLayers);
  if (n_draft_blocks >= n_blocks)
    keys.refuse("block_count", "is %lld, expected more than the %lld of nextn_predict_layers",
                as_ll(n_blocks), as_ll(n_draft_blocks));
  args.n_layers = n_blocks - n_draft_blocks;
  read_blocks(keys, args);
  check_outer_tensors(file, args);
  args.dim = keys.size("embedding_length", kWidestDim);
  args.max_seq_len = keys.size("context_length", kLongestContext);
  args.norm_eps = keys.number_or("attention.layer_norm_rms_epsilon", 1e-6f, 0, 1);
  if (const GgufTensor* table = file.find_tensor("token_embd.weight"))
    args.vocab_size = static_cast<int64_t>(table->ne[1]);
  read_attention(keys, args);
  read_rope(keys, args);
  const bool is_of_v32 = args.architecture == "deepseek32";
  if ((is_of_v32 && file.has("deepseek32.attention.indexer.head_count")) ||
      file.find_tensor("blk.0.indexer.attn_q_b.weight"))
    read_indexer(file, args);
  read_experts(keys, args);
  return args;
}

std::vector<std::string> warnings_about_draft(const GgufFile& file, const ModelArgs& args) {
  constexpr double kFewBits = 4;  // of a weight
  std::set<int64_t> blocks;
  std::set<std::string> types;
  std::string name = visible(file.path());  // of the part that has the block
  for (const GgufTensor& tensor : file.tensors()) {
    const int64_t block = block_of(tensor.name);
    if (block >= args.n_layers) blocks.insert(block);
    if (block != args.n_layers || tensor.n_bytes == 0) continue;
    name = visible(file.path_of(tensor));
    const TypeTraits& type = traits(tensor.type);
    if (type.block_bytes * 8.0 / type.block_values < kFewBits) types.insert(type.name);
  }
  std::vector<std::string> warnings;
  if (blocks.size() > 1)
    warnings.push_back(format("%s has %zu blocks for drafts: the first, blk.%lld, is used", name.c_str(),
                              blocks.size(), as_ll(args.n_layers)));
  if (!types.empty())
    warnings.push_back(format(
        "%s has %s in its block for drafts, blk.%lld: few guesses will be right; formats of 8 bits suit it",
        name.c_str(), some_names({types.begin(), types.end()}).c_str(), as_ll(args.n_layers)));
  return warnings;
}

std::vector<std::string> warnings_about_indexer(const GgufFile& file, const ModelArgs& args) {
  if (args.has_indexer()) return {};
  const std::string beside = indexer_beside(file.path());
  return {visible(file.path()) +
          " has no indexer: attention runs dense, answers may be a little worse and long contexts slower" +
          (beside.empty() ? "" : "; --with " + visible(beside) + " adds one")};
}

}  // namespace dsv32
