#include "tests/support/gguf_copy.h"

#include "weights/config.h"

namespace dsv32 {
namespace {

void copy_key(const GgufFile& file, const std::string& key, const std::string& type, const std::string& name,
              GgufWriter& to) {
  const auto is = [&](const char* beginning) { return type.starts_with(beginning); };
  if (is("string["))
    return to.add_array(name, [&] {
      const auto texts = *file.get_strings(key);
      return std::vector<std::string>(texts.begin(), texts.end());
    }());
  if (is("f32[")) return to.add_array(name, *file.get_f32s(key));
  if (type.ends_with("]")) return to.add_array(name, *file.get_i32s(key));
  if (type == "string") return to.add(name, *file.get_string(key));
  if (type == "f32") return to.add(name, *file.get_f32(key));
  if (type == "bool") return to.add(name, *file.get_bool(key));
  to.add(name, *file.get_u32(key));
}

std::string as_architecture(const std::string& key, const std::string& architecture) {
  for (const std::string former : {"deepseek32.", "deepseek2."})
    if (key.starts_with(former)) return architecture + "." + key.substr(former.size());
  return key;
}

}  // namespace

GgufWriter gguf_copy(const GgufFile& file, const std::function<std::string(const std::string&)>& new_name,
                     const std::function<bool(const GgufTensor&)>& is_wanted) {
  GgufWriter copy;
  for (const Metadata::KeyInfo& info : file.describe_metadata()) {
    const std::string key(info.key), name = new_name(key);
    if (!name.empty()) copy_key(file, key, info.type, name, copy);
  }
  for (const GgufTensor& tensor : file.tensors())
    if (is_wanted(tensor))
      copy.add_tensor(tensor.name, tensor.type, {tensor.ne.begin(), tensor.ne.begin() + tensor.n_dims},
                      Bytes(tensor.data, tensor.data + tensor.n_bytes));
  return copy;
}

GgufWriter without_indexer(const GgufFile& model, const std::string& architecture) {
  GgufWriter copy = gguf_copy(
      model,
      [&](const std::string& key) {
        const bool is_left_out = key == "general.architecture" || key.find(".attention.indexer.") != key.npos;
        return is_left_out ? "" : as_architecture(key, architecture);
      },
      [](const GgufTensor& tensor) { return !is_of_indexer(tensor); });
  copy.add("general.architecture", architecture);
  return copy;
}

GgufWriter indexer_of(const GgufFile& model) {
  return gguf_copy(
      model,
      [](const std::string& key) {
        const bool is_kept = key.starts_with("deepseek32.") || key.starts_with("general.");
        return is_kept ? key : "";
      },
      is_of_indexer);
}

}  // namespace dsv32
