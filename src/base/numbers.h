// Narrow number formats, one value at a time: f16, bf16, e4m3 (the "fn" form: no infinity, largest 448) and
// ue8m0.
//
// Bit-exact, round to nearest even, the same on every machine: these are the definitions that faster code
// (SIMD, CUDA) is tested against. Sources: IEEE 754-2008 binary16; bfloat16 = the upper half of binary32; OCP
// 8-bit Floating Point Specification 1.0 (E4M3); OCP Microscaling Formats 1.0 (E8M0).
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace dsv32 {

inline float bf16_to_f32(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

inline uint16_t f32_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);  // quiet NaN
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline float f16_to_f32(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t exponent = (half >> 10) & 0x1fu;
  const uint32_t mantissa = half & 0x3ffu;
  if (exponent == 0x1fu) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;  // zero and denormals, exact
  return sign ? -magnitude : magnitude;
}

inline uint16_t f32_to_f16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | 0x7e00u;   // NaN
  if (magnitude >= 0x477ff000u) return sign | 0x7c00u;  // 65520 and up round to infinity
  if (magnitude < 0x38800000u)                          // below 2^-14: denormal, in units of 2^-24
    return sign | static_cast<uint16_t>(std::nearbyintf(std::fabs(value) * 0x1p24f));
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return sign | static_cast<uint16_t>((rounded - 0x38000000u) >> 13);
}

inline float e4m3_to_f32(uint8_t bits) {
  const uint32_t exponent = (bits >> 3) & 0xfu;
  const uint32_t mantissa = bits & 7u;
  if (exponent == 15 && mantissa == 7) return std::bit_cast<float>(0x7fc00000u);
  const float magnitude = exponent == 0 ? static_cast<float>(mantissa) * 0x1p-9f
                                        : std::bit_cast<float>(((exponent + 120) << 23) | (mantissa << 20));
  return (bits & 0x80u) ? -magnitude : magnitude;
}

// Values beyond 448 saturate (with the chosen scale only rounding can exceed it).
inline uint8_t f32_to_e4m3(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint8_t sign = static_cast<uint8_t>((bits >> 24) & 0x80u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | 0x7fu;
  if (magnitude >= 0x43e00000u) return sign | 0x7eu;  // >= 448
  if (magnitude < 0x3c800000u)                        // below 2^-6: denormal, in units of 2^-9
    return sign | static_cast<uint8_t>(std::nearbyintf(std::fabs(value) * 0x1p9f));
  const uint32_t rounded = magnitude + 0x7ffffu + ((magnitude >> 20) & 1u);
  const uint32_t code = (rounded - 0x3c000000u) >> 20;
  return sign | static_cast<uint8_t>(code > 0x7eu ? 0x7eu : code);
}

// ue8m0: 2^(bits - 127), a scale that is a power of two.
inline float ue8m0_to_f32(uint8_t bits) {
  return bits == 0 ? 0x1p-127f : std::bit_cast<float>(static_cast<uint32_t>(bits) << 23);
}

// The scale of a tile of e4m3 values: 2^ceil(log2(max(amax, 1e-4) / 448)) as ue8m0 (model.py, act_quant with
// ue8m0). Computed on the bits, so that no machine's log2 can round it differently.
inline uint8_t e4m3_tile_scale(float amax) {
  const float ratio = (amax > 1e-4f ? amax : 1e-4f) / 448.0f;
  const uint32_t bits = std::bit_cast<uint32_t>(ratio);
  return static_cast<uint8_t>((bits >> 23) + ((bits & 0x7fffffu) != 0));
}

}  // namespace dsv32
