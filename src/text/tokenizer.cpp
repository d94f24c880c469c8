// What both kinds of tokenizer share: tables over the vocabulary, special tokens, and bytes that are not
// UTF-8.
//
// encode() cuts at special tokens, encode_plain() adds the space that some vocabularies want,
// encode_any_bytes() cuts at malformed bytes; encode_utf8() gets well-formed text without special tokens.
#include "text/tokenizer.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "text/marks.h"

namespace dsv32 {
namespace {

constexpr size_t kMaxTextBytes = 1u << 30;  // so byte offsets in a text fit 32 bits
constexpr size_t kUsualBytes = 8;           // few texts have more bytes for each token

std::string bytes_of_token(const std::string& token, TokenType type,
                           std::string (*bytes_of_text)(const std::string&)) {
  if (type == TokenType::control && token == marks::kDsml) return token;
  switch (type) {
    case TokenType::normal: return bytes_of_text(token);
    case TokenType::user_defined: return token;
    case TokenType::byte: return std::string(1, static_cast<char>(byte_token_value(token)));
    case TokenType::unknown:
    case TokenType::control:
    case TokenType::unused: break;
  }
  return {};
}

}  // namespace

std::unique_ptr<Tokenizer> Tokenizer::make(Vocabulary vocabulary) {
  check_vocabulary(vocabulary);
  return (vocabulary.model == "llama" ? make_spm_tokenizer : make_bpe_tokenizer)(std::move(vocabulary));
}

Tokenizer::Tokenizer(Vocabulary vocabulary, std::string (*bytes_of_text)(const std::string& token))
    : vocabulary_(std::move(vocabulary)) {
  bytes_.reserve(vocabulary_.tokens.size());
  id_of_name_.reserve(vocabulary_.tokens.size());
  for (int32_t id = 0; id < n_vocab(); ++id) {
    const std::string& token = vocabulary_.tokens[static_cast<size_t>(id)];
    const TokenType type = type_of(id);
    bytes_.push_back(bytes_of_token(token, type, bytes_of_text));
    id_of_name_.emplace(token, id);
    if (type == TokenType::control || type == TokenType::user_defined) specials_.emplace(token, id);
  }
  end_ids_.insert(vocabulary_.eos_id);
  for (const std::string_view name : marks::kEnds)
    if (const std::optional<int32_t> id = find(name)) end_ids_.insert(*id);
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool parse_special, size_t n_most) const {
  if (text.size() > kMaxTextBytes)
    fail(ErrorKind::usage, format("the text has %zu bytes, at most 1 GiB can be encoded", text.size()));
  std::vector<int32_t> ids;
  if (text.size() / kUsualBytes > n_most) {
    const std::string_view begin = text.substr(0, kUsualBytes * (n_most + 1));
    ids = encode(begin.substr(0, begin.size() - incomplete_utf8_tail(begin)), parse_special);
    if (ids.size() > n_most) return ids;
    ids.clear();
  }
  size_t plain = 0;  // where the text since the last special token begins
  for (size_t at = 0; parse_special && at < text.size();) {
    const auto special = special_at(text.substr(at));
    if (special == specials_.end()) {
      ++at;
      continue;
    }
    encode_plain(text.substr(plain, at - plain), ids);
    ids.push_back(special->second);
    plain = at += special->first.size();
  }
  encode_plain(text.substr(plain), ids);
  return ids;
}

// The longest special token with which the text begins. Names that sort between this one and the text begin
// with it too, so what the text shares with the last name before it begins with it as well.
Tokenizer::SpecialTokens::const_iterator Tokenizer::special_at(std::string_view text) const {
  for (auto at = specials_.upper_bound(text); at != specials_.begin(); at = specials_.upper_bound(text)) {
    const std::string_view name = (--at)->first;
    if (text.starts_with(name)) return at;
    text = text.substr(0, static_cast<size_t>(std::ranges::mismatch(text, name).in1 - text.begin()));
  }
  return specials_.end();
}

void Tokenizer::encode_plain(std::string_view text, std::vector<int32_t>& ids) const {
  if (text.empty()) return;
  if (!vocabulary_.add_space_prefix) return encode_any_bytes(text, ids);
  encode_any_bytes(" " + std::string(text), ids);
}

void Tokenizer::encode_any_bytes(std::string_view text, std::vector<int32_t>& ids) const {
  for (size_t at = 0, end = 0; at < text.size(); at = end) {
    uint32_t code_point = 0;
    while (const int n_bytes = end < text.size() ? decode_utf8(text, end, &code_point) : 0)
      end += static_cast<size_t>(n_bytes);
    if (end > at) encode_utf8(text.substr(at, end - at), ids);
    if (end < text.size()) ids.push_back(byte_id(text[end++]));
  }
}

size_t Tokenizer::checked(int32_t id) const {
  if (id < 0 || id >= n_vocab())
    fail(ErrorKind::usage, format("token id %d is outside the vocabulary of %d", id, n_vocab()));
  return static_cast<size_t>(id);
}

std::string_view Tokenizer::piece(int32_t id) const {
  const std::string_view bytes = bytes_of(id);
  return bytes.empty() ? vocabulary_.tokens[static_cast<size_t>(id)] : bytes;
}

std::optional<int32_t> Tokenizer::find(std::string_view name) const {
  const auto found = id_of_name_.find(name);
  return found == id_of_name_.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace dsv32
