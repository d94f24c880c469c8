// Reading and checking of the tokenizer.ggml.* keys.
//
// Every message names the key or the token's number, and shows what the file wrote as it may be printed.
// Checks go from what later ones rely on (lengths) to single tokens; the merges are checked where they are
// resolved (merge_table).
#include "text/vocabulary.h"

#include <array>
#include <cmath>
#include <unordered_set>

#include "base/error.h"
#include "base/text.h"

namespace dsv32 {
namespace {

constexpr size_t kMaxTokens = 1u << 24;
constexpr size_t kMaxTokenBytes = 1u << 16;  // the longest in the official file has some 128
constexpr const char* kHint = "this program reads the tokenizers of DeepSeek-V3.2 files";

template <typename T>
T required(std::optional<T> value, const char* key) {
  if (!value) fail(ErrorKind::model, format("the model file has no key %s", key), kHint);
  return std::move(*value);
}

int32_t load_id(const GgufFile& file, const char* key) {
  const uint32_t id = required(file.get_u32(key), key);
  if (id > INT32_MAX) fail(ErrorKind::model, format("%s is %u, which is no token id", key, id));
  return static_cast<int32_t>(id);
}

std::vector<std::string> load_strings(const GgufFile& file, const char* key) {
  const std::vector<std::string_view> views = required(file.get_strings(key), key);
  return {views.begin(), views.end()};
}

std::vector<TokenType> load_types(const GgufFile& file) {
  std::vector<TokenType> types;
  for (const int32_t type : required(file.get_i32s("tokenizer.ggml.token_type"), "tokenizer.ggml.token_type"))
    types.push_back(static_cast<TokenType>(type));
  return types;
}

void check_kind(const Vocabulary& vocabulary) {
  if (vocabulary.model != "gpt2" && vocabulary.model != "llama") {
    fail(ErrorKind::model,
         format("tokenizer.ggml.model is \"%s\", expected \"gpt2\" or \"llama\"",
                visible(vocabulary.model, false, 40).c_str()),
         kHint);
  }
  // deepseek-v3.1 and the like: one tokenizer under the names of its models.
  if (vocabulary.model == "gpt2" && !vocabulary.pre.starts_with("deepseek-v3")) {
    fail(ErrorKind::model,
         format("tokenizer.ggml.pre is \"%s\", expected \"deepseek-v3\"",
                visible(vocabulary.pre, false, 40).c_str()),
         kHint);
  }
}

void check_length(size_t n_entries, size_t n_tokens, const char* key) {
  if (n_entries != n_tokens)
    fail(ErrorKind::model, format("%s has %zu entries for %zu tokens", key, n_entries, n_tokens));
}

void check_lengths(const Vocabulary& vocabulary) {
  const size_t n_tokens = vocabulary.tokens.size();
  if (n_tokens == 0 || n_tokens > kMaxTokens) {
    fail(ErrorKind::model,
         format("tokenizer.ggml.tokens has %zu tokens, expected 1 to %zu", n_tokens, kMaxTokens));
  }
  check_length(vocabulary.types.size(), n_tokens, "tokenizer.ggml.token_type");
  if (vocabulary.model == "llama" || !vocabulary.scores.empty())
    check_length(vocabulary.scores.size(), n_tokens, "tokenizer.ggml.scores");
  if (vocabulary.model == "gpt2" && vocabulary.merges.empty())
    fail(ErrorKind::model, "tokenizer.ggml.merges is absent or empty");
}

void check_id(int32_t id, size_t n_tokens, const char* key) {
  if (id < 0 || static_cast<size_t>(id) >= n_tokens)
    fail(ErrorKind::model, format("%s is %d, expected less than the %zu tokens", key, id, n_tokens));
}

void check_tokens(const Vocabulary& vocabulary) {
  std::unordered_set<std::string_view> seen;
  seen.reserve(vocabulary.tokens.size());
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const std::string& token = vocabulary.tokens[id];
    if (token.empty() || token.size() > kMaxTokenBytes) {
      fail(ErrorKind::model,
           format("token %zu has %zu bytes, expected 1 to %zu", id, token.size(), kMaxTokenBytes));
    }
    if (!seen.insert(token).second) {
      fail(ErrorKind::model,
           format("token %zu repeats the earlier token \"%s\"", id, visible(token, false, 40).c_str()));
    }
    const int32_t type = static_cast<int32_t>(vocabulary.types[id]);
    if (type < 1 || type > 6)
      fail(ErrorKind::model,
           format("tokenizer.ggml.token_type is %d for token %zu, expected 1 to 6", type, id));
  }
}

void check_byte_tokens(const Vocabulary& vocabulary) {
  std::array<bool, 256> seen{};
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    if (vocabulary.types[id] != TokenType::byte) continue;
    const std::string name = visible(vocabulary.tokens[id], false, 40);
    const int value = byte_token_value(vocabulary.tokens[id]);
    if (value < 0)
      fail(ErrorKind::model,
           format("byte token %zu is written \"%s\", expected <0x00> to <0xFF>", id, name.c_str()));
    if (seen[static_cast<size_t>(value)])
      fail(ErrorKind::model, format("byte token %zu, \"%s\", occurs twice", id, name.c_str()));
    seen[static_cast<size_t>(value)] = true;
  }
}

void check_scores(const Vocabulary& vocabulary) {
  for (size_t id = 0; id < vocabulary.scores.size(); ++id) {
    if (!std::isfinite(vocabulary.scores[id]))
      fail(ErrorKind::model, format("tokenizer.ggml.scores is not finite for token %zu", id));
  }
}

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

}  // namespace

Vocabulary load_vocabulary(const GgufFile& file) {
  Vocabulary vocabulary;
  vocabulary.model = required(file.get_string("tokenizer.ggml.model"), "tokenizer.ggml.model");
  vocabulary.pre = file.get_string("tokenizer.ggml.pre").value_or("");
  check_kind(vocabulary);
  vocabulary.tokens = load_strings(file, "tokenizer.ggml.tokens");
  vocabulary.types = load_types(file);
  vocabulary.bos_id = load_id(file, "tokenizer.ggml.bos_token_id");
  vocabulary.eos_id = load_id(file, "tokenizer.ggml.eos_token_id");
  if (vocabulary.model == "gpt2") {
    vocabulary.merges = load_strings(file, "tokenizer.ggml.merges");
  } else {
    vocabulary.scores = required(file.get_f32s("tokenizer.ggml.scores"), "tokenizer.ggml.scores");
    vocabulary.add_space_prefix = file.get_bool("tokenizer.ggml.add_space_prefix").value_or(true);
  }
  return vocabulary;
}

void check_vocabulary(const Vocabulary& vocabulary) {
  check_kind(vocabulary);
  check_lengths(vocabulary);
  check_tokens(vocabulary);
  check_byte_tokens(vocabulary);
  check_scores(vocabulary);
  check_id(vocabulary.bos_id, vocabulary.tokens.size(), "tokenizer.ggml.bos_token_id");
  check_id(vocabulary.eos_id, vocabulary.tokens.size(), "tokenizer.ggml.eos_token_id");
}

int byte_token_value(std::string_view token) {
  if (token.size() != 6 || token.substr(0, 3) != "<0x" || token[5] != '>') return -1;
  const int high = hex_value(token[3]), low = hex_value(token[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

}  // namespace dsv32
