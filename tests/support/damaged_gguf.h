// Damaged GGUF files, one wrong field each, with what the reader's message must say.
//
// The reader's tests and the fuzzer's corpus use the same list; in the corpus each file is a seed near the
// field that it breaks.
#pragma once

#include <string>
#include <vector>

#include "tests/support/gguf_writer.h"

namespace dsv32 {

struct DamagedGguf {
  std::string name;  // fit for a file name
  Bytes bytes;
  std::string expected;  // part of the message
};

std::vector<DamagedGguf> damaged_ggufs();

// A sound file with one key of each type, arrays of strings and numbers, and three small tensors.
GgufWriter sound_gguf();

}  // namespace dsv32
