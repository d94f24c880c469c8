// Tensor storage formats of GGUF: the block structs, their sizes, and the reference dequantisation of a row.
//
// Type numbers and block layouts are ggml's: facts of the file format. quant_codes.h unpacks the blocks.
// Faster code (SIMD, CUDA) is tested against dequantize_row(), which is tested against the Python package
// `gguf`, bit for bit.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>

namespace dsv32 {

// The supported types, numbered as in the file.
enum class TensorType : uint32_t {
  f32 = 0,
  f16 = 1,
  q4_0 = 2,
  q4_1 = 3,
  q5_0 = 6,
  q5_1 = 7,
  q8_0 = 8,
  q2_k = 10,
  q3_k = 11,
  q4_k = 12,
  q5_k = 13,
  q6_k = 14,
  iq2_xxs = 16,
  iq2_xs = 17,
  iq3_xxs = 18,
  iq1_s = 19,
  iq4_nl = 20,
  iq3_s = 21,
  iq2_s = 22,
  iq4_xs = 23,
  iq1_m = 29,
  bf16 = 30,
  mxfp4 = 39,
  nvfp4 = 40,
};

// kBlock values are a block, kGroup of them share a scale and, with kMins, a min. The scale is divided by
// kParts (quant_codes.h).
template <int kBlock, int kGroup, bool kMins = false, int kParts = 1>
struct BlockOf {
  static constexpr int kValues = kBlock, kGroupValues = kGroup;
  static constexpr bool kHasMins = kMins;
  static constexpr float kScaleFactor = 1.0f / kParts;
};

// The blocks. d, m, dmin are f16 bits. Integers are little-endian; four-byte integers are arrays of bytes or
// u16, since a block is aligned to two bytes only. "q" is the stored code of value i; its low and high bits
// may be in different fields. A nibble array of 16 bytes holds value i in the lower nibble of byte i and
// value i + 16 in the upper.

struct BlockQ4_0 : BlockOf<32, 32> {  // value = d * (q - 8)
  uint16_t d;
  uint8_t qs[16];
};

struct BlockQ4_1 : BlockOf<32, 32, true> {  // value = d * q + m
  uint16_t d;
  uint16_t m;
  uint8_t qs[16];
};

struct BlockQ5_0 : BlockOf<32, 32> {  // value = d * (q - 16)
  uint16_t d;
  uint8_t qh[4];  // bit i: the fifth bit of value i
  uint8_t qs[16];
};

struct BlockQ5_1 : BlockOf<32, 32, true> {  // value = d * q + m
  uint16_t d;
  uint16_t m;
  uint8_t qh[4];
  uint8_t qs[16];
};

struct BlockQ8_0 : BlockOf<32, 32> {  // value = d * q
  uint16_t d;
  int8_t qs[32];
};

// Two-bit codes of 256 values (Q2_K, Q3_K): value 128 h + 32 s + i is in byte 32 h + i, from bit 2 s on.
struct BlockQ2_K : BlockOf<256, 16, true> {  // value = d * (scales & 15) * q - dmin * (scales >> 4)
  uint8_t scales[16];                        // each for 16 values
  uint8_t qs[64];
  uint16_t d;
  uint16_t dmin;
};

struct BlockQ3_K : BlockOf<256, 16> {  // value = d * (scale - 32) * (q - 4)
  uint8_t hmask[32];                   // bit k of byte i: the third bit of value 32 k + i
  uint8_t qs[64];
  uint8_t scales[12];  // 16 codes of six bits, see unpack_q3_k_scales()
  uint16_t d;
};

// Four-bit codes of 256 values (Q4_K, Q5_K): the lower nibble of byte 32 g + i is value 64 g + i, the upper
// value 64 g + 32 + i.
struct BlockQ4_K : BlockOf<256, 32, true> {  // value = d * scale * q - dmin * min
  uint16_t d;
  uint16_t dmin;
  uint8_t scales[12];  // 8 scales and 8 mins of six bits, see unpack_k_scales()
  uint8_t qs[128];
};

struct BlockQ5_K : BlockOf<256, 32, true> {  // as Q4_K
  uint16_t d;
  uint16_t dmin;
  uint8_t scales[12];
  uint8_t qh[32];  // bit k of byte i: the fifth bit of value 32 k + i
  uint8_t qs[128];
};

struct BlockQ6_K : BlockOf<256, 16> {  // value = d * scales * (q - 32)
  uint8_t ql[128];                     // byte 64 h + i: lower nibble value 128 h + i, upper 128 h + 64 + i
  uint8_t qh[64];  // byte 32 h + i, from bit 2 s on: the two upper bits of value 128 h + 32 s + i
  int8_t scales[16];
  uint16_t d;
};

// 8 groups of 32 values. The second u32 of a group: four 7-bit sign codes and, in the top bits, a 4-bit
// scale.
struct BlockIQ2_XXS : BlockOf<256, 32, false, 8> {  // value = d * (0.5 + scale) / 4 * grid * sign
  uint16_t d;
  uint16_t qs[32];  // per group: four bytes, each a grid point of 8 values, then the u32 of signs and scale
};

// Four-bit scales, each for 16 or 32 values; the lower nibble of a byte comes first.
struct BlockIQ2_XS : BlockOf<256, 16, false, 8> {  // value = d * (0.5 + scale) / 4 * grid * sign
  uint16_t d;
  uint16_t qs[32];  // per 8 values: a grid point of nine bits and, above it, a sign code
  uint8_t scales[8];
};

struct BlockIQ2_S : BlockOf<256, 16, false, 8> {  // as IQ2_XS
  uint16_t d;
  uint8_t qs[32];     // grid points of 8 values
  uint8_t signs[32];  // a bit for each value
  uint8_t qh[8];      // byte g, from bit 2 i on: the two upper bits of point 4 g + i
  uint8_t scales[8];
};

struct BlockIQ3_XXS : BlockOf<256, 32, false, 4> {  // value = d * (0.5 + scale) / 2 * grid * sign
  uint16_t d;
  uint8_t qs[64];     // grid points of 4 values
  uint8_t signs[32];  // per group: the u32 of signs and scale
};

struct BlockIQ3_S : BlockOf<256, 32> {  // value = d * (1 + 2 * scale) * grid * sign
  uint16_t d;
  uint8_t qs[64];     // grid points of 4 values
  uint8_t qh[8];      // bit i of byte g: the ninth bit of point 8 g + i
  uint8_t signs[32];  // a bit for each value
  uint8_t scales[4];
};

// Grid points of 8 values, in eleven bits. delta is 1/8, or -1/8 where its bit is set.
struct BlockIQ1_S : BlockOf<256, 32, false, 8> {  // value = d * (1 + 2 * scale) * (grid + delta)
  uint16_t d;
  uint8_t qs[32];
  uint16_t qh[8];  // per group: the upper three bits of its four points, a scale of three bits, delta's bit
};

struct BlockIQ1_M : BlockOf<256, 16, false, 8> {  // as IQ1_S
  uint8_t qs[32];
  uint8_t qh[16];      // nibble i: the upper three bits of point i, then delta's bit for its 8 values
  uint16_t scales[4];  // four scales of three bits each and, above them, a nibble of d, the lowest first
};

struct BlockIQ4_NL : BlockOf<32, 32> {  // value = d * kIq4Values[q]
  uint16_t d;
  uint8_t qs[16];
};

struct BlockIQ4_XS : BlockOf<256, 32> {  // value = d * (scale - 32) * kIq4Values[q]
  uint16_t d;
  uint16_t scales_h;    // from bit 2 g on: the two upper bits of the scale of group g
  uint8_t scales_l[4];  // nibble g: the four lower bits of that scale
  uint8_t qs[128];      // for each group of 32 values, a nibble array of 16 bytes
};

// Eight-bit scales: e means 2^(e - 127); e4m3 is a float of four exponent and three mantissa bits, without a
// sign. kFp4Values holds doubled values, hence the halves.
struct BlockMXFP4 : BlockOf<32, 32> {  // value = 2^(e - 127) / 2 * kFp4Values[q]
  uint8_t e;
  uint8_t qs[16];
};

struct BlockNVFP4 : BlockOf<64, 16> {  // value = scale / 2 * kFp4Values[q]
  uint8_t scales[4];                   // e4m3
  uint8_t qs[32];                      // byte 8 g + i: lower nibble value 16 g + i, upper 16 g + 8 + i
};

// Calls f(Block{}) with the block struct of `type`, which must have blocks.
template <class F>
constexpr auto with_block(TensorType type, const F& f) {
  switch (type) {
    case TensorType::q4_0: return f(BlockQ4_0{});
    case TensorType::q4_1: return f(BlockQ4_1{});
    case TensorType::q5_0: return f(BlockQ5_0{});
    case TensorType::q5_1: return f(BlockQ5_1{});
    case TensorType::q2_k: return f(BlockQ2_K{});
    case TensorType::q3_k: return f(BlockQ3_K{});
    case TensorType::q4_k: return f(BlockQ4_K{});
    case TensorType::q5_k: return f(BlockQ5_K{});
    case TensorType::q6_k: return f(BlockQ6_K{});
    case TensorType::iq1_s: return f(BlockIQ1_S{});
    case TensorType::iq1_m: return f(BlockIQ1_M{});
    case TensorType::iq2_xxs: return f(BlockIQ2_XXS{});
    case TensorType::iq2_xs: return f(BlockIQ2_XS{});
    case TensorType::iq2_s: return f(BlockIQ2_S{});
    case TensorType::iq3_xxs: return f(BlockIQ3_XXS{});
    case TensorType::iq3_s: return f(BlockIQ3_S{});
    case TensorType::iq4_nl: return f(BlockIQ4_NL{});
    case TensorType::iq4_xs: return f(BlockIQ4_XS{});
    case TensorType::mxfp4: return f(BlockMXFP4{});
    case TensorType::nvfp4: return f(BlockNVFP4{});
    default: assert(type == TensorType::q8_0); return f(BlockQ8_0{});
  }
}

struct TypeTraits {
  const char* name = nullptr;  // "Q4_K"
  uint32_t block_values = 1;   // values in a block
  uint32_t block_bytes = 0;    // bytes of a block
  bool is_supported = false;   // dequantize_row() can read it; otherwise only the name is known
};

// nullptr when GGUF defines no type of that number.
const TypeTraits* find_traits(TensorType type);
// `type` must be supported.
const TypeTraits& traits(TensorType type);
// "type 999" for an unknown number, valid until the thread's next call with an unknown number.
const char* type_name(TensorType type);

// Bytes of a row of `n_values` (a multiple of block_values) of a supported type.
size_t row_bytes(TensorType type, int64_t n_values);

// row: one row of `n_values` in `type`, of any alignment  ->  out [n_values] f32.
void dequantize_row(TensorType type, const void* row, float* out, int64_t n_values);

}  // namespace dsv32
