// A small byte-level BPE vocabulary as a model file's reader gives it.
#pragma once

#include "tests/support/tiny_vocabulary.h"
#include "text/vocabulary.h"

namespace dsv32 {

inline Vocabulary bpe_vocabulary(const TinyVocabulary& tiny = tiny_vocabulary()) {
  Vocabulary vocabulary;
  vocabulary.model = "gpt2";
  vocabulary.pre = "deepseek-v3";
  vocabulary.tokens = tiny.tokens;
  for (const int32_t type : tiny.types) vocabulary.types.push_back(static_cast<TokenType>(type));
  vocabulary.merges = tiny.merges;
  vocabulary.bos_id = static_cast<int32_t>(tiny.bos_id);
  vocabulary.eos_id = static_cast<int32_t>(tiny.eos_id);
  return vocabulary;
}

}  // namespace dsv32
