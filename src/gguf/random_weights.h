// Random weight matrices in any storage format, the same on every machine.
//
// A block is random bytes; only its outer scales are chosen, for the given standard deviation and a mean near
// zero. So every code and every inner scale occurs; quantised real weights do not guarantee that.
#pragma once

#include <cstdint>
#include <vector>

#include "gguf/quant.h"

namespace dsv32 {

// splitmix64 (Steele, Lea, Flood 2014). The distributions of the standard library differ between
// implementations.
class Rng {
 public:
  explicit Rng(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  // In [0, 1), exact multiples of 2^-24.
  float uniform() { return static_cast<float>(next() >> 40) * 0x1p-24f; }
  // Uniform, with mean 0 and standard deviation 1.
  float unit() { return (uniform() - 0.5f) * 3.4641016f; }

 private:
  uint64_t state_;
};

// [n_rows, n_cols] of `type` as stored; n_cols is a multiple of the type's block.
std::vector<uint8_t> random_weights(TensorType type, uint64_t n_rows, uint64_t n_cols, Rng& rng,
                                    float stddev);

}  // namespace dsv32
