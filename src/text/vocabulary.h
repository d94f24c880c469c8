// The vocabulary as the model file states it: tokens, their types and scores, the merges, and the ids of BOS
// and EOS.
//
// The chat template is only looked at for names of marks (chat_kind.h).
//
// A plain struct, so that a test or a tool can make one without a GGUF file. load_vocabulary() reads one and
// refuses kinds that dsv32 has no tokenizer for; check_vocabulary() finds contradictions in the contents, and
// Tokenizer::make() calls it. A token's id is its index in `tokens`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gguf/gguf.h"

namespace dsv32 {

// Numbered as in the file (tokenizer.ggml.token_type) and in sentencepiece.
enum class TokenType : int32_t {
  normal = 1,
  unknown = 2,
  control = 3,       // structure, never printed: <｜User｜>
  user_defined = 4,  // structure that is printed: <think>
  unused = 5,        // a hole in the numbering
  byte = 6,          // "<0x0A>"
};

struct Vocabulary {
  std::string model;                // "gpt2" (byte-level BPE) or "llama" (sentencepiece)
  std::string pre;                  // the splitting rules of "gpt2": "deepseek-v3..."; empty for "llama"
  std::vector<std::string> tokens;  // [n_vocab] as written in the file
  std::vector<TokenType> types;     // [n_vocab]
  std::vector<float> scores;        // [n_vocab] for "llama"; may be empty for "gpt2"
  std::vector<std::string> merges;  // "left right" in order of preference; "gpt2" only
  int32_t bos_id = -1;
  int32_t eos_id = -1;
  bool add_space_prefix = false;  // "llama": a space is put before each text
  std::string chat_template;      // tokenizer.chat_template; empty: the file has none
};

// Reads the tokenizer.ggml.* keys and tokenizer.chat_template. tokenizer.ggml.add_bos_token is not read:
// published files disagree about it and the prompt format begins with BOS in any case. Throws Error{model}
// naming the key that is absent or not supported.
Vocabulary load_vocabulary(const GgufFile& file);

// Throws Error{model} for: no tokens, arrays of different lengths, a type that does not exist, an empty,
// oversized or repeated token, BOS or EOS outside the vocabulary, a malformed or repeated byte token, a score
// that is not finite.
void check_vocabulary(const Vocabulary& vocabulary);

// The value of a token of type `byte`: "<0x0A>" is 10. -1 when `token` is written otherwise.
int byte_token_value(std::string_view token);

}  // namespace dsv32
