// Tensor storage formats of GGUF: the block structs, their sizes, and the reference dequantisation of a row.
//
// Layouts are ggml's: type numbers and block layouts are facts of the file format. quant_codes.h takes blocks
// apart. Faster code (SIMD, CUDA) is tested against dequantize_row(), which is tested against the Python
// package `gguf`, bit for bit.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>

namespace dsv32 {

// The types that are computed, numbered as in the file.
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

// How many values a block has, how many of them share a scale, whether a min comes with it, and by what the
// scale is divided (quant_codes.h).
template <int kBlock, int kGroup, bool kMins = false, int kParts = 1>
struct BlockOf {
  static constexpr int kValues = kBlock, kGroupValues = kGroup;
  static constexpr bool kHasMins = kMins;
  static constexpr float kScaleFactor = 1.0f / kParts;
};

// The blocks. d, m, dmin are f16 bits. Integers are little-endian; those of four bytes are spelt as arrays of
// bytes or u16, since a block is aligned to two bytes only. "q" is the stored code of value i; its low and
// high bits may lie apart. A nibble array of 16 bytes holds value i in the lower nibble of byte i and value i
// + 16 in the upper.

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

// Two-bit codes of 256 values (Q2_K, Q3_K): byte 32 h + i, bits 2 s, is value 128 h + 32 s + i.
struct BlockQ2_K : BlockOf<256, 16, true> {  // value = d * (scales & 15) * q - dmin * (scales >> 4)
  uint8_t scales[16];                        // of 16 values each
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

// Four-bit codes of 256 values (Q4_K, Q5_K): byte 32 g + i holds value 64 g + i below and value 64 g + 32 + i
// above.
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
  uint8_t ql[128];                     // byte 64 h + i: value 128 h + i below, value 128 h + 64 + i above
  uint8_t qh[64];  // byte 32 h + i, bits 2 s: the two upper bits of value 128 h + 32 s + i
  int8_t scales[16];
  uint16_t d;
};

// Groups of 32 values, 8 groups. The upper u32 of a group: four 7-bit sign codes and, on top, a 4-bit scale.
struct BlockIQ2_XXS : BlockOf<256, 32, false, 8> {  // value = d * (0.5 + scale) / 4 * grid * sign
  uint16_t d;
  uint16_t qs[32];  // per group: four bytes that name points of 8 values, then the u32 of signs and scale
};

// Scales of four bits, of 16 or 32 values each: the lower nibble of a byte is the first.
struct BlockIQ2_XS : BlockOf<256, 16, false, 8> {  // value = d * (0.5 + scale) / 4 * grid * sign
  uint16_t d;
  uint16_t qs[32];  // per 8 values: a point in nine bits, above it their sign code
  uint8_t scales[8];
};

struct BlockIQ2_S : BlockOf<256, 16, false, 8> {  // as IQ2_XS
  uint16_t d;
  uint8_t qs[32];     // points of 8 values
  uint8_t signs[32];  // of theirs, a bit each
  uint8_t qh[8];      // byte g, bits 2 i: the two upper bits of point 4 g + i
  uint8_t scales[8];
};

struct BlockIQ3_XXS : BlockOf<256, 32, false, 4> {  // value = d * (0.5 + scale) / 2 * grid * sign
  uint16_t d;
  uint8_t qs[64];     // grid points of 4 values
  uint8_t signs[32];  // per group: the u32 of signs and scale
};

struct BlockIQ3_S : BlockOf<256, 32> {  // value = d * (1 + 2 * scale) * grid * sign
  uint16_t d;
  uint8_t qs[64];     // points of 4 values
  uint8_t qh[8];      // bit i of byte g: the ninth bit of point 8 g + i
  uint8_t signs[32];  // a bit for each value
  uint8_t scales[4];
};

// Points of 8 values with eleven bits, and whether delta is 1/8 or, where the bit is set, -1/8.
struct BlockIQ1_S : BlockOf<256, 32, false, 8> {  // value = d * (1 + 2 * scale) * (grid + delta)
  uint16_t d;
  uint8_t qs[32];
  uint16_t qh[8];  // per group: the upper three bits of its four points, a scale of three bits, delta's bit
};

struct BlockIQ1_M : BlockOf<256, 16, false, 8> {  // as IQ1_S
  uint8_t qs[32];
  uint8_t qh[16];      // nibble i: the upper three bits of point i, delta's bit of its 8 values
  uint16_t scales[4];  // four scales of three bits each and, on top, a nibble of d, the lowest first
};

struct BlockIQ4_NL : BlockOf<32, 32> {  // value = d * kIq4Values[q]
  uint16_t d;
  uint8_t qs[16];
};

struct BlockIQ4_XS : BlockOf<256, 32> {  // value = d * (scale - 32) * kIq4Values[q]
  uint16_t d;
  uint16_t scales_h;    // bits 2 g: the two upper bits of the scale of group g
  uint8_t scales_l[4];  // nibble g: its four lower bits
  uint8_t qs[128];      // per group of 32 values a nibble array of 16 bytes
};

// Scales of eight bits: e is a power of two, 2^(e - 127); an e4m3 is a float of four bits of exponent and
// three of mantissa without sign. The values of kFp4Values are doubled, hence the halves.
struct BlockMXFP4 : BlockOf<32, 32> {  // value = 2^(e - 127) / 2 * kFp4Values[q]
  uint8_t e;
  uint8_t qs[16];
};

struct BlockNVFP4 : BlockOf<64, 16> {  // value = scale / 2 * kFp4Values[q]
  uint8_t scales[4];                   // e4m3
  uint8_t qs[32];                      // byte 8 g + i holds value 16 g + i below and value 16 g + 8 + i above
};

// f(Block{}) for the block of a type that has blocks.
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
  bool is_supported = false;   // dequantize_row() can read it; of other types the name alone is known
};

// nullptr when the number is no type that GGUF defines.
const TypeTraits* find_traits(TensorType type);
// Of a supported type.
const TypeTraits& traits(TensorType type);
// "type 999" for an unknown number, valid until the thread's next call with an unknown number.
const char* type_name(TensorType type);

// Bytes of a row of `n_values` (a multiple of block_values) of a supported type.
size_t row_bytes(TensorType type, int64_t n_values);

// row: one row of `n_values` in `type`, of any alignment  ->  out [n_values] f32.
void dequantize_row(TensorType type, const void* row, float* out, int64_t n_values);

}  // namespace dsv32
