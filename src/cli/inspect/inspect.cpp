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

// The chat format that a file's messages get, or nothing; and why.
struct FileChat {
  const char* name = nullptr;
  std::string reason;
};

FileChat chat_of(const GgufFile& file) try {
  const std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(file);
  const ChatFormat format(*tokenizer);
  return {traits_of(format.kind()).name, find_chat_kind(*tokenizer).reason};
} catch (const Error& error) {
  return {nullptr, error.what()};
}

// The tensors of the file's first block for drafts (MTP), whatever else the file is.
struct FileDraft {
  int64_t block = -1;  // -1: there is none
  std::string path;
  std::set<std::string> types;  // of its matrices
  uint64_t n_bytes = 0;
};

FileDraft draft_of(const GgufFile& file) {
  FileDraft draft;
  for (const GgufTensor& tensor : file.tensors()) {
    const int64_t block = block_of(tensor.name);
    const bool is_earlier = draft.block < 0 || block < draft.block;
    if (tensor.name.find(".nextn.") == tensor.name.npos || block < 0 || !is_earlier) continue;
    draft.block = block, draft.path = file.path_of(tensor);
  }
  for (const GgufTensor& tensor : file.tensors()) {
    if (draft.block < 0 || block_of(tensor.name) != draft.block) continue;
    draft.n_bytes += tensor.n_bytes;
    if (tensor.n_dims > 1) draft.types.insert(type_name(tensor.type));
  }
  return draft;
}

std::string draft_text(const GgufFile& file) {
  const FileDraft draft = draft_of(file);
  if (draft.block < 0) return "block for drafts: none\n";
  return format("block for drafts: blk.%lld, %s, matrices in %s, in %s\n", as_ll(draft.block),
                human_bytes(draft.n_bytes).c_str(),
                joined({draft.types.begin(), draft.types.end()}, ", ").c_str(), visible(draft.path).c_str());
}

Json draft_json(const GgufFile& file) {
  const FileDraft draft = draft_of(file);
  if (draft.block < 0) return nullptr;
  return {{"block", draft.block},
          {"path", sanitize_utf8(draft.path)},
          {"bytes", draft.n_bytes},
          {"types", draft.types}};
}

std::string model_text(const GgufFile& file) {
  const FileChat chat = chat_of(file);
  std::string text = format("%s: %zu part(s), %s, %zu tensors\n", visible(file.path()).c_str(),
                            file.n_parts(), human_bytes(file.n_bytes()).c_str(), file.tensors().size());
  text += format("chat format: %s: %s\n", chat.name ? chat.name : "none", visible(chat.reason).c_str());
  text += draft_text(file) + "\n";
  for (const auto& info : file.describe_metadata())
    text += format("%-48s %-10s %s\n", visible(info.key).c_str(), info.type.c_str(), info.value.c_str());
  text += "\n";
  for (const GgufTensor& tensor : file.tensors())
    text += format("%-48s %-8s %-22s %12s bytes, part %d at %llu\n", visible(tensor.name).c_str(),
                   type_name(tensor.type), shape_text(tensor).c_str(),
                   tensor.n_bytes ? std::to_string(tensor.n_bytes).c_str() : "?", tensor.part,
                   static_cast<unsigned long long>(tensor.offset));
  return text;
}

Json model_json(const GgufFile& file) {
  const FileChat chat = chat_of(file);
  Json metadata = Json::array(), tensors = Json::array();
  for (const auto& info : file.describe_metadata())
    metadata.push_back(
        {{"key", sanitize_utf8(info.key)}, {"type", info.type}, {"value", sanitize_utf8(info.value)}});
  for (const GgufTensor& tensor : file.tensors())
    tensors.push_back({{"name", sanitize_utf8(tensor.name)},
                       {"type", type_name(tensor.type)},
                       {"shape", std::vector(tensor.ne.begin(), tensor.ne.begin() + tensor.n_dims)},
                       {"bytes", tensor.n_bytes ? Json(tensor.n_bytes) : Json()},
                       {"part", tensor.part},
                       {"offset", tensor.offset}});
  return {{"path", sanitize_utf8(file.path())},
          {"parts", file.n_parts()},
          {"bytes", file.n_bytes()},
          {"chat_format",
           {{"name", chat.name ? Json(chat.name) : Json()}, {"reason", sanitize_utf8(chat.reason)}}},
          {"draft", draft_json(file)},
          {"metadata", metadata},
          {"tensors", tensors}};
}

}  // namespace

void write_result(const Options& options, const std::string& text, const Json& json) {
  write_out(options.json ? shown_json(json) + "\n" : text);
}

int inspect_model(const Options& options) {
  const GgufFile file = open_model(options);
  write_result(options, model_text(file), model_json(file));
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
