// A small byte-level BPE vocabulary of the kind that DeepSeek-V3.2 files carry.
//
// Every byte has a token, so any text can be encoded; a list of common English pieces gives merges whose
// parts and result are tokens; DeepSeek's special tokens stand at the front (the first three) and at the end.
// Tokens are spelt as in the file: each byte as the printable character that GPT-2's table assigns to it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dsv32 {

struct TinyVocabulary {
  std::vector<std::string> tokens;
  std::vector<int32_t> types;       // [n tokens]: 1 normal, 3 control, 4 user-defined
  std::vector<std::string> merges;  // "left right", best first
  uint32_t bos_id = 0, eos_id = 0, pad_id = 0;
};

TinyVocabulary tiny_vocabulary();

// The character that stands for `byte` in a token.
std::string byte_character(uint8_t byte);

}  // namespace dsv32
