#include "tests/support/constrained_vocabulary.h"

#include <algorithm>

#include "gguf/gguf.h"
#include "tests/support/bpe_vocabulary.h"
#include "tests/support/tiny_vocabulary.h"

namespace dsv32 {

namespace {

std::string spelt_as_in_a_file(std::string_view bytes) {
  std::string token;
  for (const char byte : bytes) token += byte_character(static_cast<uint8_t>(byte));
  return token;
}

Vocabulary crossing_tokens() {
  Vocabulary vocabulary = bpe_vocabulary();
  for (const char* bytes : {"{\"",
                            "{}",
                            "[]",
                            "\"}",
                            "\"},{\"",
                            "\"}, {\"",
                            "\":",
                            "\": ",
                            "\":\"",
                            "\": \"",
                            "\":[",
                            "\":{\"",
                            "\",\"",
                            "\", \"",
                            "\"],\"",
                            "\"]",
                            "]]",
                            "}}",
                            "}]",
                            "[[",
                            "[{\"",
                            "true}",
                            "false,",
                            "null]",
                            "null,\"",
                            "tru",
                            "ull",
                            "1,",
                            "1}",
                            "12",
                            "123",
                            "0.5",
                            "-1",
                            "1e",
                            "e-1",
                            ".0",
                            "\\\"",
                            "\\n",
                            "\\u00",
                            "\\u0041",
                            "00e4\"",
                            "\xc3",
                            "\xa4",
                            "\xa4\"",
                            "\xf0\x9f",
                            "\x98\x80",
                            "\xf0\x9f\x98\x80",
                            "\xe6\xb0\xb4\",\"",
                            "  ",
                            ",  ",
                            "\n",
                            "{\n",
                            "\"\n",
                            "a\"",
                            "name\":\"",
                            "kind",
                            "circle\",",
                            "2024-",
                            "-02-29",
                            "T12:",
                            "a\":1,\"b",
                            "\",\"b\":",
                            "\"a\":1}",
                            "abc\"}",
                            "}\n",
                            "\"\"",
                            "\"\"}",
                            "[1,2",
                            "],[",
                            "\\\\"}) {
    const std::string token = spelt_as_in_a_file(bytes);
    if (std::find(vocabulary.tokens.begin(), vocabulary.tokens.end(), token) != vocabulary.tokens.end())
      continue;
    vocabulary.tokens.push_back(token);
    vocabulary.types.push_back(TokenType::normal);
  }
  return vocabulary;
}

}  // namespace

ConstrainedVocabulary::ConstrainedVocabulary(Vocabulary vocabulary) {
  const std::vector<TokenType> types = vocabulary.types;
  tokenizer_ = Tokenizer::make(std::move(vocabulary));
  trie_ = std::make_shared<const TokenTrie>(*tokenizer_);
  byte_ids_.fill(-1);
  for (int32_t id = 0; id < n_vocab(); ++id) {
    const TokenType type = types[static_cast<size_t>(id)];
    const std::string bytes(tokenizer_->bytes_of(id));
    const bool is_text = (type == TokenType::normal || type == TokenType::byte) && !bytes.empty();
    is_text_.push_back(is_text);
    first_bytes_.push_back(is_text ? static_cast<uint8_t>(bytes[0]) : 256);
    if (tokenizer_->is_end_of_generation(id)) end_ids_.push_back(id);
    if (!is_text) continue;
    if (bytes.size() == 1) byte_ids_[static_cast<uint8_t>(bytes[0])] = id;
    id_of_.emplace(bytes, id);
    most_bytes_ = std::max(most_bytes_, bytes.size());
  }
}

std::vector<int32_t> ConstrainedVocabulary::longest_tokens(std::string_view text) const {
  std::vector<int32_t> ids;
  while (!text.empty()) {
    size_t n_bytes = std::min(text.size(), most_bytes_);
    while (!id_of_.contains(std::string(text.substr(0, n_bytes)))) --n_bytes;
    ids.push_back(id_of_.at(std::string(text.substr(0, n_bytes))));
    text.remove_prefix(n_bytes);
  }
  return ids;
}

std::vector<int32_t> ConstrainedVocabulary::byte_tokens(std::string_view text) const {
  std::vector<int32_t> ids;
  for (const char byte : text) ids.push_back(byte_id(static_cast<uint8_t>(byte)));
  return ids;
}

const ConstrainedVocabulary& demo_vocabulary() {
  static const ConstrainedVocabulary vocabulary(load_vocabulary(GgufFile("models/demo.gguf")));
  return vocabulary;
}

const ConstrainedVocabulary& crossing_vocabulary() {
  static const ConstrainedVocabulary vocabulary(crossing_tokens());
  return vocabulary;
}

std::vector<uint32_t> mask_of(Constraint& constraint, const ConstrainedVocabulary& vocabulary) {
  std::vector<uint32_t> mask((static_cast<size_t>(vocabulary.n_vocab()) + 31) / 32);
  constraint.write_mask(mask);
  return mask;
}

}  // namespace dsv32
