// What is stored under which name: 256 bits that stand for everything that decides the bytes of pages.
//
// Two runs may share pages when they have the same model, byte format and arithmetic: that is the
// fingerprint. The size of the context, paths, threads and buffers do not matter. A token sequence under it
// is named by chained SHA-256: a segment's hash covers its tokens and, through its parent's hash, all tokens
// before them. The root covers the fingerprint and the salt, so that sequences of two models or two salts
// never meet. A hash only finds; its finder compares the tokens as well.
//
// Any thread. What is thrown, Error{internal}, is the library's failure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "backend/cache_layout.h"
#include "base/sha256.h"

namespace dsv32 {

// `model`: the digest of its files (ModelDigest). `numerics`: of the backend.
Hash256 fingerprint(const Hash256& model, const CacheLayout& layout, const std::string& numerics);

// SHA-256 of (domain tag | fingerprint | salt).
Hash256 chain_root(const Hash256& fingerprint, std::string_view salt);

// SHA-256 of (parent | first page | tokens, little-endian): `tokens` begin at `first_page` of their prompt,
// which says how much of the parent's they continue.
Hash256 chain_next(const Hash256& parent, int64_t first_page, std::span<const int32_t> tokens);

}  // namespace dsv32
