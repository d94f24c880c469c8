// Sentencepiece, for model files whose tokenizer.ggml.model is "llama".
//
// The library wants a model file of its own; it is put together in memory from the vocabulary. Special
// tokens, the space before a text and malformed bytes are dealt with in the base class, so the library sees
// only well-formed text.
#pragma once

#include <memory>

#include "text/tokenizer.h"

namespace sentencepiece {
class SentencePieceProcessor;
}

namespace dsv32 {

class SpmTokenizer : public Tokenizer {
 public:
  // Throws Error{model} when one of the 256 byte tokens is missing or the library refuses the vocabulary. Use
  // Tokenizer::make().
  explicit SpmTokenizer(Vocabulary vocabulary);
  ~SpmTokenizer() override;

 protected:
  void encode_utf8(std::string_view text, std::vector<int32_t>& ids) const override;

 private:
  std::unique_ptr<sentencepiece::SentencePieceProcessor> processor_;
};

}  // namespace dsv32
