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

// ---- fields in protocol buffer wire format ----

std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes += static_cast<char>(value);
}

std::string number_field(int field, uint64_t value) {
  return varint(static_cast<uint64_t>(field) << 3) + varint(value);
}

std::string bytes_field(int field, const std::string& value) {
  return varint(static_cast<uint64_t>(field) << 3 | 2) + varint(value.size()) + value;
}

std::string float_field(int field, float value) {
  std::string bytes = varint(static_cast<uint64_t>(field) << 3 | 5);
  const auto bits = std::bit_cast<uint32_t>(value);
  for (int shift = 0; shift < 32; shift += 8) bytes += static_cast<char>(bits >> shift);
  return bytes;
}

std::string piece_field(const std::string& text, float score, TokenType type) {
  return bytes_field(
      1, bytes_field(1, text) + float_field(2, score) + number_field(3, static_cast<uint64_t>(type)));
}

// Special and unused tokens keep their ids but get names that occur in no text: the library would find a
// token of one character by its name.
std::string make_model(const Vocabulary& vocabulary) {
  std::string model;
  for (size_t i = 0; i < vocabulary.tokens.size(); ++i) {
    const TokenType type = vocabulary.types[i];
    const bool is_text = type == TokenType::normal || type == TokenType::byte;
    const std::string& token = vocabulary.tokens[i];
    model += is_text ? piece_field(token, vocabulary.scores[i], type)
                     : piece_field("\nspecial " + token, 0, TokenType::control);
  }
  // The library insists on an unknown token; with all byte tokens present it is never used.
  model += piece_field("\nunknown", 0, TokenType::unknown);
  const std::string trainer = number_field(3, 2)      // model_type = BPE
                              + number_field(35, 1);  // byte_fallback
  const std::string normalizer = bytes_field(1, "identity") +
                                 number_field(3, 0)     // add_dummy_prefix: the base class does it
                                 + number_field(4, 0)   // remove_extra_whitespaces
                                 + number_field(5, 1);  // escape_whitespaces
  return model + bytes_field(2, trainer) + bytes_field(3, normalizer);
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
