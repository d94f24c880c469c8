// What values an option of an answer may have: here, and nowhere else.
//
// Flags, the fields of a batch's line, what a warm process is asked and the engine's own check take them from
// here, so that what one of them lets through, none of the others refuses.
#pragma once

#include <cstdint>

#include "backend/sampling.h"

namespace dsv32 {

struct OptionRange {
  const char* name;  // as a field of JSON has it
  double least, most;

  // Throws Error{usage} that names the option; also for what is no number.
  void check(double value) const;
};

inline constexpr OptionRange kTemperature{"temperature", 0, 100};
inline constexpr OptionRange kTopK{"top_k", -1, INT32_MAX};
inline constexpr OptionRange kTopP{"top_p", 0, 1};
inline constexpr OptionRange kMinP{"min_p", 0, 1};
inline constexpr OptionRange kTokenLimit{"max_tokens", -1, INT32_MAX};  // of thinking, of the answer, of both
inline constexpr OptionRange kTopLogprobs{"top_logprobs", -1, kMostTopLogprobs};

}  // namespace dsv32
