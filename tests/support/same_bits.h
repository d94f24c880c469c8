// Whether two rows of values are the same, bit for bit.
#pragma once

#include <cstring>
#include <span>

namespace dsv32 {

inline bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

}  // namespace dsv32
