// Token ids to text as they arrive, never with half a character.
//
// A token may end within a UTF-8 character; such bytes, at most three, wait for the next token. Bytes that
// are not UTF-8 pass through as they are: everything pushed comes out again, in order. One decoder per
// sequence, used by one thread.
#pragma once

#include <string>

#include "text/tokenizer.h"

namespace dsv32 {

class StreamDecoder {
 public:
  // `tokenizer` must outlive the decoder.
  explicit StreamDecoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  // The text that is complete with this token; often one token's, sometimes none. Throws Error{usage} for an
  // id outside the vocabulary.
  std::string push(int32_t id);

  // What is still waiting: the beginning of a character that never came. The decoder is then as new.
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  std::string waiting_;
};

}  // namespace dsv32
