// Tensor storage formats of GGUF: the block structs, their sizes, and the reference dequantisation of a row.
//
// The struct is the table: block bytes come from sizeof, each pinned by a static_assert. Layouts are ggml's (type numbers
// and block layouts are facts of the file format). dequantize_row is plain and obviously right: it is what faster code
// (SIMD, CUDA) is tested against, and it is itself tested against the Python package `gguf`.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dsv32 {

// Numbers as in the file. Every type that a file may name has traits(); is_supported() says which ones can be computed.
enum class TensorType : uint32_t {
  f32 = 0,
  f16 = 1,
  q4_0 = 2,
  q5_0 = 6,
  q5_1 = 7,
  q8_0 = 8,
  q2_k = 10,
  q3_k = 11,
  q4_k = 12,
  q5_k = 13,
  q6_k = 14,
  iq2_xxs = 16,
  iq3_xxs = 18,
  iq4_nl = 20,
  iq4_xs = 23,
  bf16 = 30,
};

struct TypeTraits {
  const char* name;      // "Q4_K"; "type 999" is made by type_name() for unknown numbers
  uint32_t block_values; // values in a block
  uint32_t block_bytes;  // bytes of a block
  bool is_supported;     // dequantize_row can read it
};

// nullptr when the number is no type that GGUF defines.
const TypeTraits* find_traits(TensorType type);
// Of a supported type.
const TypeTraits& traits(TensorType type);
const char* type_name(TensorType type);

// Bytes of a row of `n_values` (a multiple of block_values) of a supported type.
size_t row_bytes(TensorType type, int64_t n_values);

// row: one row of `n_values` in `type`  ->  out [n_values] f32.
void dequantize_row(TensorType type, const void* row, float* out, int64_t n_values);

}  // namespace dsv32
