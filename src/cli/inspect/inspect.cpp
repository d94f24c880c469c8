// See inspect.h. Names from the file are escaped, for a terminal and in a pipe alike, but for the two
// contracts that other programs read byte by byte: token ids, and the rendered prompt in a pipe.
#include "cli/inspect/inspect.h"

#include "base/error.h"
#include "base/text.h"
#include "cli/options/json.h"
#include "cli/options/model_lookup.h"
#include "cli/options/prompt.h"
#include "cli/terminal/streams.h"
#include "cli/terminal/terminal.h"
#include "cli/warm/loaded_model.h"
#include "weights/weights.h"

#include <unistd.h>

namespace dsv32 {
namespace {

// "[256, 512]", the contiguous dimension first, as in the file.
std::string shape_text(const GgufTensor& tensor) {
  std::string text;
  for (uint32_t i = 0; i < tensor.n_dims; ++i)
    text += format("%s%llu", i ? ", " : "[", static_cast<unsigned long long>(tensor.ne[i]));
  return text + "]";
}

void print_model(const GgufFile& file) {
  write_out(format("%s: %zu part(s), %s, %zu tensors\n\n", visible(file.path()).c_str(), file.n_parts(),
                   human_bytes(file.n_bytes()).c_str(), file.tensors().size()));
  std::string text;
  for (const auto& info : file.describe_metadata())
    text += format("%-48s %-10s %s\n", visible(info.key).c_str(), info.type.c_str(), info.value.c_str());
  text += "\n";
  for (const GgufTensor& tensor : file.tensors())
    text += format("%-48s %-8s %-22s %12s bytes, part %d at %llu\n", visible(tensor.name).c_str(),
                   type_name(tensor.type), shape_text(tensor).c_str(),
                   tensor.n_bytes ? std::to_string(tensor.n_bytes).c_str() : "?", tensor.part,
                   static_cast<unsigned long long>(tensor.offset));
  write_out(text);
}

void print_model_json(const GgufFile& file) {
  Json metadata = Json::array(), tensors = Json::array();
  for (const auto& info : file.describe_metadata())
    metadata.push_back(
        {{"key", sanitize_utf8(info.key)}, {"type", info.type}, {"value", sanitize_utf8(info.value)}});
  for (const GgufTensor& tensor : file.tensors()) {
    Json shape = Json::array();
    for (uint32_t i = 0; i < tensor.n_dims; ++i) shape.push_back(tensor.ne[i]);
    tensors.push_back({{"name", sanitize_utf8(tensor.name)},
                       {"type", type_name(tensor.type)},
                       {"shape", shape},
                       {"bytes", tensor.n_bytes ? Json(tensor.n_bytes) : Json()},
                       {"part", tensor.part},
                       {"offset", tensor.offset}});
  }
  const Json json{{"path", sanitize_utf8(file.path())},
                  {"parts", file.n_parts()},
                  {"bytes", file.n_bytes()},
                  {"metadata", metadata},
                  {"tensors", tensors}};
  write_out(json.dump() + "\n");
}

}  // namespace

int inspect_model(const Options& options) {
  const GgufFile file(find_model(options));
  if (options.json)
    print_model_json(file);
  else
    print_model(file);
  return 0;
}

namespace {

std::string text_of_words(const Options& options) {
  if (!options.words.empty()) return joined(options.words);
  if (is_terminal(STDIN_FILENO))
    fail(ErrorKind::usage, "there is no text, expected it as a word or on standard input");
  return read_input("-", options);
}

}  // namespace

int inspect_tokens(const Options& options) {
  const std::string text = text_of_words(options);
  const GgufFile file(find_model(options));
  const std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(file);
  report_tokenizer(*tokenizer, options);
  const std::vector<int32_t> ids = tokenizer->encode(text, options.parse_special);
  if (options.json) {
    Json pieces = Json::array();
    for (const int32_t id : ids) pieces.push_back(sanitize_utf8(tokenizer->piece(id)));
    write_out(Json{{"tokens", ids}, {"pieces", pieces}}.dump() + "\n");
    return 0;
  }
  std::string line;
  for (const int32_t id : ids) line += (line.empty() ? "" : " ") + std::to_string(id);
  write_out(line + "\n");
  return 0;
}

int inspect_prompt(const Options& options) {
  const PromptText text = read_prompt(options, is_terminal(STDIN_FILENO));
  const GgufFile file(find_model(options));
  const std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(file);
  report_tokenizer(*tokenizer, options);
  const Prompt prompt = make_prompt(*tokenizer, text, options.is_raw, options.generation.thinking);
  if (options.json)
    write_out(Json{{"prompt", sanitize_utf8(prompt.rendered)}, {"tokens", prompt.ids}}.dump() + "\n");
  else
    write_out(prompt.rendered + (is_terminal(STDOUT_FILENO) ? "\n" : ""));
  return 0;
}

}  // namespace dsv32
