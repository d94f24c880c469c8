// The model file for the sentencepiece library, and the calls.
//
// That file is a protocol buffer (sentencepiece_model.proto); Debian does not ship the generated class, and
// the few kinds of field needed here are quicker written by hand.
#include "text/spm_tokenizer.h"

#include <sentencepiece_processor.h>

#include <bit>

#include "base/error.h"
#include "base/text.h"

namespace dsv32 {
namespace {

constexpr std::string_view kSpace = "\u2581";  // ▁ stands for a space in tokens

// Appends fields in protocol buffer wire format.
class ProtoWriter {
 public:
  void put_varint(int field, uint64_t value) {
    append_tag(field, 0);
    append_varint(value);
  }
  void put_bytes(int field, std::string_view value) {
    append_tag(field, 2);
    append_varint(value.size());
    bytes_ += value;
  }
  void put_float(int field, float value) {
    append_tag(field, 5);
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    for (int shift = 0; shift < 32; shift += 8) bytes_ += static_cast<char>(bits >> shift);
  }
  const std::string& bytes() const { return bytes_; }

 private:
  void append_tag(int field, uint32_t wire_type) {
    append_varint(static_cast<uint32_t>(field) << 3 | wire_type);
  }
  void append_varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
  }
  std::string bytes_;
};

std::string make_piece(const std::string& text, float score, TokenType type) {
  ProtoWriter piece;
  piece.put_bytes(1, text);
  piece.put_float(2, score);
  piece.put_varint(3, static_cast<uint64_t>(type));
  return piece.bytes();
}

// The library must never find a special or unused token in a text, not even one of a single character, which
// it would look up by name: they keep their places under names that no text spells as one character.
std::string make_model(const Vocabulary& vocabulary) {
  ProtoWriter model;
  for (size_t i = 0; i < vocabulary.tokens.size(); ++i) {
    const TokenType type = vocabulary.types[i];
    const bool is_text = type == TokenType::normal || type == TokenType::byte;
    const std::string& token = vocabulary.tokens[i];
    model.put_bytes(1, is_text ? make_piece(token, vocabulary.scores[i], type)
                               : make_piece("\nspecial " + token, 0, TokenType::control));
  }
  // The library insists on an unknown token; with all byte tokens present it is never used.
  model.put_bytes(1, make_piece("\nunknown", 0, TokenType::unknown));
  ProtoWriter trainer, normalizer;
  trainer.put_varint(3, 2);   // model_type = BPE
  trainer.put_varint(35, 1);  // byte_fallback
  normalizer.put_bytes(1, "identity");
  normalizer.put_varint(3, 0);  // add_dummy_prefix: the base class does it
  normalizer.put_varint(4, 0);  // remove_extra_whitespaces
  normalizer.put_varint(5, 1);  // escape_whitespaces
  model.put_bytes(2, trainer.bytes());
  model.put_bytes(3, normalizer.bytes());
  return model.bytes();
}

std::string bytes_of_spm_text(const std::string& token) {
  std::string bytes;
  for (size_t at = 0; at < token.size();) {
    const bool is_space = token.compare(at, kSpace.size(), kSpace) == 0;
    bytes += is_space ? ' ' : token[at];
    at += is_space ? kSpace.size() : 1;
  }
  return bytes;
}

}  // namespace

SpmTokenizer::SpmTokenizer(Vocabulary given)
    : Tokenizer(std::move(given), bytes_of_spm_text),
      processor_(std::make_unique<sentencepiece::SentencePieceProcessor>()) {
  int n_byte_tokens = 0;  // check_vocabulary() has seen that none occurs twice
  for (int32_t id = 0; id < n_vocab(); ++id) {
    if (type_of(id) != TokenType::byte) continue;
    const int value = byte_token_value(vocabulary().tokens[static_cast<size_t>(id)]);
    set_byte_id(static_cast<uint8_t>(value), id);
    ++n_byte_tokens;
  }
  if (n_byte_tokens != 256)
    fail(ErrorKind::model, format("tokenizer.ggml.tokens has %d byte tokens, expected 256", n_byte_tokens));
  const auto status = processor_->LoadFromSerializedProto(make_model(vocabulary()));
  if (!status.ok()) {
    fail(ErrorKind::model,
         format("sentencepiece refuses the vocabulary: %s", visible(status.ToString(), false, 200).c_str()));
  }
}

SpmTokenizer::~SpmTokenizer() = default;

void SpmTokenizer::encode_utf8(std::string_view text, std::vector<int32_t>& ids) const {
  std::vector<int> found;
  const auto status = processor_->Encode(text, &found);
  if (!status.ok()) {
    fail(ErrorKind::internal,
         format("sentencepiece failed: %s", visible(status.ToString(), false, 200).c_str()));
  }
  ids.insert(ids.end(), found.begin(), found.end());
}

}  // namespace dsv32
