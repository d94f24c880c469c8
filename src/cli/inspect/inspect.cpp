// `dsv32 inspect model` and `tokens`. Names from the file are escaped, also in a pipe. Token ids and, in a
// pipe, the rendered prompt are exact, since other programs read them byte by byte.
#include "cli/inspect/inspect.h"

#include <unistd.h>

#include "base/error.h"
#include "base/text.h"
#include "cli/options/inputs.h"
#include "cli/options/request_json.h"
#include "cli/terminal/streams.h"
#include "cli/warm/model.h"

namespace dsv32 {
namespace {

// "[256, 512]", the contiguous dimension first, as in the file.
std::string shape_text(const GgufTensor& tensor) {
  std::string text;
  for (uint32_t i = 0; i < tensor.n_dims; ++i)
    text += format("%s%llu", i ? ", " : "[", static_cast<unsigned long long>(tensor.ne[i]));
  return text + "]";
}

// What follows writes a part of the file for people, and the same into `json` for programs.

// The chat format that the file's messages get, or none; and why.
std::string show_chat(const GgufFile& file, Json& json) {
  const char* name = nullptr;
  std::string reason;
  try {
    const std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(file);
    name = ChatFormat(*tokenizer).kind().name;
    reason = find_chat_kind(*tokenizer).reason;
  } catch (const Error& error) {
    reason = error.what();
  }
  json = {{"name", name ? Json(name) : Json()}, {"reason", sanitize_utf8(reason)}};
  return format("chat format: %s: %s\n", name ? name : "none", visible(reason).c_str());
}

// The tensors of the file's first block for drafts (MTP), whatever else the file is.
std::string show_draft(const GgufFile& file, Json& json) {
  int64_t first = -1;
  std::string path;
  for (const GgufTensor& tensor : file.tensors()) {
    const int64_t block = block_of(tensor.name);
    const bool is_earlier = first < 0 || block < first;
    if (tensor.name.find(".nextn.") == tensor.name.npos || block < 0 || !is_earlier) continue;
    first = block, path = file.path_of(tensor);
  }
  if (first < 0) return "block for drafts: none\n";
  std::set<std::string> types;  // of its matrices
  uint64_t n_bytes = 0;
  for (const GgufTensor& tensor : file.tensors()) {
    if (block_of(tensor.name) != first) continue;
    n_bytes += tensor.n_bytes;
    if (tensor.n_dims > 1) types.insert(type_name(tensor.type));
  }
  json = {{"block", first}, {"path", sanitize_utf8(path)}, {"bytes", n_bytes}, {"types", types}};
  return format("block for drafts: blk.%lld, %s, matrices in %s, in %s\n", as_ll(first),
                human_bytes(n_bytes).c_str(), joined({types.begin(), types.end()}, ", ").c_str(),
                visible(path).c_str());
}

std::string show_metadata(const GgufFile& file, Json& json) {
  std::string text;
  json = Json::array();
  for (const auto& info : file.describe_metadata()) {
    text += format("%-48s %-10s %s\n", visible(info.key).c_str(), info.type.c_str(), info.value.c_str());
    json.push_back(
        {{"key", sanitize_utf8(info.key)}, {"type", info.type}, {"value", sanitize_utf8(info.value)}});
  }
  return text;
}

std::string show_tensors(const GgufFile& file, Json& json) {
  std::string text;
  json = Json::array();
  for (const GgufTensor& tensor : file.tensors()) {
    text += format("%-48s %-8s %-22s %12s bytes, part %d at %llu\n", visible(tensor.name).c_str(),
                   type_name(tensor.type), shape_text(tensor).c_str(),
                   tensor.n_bytes ? std::to_string(tensor.n_bytes).c_str() : "?", tensor.part,
                   static_cast<unsigned long long>(tensor.offset));
    json.push_back({{"name", sanitize_utf8(tensor.name)},
                    {"type", type_name(tensor.type)},
                    {"shape", std::vector(tensor.ne.begin(), tensor.ne.begin() + tensor.n_dims)},
                    {"bytes", tensor.n_bytes ? Json(tensor.n_bytes) : Json()},
                    {"part", tensor.part},
                    {"offset", tensor.offset}});
  }
  return text;
}

}  // namespace

void write_result(const Options& options, const std::string& text, const Json& json) {
  write_out(options.json ? shown_json(json) + "\n" : text);
}

int inspect_model(const Options& options) {
  const GgufFile file = open_model(options);
  std::string text = format("%s: %zu part(s), %s, %zu tensors\n", visible(file.path()).c_str(),
                            file.n_parts(), human_bytes(file.n_bytes()).c_str(), file.tensors().size());
  Json json{{"path", sanitize_utf8(file.path())}, {"parts", file.n_parts()}, {"bytes", file.n_bytes()}};
  text += show_chat(file, json["chat_format"]);
  text += show_draft(file, json["draft"]) + "\n";
  text += show_metadata(file, json["metadata"]) + "\n";
  text += show_tensors(file, json["tensors"]);
  write_result(options, text, json);
  return 0;
}

// The ids, then the prompt as the model reads it, byte for byte after the first line end.
int inspect_tokens(const Options& options) {
  const ChatRequest request = request_of(read_prompt(options, is_terminal(STDIN_FILENO)), options);
  const std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(GgufFile(find_model(options)));
  report_tokenizer(*tokenizer, options);
  const Prompt prompt = prompt_of(request, *tokenizer);
  std::string line;
  Json pieces = Json::array();
  for (const int32_t id : prompt.ids) {
    line += (line.empty() ? "" : " ") + std::to_string(id);
    pieces.push_back(sanitize_utf8(tokenizer->piece(id)));
  }
  write_result(options, line + "\n" + prompt.rendered + (is_terminal(STDOUT_FILENO) ? "\n" : ""),
               {{"prompt", sanitize_utf8(prompt.rendered)}, {"tokens", prompt.ids}, {"pieces", pieces}});
  return 0;
}

}  // namespace dsv32
