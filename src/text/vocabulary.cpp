// Reading and checking of the tokenizer.ggml.* keys.
//
// Every message names the key or the token's id, and shows text of the file escaped. The merges are checked
// where they are resolved (bpe_tokenizer.cpp).
#include "text/vocabulary.h"

#include <array>
#include <charconv>
#include <cmath>
#include <unordered_set>

#include "base/error.h"
#include "base/text.h"
#include "text/pre_tokenizer.h"

namespace dsv32 {
namespace {

constexpr size_t kMaxTokens = 1u << 24;
constexpr size_t kMaxTokenBytes = 1u << 16;  // the longest in the official file has some 128
constexpr const char* kHint = "this program reads the tokenizers of DeepSeek-V3.2 files";

// Unless `ok`, throws Error{model} with the printf message.
__attribute__((format(printf, 2, 3))) void check(bool ok, const char* pattern, ...) {
  if (ok) return;
  va_list args;
  va_start(args, pattern);
  char message[1024];  // every argument is far shorter: names are cut by the caller
  std::vsnprintf(message, sizeof message, pattern, args);
  va_end(args);
  fail(ErrorKind::model, message);
}

std::string shown(const std::string& text) { return visible(text, false, 40); }

template <typename T>
T required(std::optional<T> value, const char* key) {
  if (!value) fail(ErrorKind::model, format("the model file has no key %s", key), kHint);
  return std::move(*value);
}

int32_t load_id(const GgufFile& file, const char* key) {
  const uint32_t id = required(file.get_u32(key), key);
  check(id <= INT32_MAX, "%s is %u, which is no token id", key, id);
  return static_cast<int32_t>(id);
}

std::vector<std::string> load_strings(const GgufFile& file, const char* key) {
  const std::vector<std::string_view> views = required(file.get_strings(key), key);
  return {views.begin(), views.end()};
}

void check_kind(const Vocabulary& vocabulary) {
  if (vocabulary.model != "gpt2" && vocabulary.model != "llama")
    fail(ErrorKind::model,
         format("tokenizer.ggml.model is \"%s\", expected \"gpt2\" or \"llama\"",
                shown(vocabulary.model).c_str()),
         kHint);
  if (vocabulary.model == "gpt2") check_pre_tokenizer(vocabulary.pre);
}

// The checks that check_tokens() relies on.
void check_lengths(const Vocabulary& vocabulary) {
  const size_t n_tokens = vocabulary.tokens.size();
  const auto check_length = [&](size_t n, const char* key) {
    check(n == n_tokens, "%s has %zu entries for %zu tokens", key, n, n_tokens);
  };
  const auto check_id = [&](int32_t id, const char* key) {
    check(id >= 0 && static_cast<size_t>(id) < n_tokens, "%s is %d, expected less than the %zu tokens", key,
          id, n_tokens);
  };
  check(n_tokens > 0 && n_tokens <= kMaxTokens, "tokenizer.ggml.tokens has %zu tokens, expected 1 to %zu",
        n_tokens, kMaxTokens);
  check_length(vocabulary.types.size(), "tokenizer.ggml.token_type");
  if (vocabulary.model == "llama" || !vocabulary.scores.empty())
    check_length(vocabulary.scores.size(), "tokenizer.ggml.scores");
  check(vocabulary.model != "gpt2" || !vocabulary.merges.empty(), "tokenizer.ggml.merges is absent or empty");
  check_id(vocabulary.bos_id, "tokenizer.ggml.bos_token_id");
  check_id(vocabulary.eos_id, "tokenizer.ggml.eos_token_id");
}

void check_tokens(const Vocabulary& vocabulary) {
  std::unordered_set<std::string_view> seen;
  std::array<bool, 256> seen_bytes{};
  seen.reserve(vocabulary.tokens.size());
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const std::string& token = vocabulary.tokens[id];
    const auto type = static_cast<int>(vocabulary.types[id]);
    check(!token.empty() && token.size() <= kMaxTokenBytes, "token %zu has %zu bytes, expected 1 to %zu", id,
          token.size(), kMaxTokenBytes);
    if (!seen.insert(token).second)
      check(false, "token %zu repeats the earlier token \"%s\"", id, shown(token).c_str());
    check(type >= 1 && type <= 6, "tokenizer.ggml.token_type is %d for token %zu, expected 1 to 6", type, id);
    if (vocabulary.types[id] != TokenType::byte) continue;
    const int value = byte_token_value(token);
    check(value >= 0, "byte token %zu is written \"%s\", expected <0x00> to <0xFF>", id,
          shown(token).c_str());
    check(!std::exchange(seen_bytes[static_cast<size_t>(value)], true),
          "byte token %zu, \"%s\", occurs twice", id, shown(token).c_str());
  }
  for (size_t id = 0; id < vocabulary.scores.size(); ++id)
    check(std::isfinite(vocabulary.scores[id]), "tokenizer.ggml.scores is not finite for token %zu", id);
}

}  // namespace

Vocabulary load_vocabulary(const GgufFile& file) {
  Vocabulary vocabulary;
  vocabulary.model = required(file.get_string("tokenizer.ggml.model"), "tokenizer.ggml.model");
  vocabulary.pre = file.get_string("tokenizer.ggml.pre").value_or("");
  check_kind(vocabulary);
  vocabulary.chat_template = file.get_string("tokenizer.chat_template").value_or("");
  vocabulary.tokens = load_strings(file, "tokenizer.ggml.tokens");
  for (const int32_t type : required(file.get_i32s("tokenizer.ggml.token_type"), "tokenizer.ggml.token_type"))
    vocabulary.types.push_back(static_cast<TokenType>(type));
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
}

int byte_token_value(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  unsigned value = 0;
  const auto [end, error] = std::from_chars(token.data() + 3, token.data() + 5, value, 16);
  return error == std::errc() && end == token.data() + 5 ? static_cast<int>(value) : -1;
}

}  // namespace dsv32
