// Whose rows these are: 256 bits that stand for everything that decides the bytes of a page.
//
// Two runs may share pages when they have the same model, byte format and arithmetic; the size of the
// context, paths, threads and top-k buffers do not matter.
#pragma once

#include <string>

#include "backend/cache_layout.h"
#include "base/sha256.h"

namespace dsv32 {

// `model`: the digest of its files (ModelDigest). `numerics`: of the backend. Throws Error{internal} when the
// library fails.
Hash256 fingerprint(const Hash256& model, const CacheLayout& layout, const std::string& numerics);

}  // namespace dsv32
