// Sentencepiece, for model files whose tokenizer.ggml.model is "llama".
//
// The library reads only its own model files, so one is built in memory from the vocabulary. It is a protocol
// buffer (sentencepiece_model.proto); Debian does not ship the generated class, and the few kinds of fields
// needed are simpler to write by hand.
#include <sentencepiece_processor.h>

#include <bit>

#include "base/error.h"
#include "base/text.h"
#include "text/tokenizer.h"

namespace dsv32 {
namespace {

// Appends fields in protocol buffer wire format.
class ProtoWriter {
 public:
  ProtoWriter& put_varint(int field, uint64_t value) {
    append_tag(field, 0);
    append_varint(value);
    return *this;
  }
  ProtoWriter& put_bytes(int field, std::string_view value) {
    append_tag(field, 2);
    append_varint(value.size());
    bytes_ += value;
    return *this;
  }
  ProtoWriter& put_float(int field, float value) {
    append_tag(field, 5);
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    for (int shift = 0; shift < 32; shift += 8) bytes_ += static_cast<char>(bits >> shift);
    return *this;
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
  return ProtoWriter()
      .put_bytes(1, text)
      .put_float(2, score)
      .put_varint(3, static_cast<uint64_t>(type))
      .bytes();
}

// Special and unused tokens keep their ids but get names that occur in no text: the library would find a
// token of one character by its name.
std::string make_model(const Vocabulary& vocabulary) {
  ProtoWriter model, trainer, normalizer;
  for (size_t i = 0; i < vocabulary.tokens.size(); ++i) {
    const TokenType type = vocabulary.types[i];
    const bool is_text = type == TokenType::normal || type == TokenType::byte;
    const std::string& token = vocabulary.tokens[i];
    model.put_bytes(1, is_text ? make_piece(token, vocabulary.scores[i], type)
                               : make_piece("\nspecial " + token, 0, TokenType::control));
  }
  // The library insists on an unknown token; with all byte tokens present it is never used.
  model.put_bytes(1, make_piece("\nunknown", 0, TokenType::unknown));
  trainer.put_varint(3, 2);   // model_type = BPE
  trainer.put_varint(35, 1);  // byte_fallback
  normalizer.put_bytes(1, "identity");
  normalizer.put_varint(3, 0);  // add_dummy_prefix: the base class does it
  normalizer.put_varint(4, 0);  // remove_extra_whitespaces
  normalizer.put_varint(5, 1);  // escape_whitespaces
  return model.put_bytes(2, trainer.bytes()).put_bytes(3, normalizer.bytes()).bytes();
}

// ▁ stands for a space in tokens.
std::string bytes_of_spm_text(const std::string& token) { return replaced(token, "\u2581", " "); }

std::string status_text(const sentencepiece::util::Status& status) {
  return visible(status.ToString(), false, 200);
}

class SpmTokenizer : public Tokenizer {
 public:
  explicit SpmTokenizer(Vocabulary given) : Tokenizer(std::move(given), bytes_of_spm_text) {
    int n_byte_tokens = 0;  // check_vocabulary() has refused duplicates
    for (int32_t id = 0; id < n_vocab(); ++id) {
      if (type_of(id) != TokenType::byte) continue;
      const int value = byte_token_value(vocabulary().tokens[static_cast<size_t>(id)]);
      set_byte_id(static_cast<uint8_t>(value), id);
      ++n_byte_tokens;
    }
    if (n_byte_tokens != 256)
      fail(ErrorKind::model, format("tokenizer.ggml.tokens has %d byte tokens, expected 256", n_byte_tokens));
    if (const auto status = processor_.LoadFromSerializedProto(make_model(vocabulary())); !status.ok())
      fail(ErrorKind::model, "sentencepiece refuses the vocabulary: " + status_text(status));
  }

 protected:
  void encode_utf8(std::string_view text, std::vector<int32_t>& ids) const override {
    std::vector<int> found;
    if (const auto status = processor_.Encode(text, &found); !status.ok())
      fail(ErrorKind::internal, "sentencepiece failed: " + status_text(status));
    ids.insert(ids.end(), found.begin(), found.end());
  }

 private:
  sentencepiece::SentencePieceProcessor processor_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_spm_tokenizer(Vocabulary vocabulary) {
  return std::make_unique<SpmTokenizer>(std::move(vocabulary));
}

}  // namespace dsv32
