// Answers one prompt on a sequence that tests otherwise drive by hand.
#pragma once

#include "engine/loop.h"
#include "engine/sequence.h"

namespace dsv32 {

inline GenerationResult generate(ByHand& sequence, const Tokenizer& tokenizer,
                                 std::span<const int32_t> prompt, const GenerationOptions& options,
                                 Listener& listener, std::span<const TokenRun> decoded = {}) {
  return generate(
      sequence.engine().loop(),
      {&sequence, &tokenizer, {prompt.begin(), prompt.end()}, options, {decoded.begin(), decoded.end()}},
      listener);
}

}  // namespace dsv32
