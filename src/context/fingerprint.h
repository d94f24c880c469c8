// Whose rows these are: 256 bits that stand for everything that decides the bytes of a page.
//
// Two runs may share pages when they have the same weights, tokenizer, byte format and arithmetic; the size
// of the context, paths, threads and the number of devices do not matter. A whole model is not read for it:
// metadata and shapes count in full, of each tensor's values three samples do, so that a tensor of other
// values or of another quantisation gives another fingerprint.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "backend/cache_layout.h"
#include "gguf/gguf.h"

namespace dsv32 {

// `backend`: its name; backends round differently. Throws Error{internal} when the library fails.
std::array<uint8_t, 32> fingerprint(const GgufFile& file, const CacheLayout& layout,
                                    const std::string& backend);

}  // namespace dsv32
