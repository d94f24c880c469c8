// The name of a token sequence under one model: chained SHA-256.
//
// A segment's hash covers its tokens and, through its parent's hash, all tokens before them. The root covers
// the fingerprint and the salt, so that sequences of two models, or of two users' salts, never meet. A hash
// only finds; who finds compares the tokens as well. Any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/sha256.h"

namespace dsv32 {

// SHA-256 of (domain tag | fingerprint | salt). Throws Error{internal} when the library fails, as does the
// next.
Hash256 chain_root(const Hash256& fingerprint, std::string_view salt);

// SHA-256 of (parent | first page | tokens, little-endian): `tokens` begin at `first_page` of their prompt,
// which says how much of the parent's they continue.
Hash256 chain_next(const Hash256& parent, int64_t first_page, std::span<const int32_t> tokens);

// Lower-case hexadecimal.
std::string hex(std::span<const uint8_t> bytes);

}  // namespace dsv32
