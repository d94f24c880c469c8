// `dsv32 inspect model`, `tokens`, `prompt` and `logits`. Names from the file are escaped, also in a pipe.
// Token ids and, in a pipe, the rendered prompt are exact, since other programs read them byte by byte.
#include "cli/inspect/inspect.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>

#include <unistd.h>

#include "base/error.h"
#include "base/text.h"
#include "cli/options/inputs.h"
#include "cli/options/json.h"
#include "cli/terminal/signals.h"
#include "cli/terminal/streams.h"
#include "cli/warm/model.h"
#include "engine/sampler.h"
#include "engine/sequence.h"
#include "weights/weights.h"

namespace dsv32 {
namespace {

static_assert(std::endian::native == std::endian::little);  // logits are written as they lie in memory

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

std::string text_of_words(const Options& options) {
  if (!options.words.empty()) return joined(options.words);
  if (is_terminal(STDIN_FILENO))
    fail(ErrorKind::usage, "there is no text, expected it as a word or on standard input");
  return read_input("-", options);
}

std::unique_ptr<Tokenizer> find_tokenizer(const Options& options) {
  std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(GgufFile(find_model(options)));
  report_tokenizer(*tokenizer, options);
  return tokenizer;
}

// Throws as the sampler does when a logit is not finite. `logits`: rows of `vocab_size`.
void check_finite(const std::vector<float>& logits, int64_t vocab_size) {
  const auto found = std::ranges::find_if_not(logits, [](float value) { return std::isfinite(value); });
  if (found == logits.end()) return;
  const auto id = static_cast<int32_t>((found - logits.begin()) % vocab_size);
  TokenRecord{.chosen = {id, *found}, .top = {}, .is_finite = false}.check();
}

}  // namespace

int inspect_model(const Options& options) {
  const GgufFile file = open_model(options);
  write_out(options.json ? shown_json(model_json(file)) + "\n" : model_text(file));
  return 0;
}

int inspect_tokens(const Options& options) {
  const std::string text = text_of_words(options);
  const std::unique_ptr<Tokenizer> tokenizer = find_tokenizer(options);
  const std::vector<int32_t> ids = tokenizer->encode(text, options.parse_special);
  std::string line;
  Json pieces = Json::array();
  for (const int32_t id : ids) {
    line += (line.empty() ? "" : " ") + std::to_string(id);
    pieces.push_back(sanitize_utf8(tokenizer->piece(id)));
  }
  write_out((options.json ? shown_json({{"tokens", ids}, {"pieces", pieces}}) : line) + "\n");
  return 0;
}

int inspect_prompt(const Options& options) {
  const PromptText text = read_prompt(options, is_terminal(STDIN_FILENO));
  const Prompt prompt = make_prompt(*find_tokenizer(options), text, options.is_raw, chat_choice(options));
  if (options.json)
    write_out(shown_json({{"prompt", sanitize_utf8(prompt.rendered)}, {"tokens", prompt.ids}}) + "\n");
  else
    write_out(prompt.rendered + (is_terminal(STDOUT_FILENO) ? "\n" : ""));
  return 0;
}

std::vector<int32_t> parse_token_list(std::string_view text, int64_t vocab_size) {
  constexpr std::string_view kSeparators = ", \n\t\r";
  std::vector<int32_t> ids;
  for (size_t at; (at = text.find_first_not_of(kSeparators)) != std::string_view::npos;) {
    text.remove_prefix(at);
    const std::string_view word = text.substr(0, text.find_first_of(kSeparators));
    int32_t id = -1;
    const auto result = std::from_chars(word.data(), word.data() + word.size(), id);
    if (result.ec != std::errc{} || result.ptr != word.data() + word.size() || id < 0 || id >= vocab_size)
      fail(ErrorKind::usage, format("--tokens has '%s', expected ids from 0 to %lld",
                                    visible(word, false, 40).c_str(), as_ll(vocab_size - 1)));
    ids.push_back(id);
    text.remove_prefix(word.size());
  }
  if (ids.empty()) fail(ErrorKind::usage, "--tokens has no ids, expected at least one");
  return ids;
}

// Computes and writes a step at a time, so that only one step's logits are in memory.
int inspect_logits(const Options& options) {
  const std::string& list = options.token_list;
  const std::string text = list.starts_with("@") ? read_input(list.substr(1), options) : list;
  OutputFile file(options.output_path);
  Model model(options);
  model.load();
  const int64_t vocab_size = model.facts().vocab_size, context = model.facts().context;
  const std::vector<int32_t> ids = parse_token_list(text, vocab_size);
  if (std::ssize(ids) > context)
    fail(ErrorKind::context_full,
         format("--tokens has %zu ids, the context holds %lld", ids.size(), as_ll(context)));
  model.report();
  const GracefulStop stop;
  ByHand sequence(model.engine());
  const size_t chunk = static_cast<size_t>(model.engine().forward().max_tokens());
  for (size_t begin = 0; begin < ids.size(); begin += chunk) {
    if (stop.is_requested()) return stop.end();
    const std::vector<float> logits =
        sequence.all_logits(std::span(ids).subspan(begin, std::min(chunk, ids.size() - begin)));
    check_finite(logits, vocab_size);
    file.write({reinterpret_cast<const char*>(logits.data()), logits.size() * sizeof(float)});
  }
  model.engine().check_file();
  file.commit();
  return 0;
}

}  // namespace dsv32
