// A step of the products with a type with codes, in the type's own way: as fp16 (decode_steps.cuh), or as
// integers (decode_integers.cuh, decode_nibbles.cuh).
#pragma once

#include "cuda/decode_nibbles.cuh"

namespace dsv32::cuda::decode {

template <TensorType kType>
using LaneRowOf = std::conditional_t<kIsInteger<kType>, IntegerRow<kType>, LaneRow<kType>>;

// Where a lane reads x.
template <TensorType kType>
using LaneXOf = std::conditional_t<kIsInteger<kType>, IntegerX, LaneX>;

// Which of eight tokens the k-th sum of a lane belongs to (Sums).
template <TensorType kType>
DSV32_DEVICE int token_of_sum(int i, int k) {
  return kIsInteger<kType> ? i + k % 2 * 4 : 2 * i + k % 2;
}

// Adds the products of a step of a type with codes and n tokens, at most 8 kTiles.
template <TensorType kType, int kMats, int kTiles>
DSV32_DEVICE void add_step_of(int n, Sums<kMats, kTiles>& sums, const uint8_t* const (&step)[kMats][2],
                              const LaneXOf<kType>& x, const Lane<kType>& lane, const uint32_t* grid) {
  if constexpr (kIsInteger<kType>) {
    if (kTiles > 1 && n > 8)
      add_integer_step<kType, 2 * kTiles>(sums, step, x, lane);
    else if (n > 4)
      add_integer_step<kType, 2>(sums, step, x, lane);
    else
      add_integer_step<kType, 1>(sums, step, x, lane);
  } else if (kTiles > 1 && n > 8) {
    add_step<kType, kTiles>(sums, step, x, lane, grid);
  } else {
    add_step<kType, 1>(sums, step, x, lane, grid);
  }
}

}  // namespace dsv32::cuda::decode
