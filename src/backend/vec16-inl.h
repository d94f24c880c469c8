// Sixteen f32 lanes on any SIMD width: one AVX-512 register, two of AVX2, or four of SSE4 and NEON.
//
// Formats are written once for sixteen lanes, and all widths then add in the same order. Included once per
// target by Highway's foreach_target, hence the toggling guard.
#if defined(DSV32_VEC16_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DSV32_VEC16_INL_H_
#undef DSV32_VEC16_INL_H_
#else
#define DSV32_VEC16_INL_H_
#endif

#include <cstdint>

#include <hwy/highway.h>

#include "base/numbers.h"

HWY_BEFORE_NAMESPACE();
namespace dsv32 {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::CappedTag<float, 16>;

constexpr int kPartLanes = static_cast<int>(hn::MaxLanes(FloatTag()));
constexpr int kParts = 16 / kPartLanes;

struct Floats {
  hn::Vec<FloatTag> part[kParts];
};

// Unrolls a loop, but where sixteen scalar parts would take the compiler a minute.
#undef DSV32_UNROLL
#define DSV32_UNROLL HWY_UNROLL((kParts > 4 ? 1 : 4))

#undef DSV32_EACH_PART
#define DSV32_EACH_PART(p) DSV32_UNROLL for (int p = 0; p < kParts; ++p)

HWY_INLINE Floats broadcast(float value) {
  Floats out;
  DSV32_EACH_PART(p) out.part[p] = hn::Set(FloatTag(), value);
  return out;
}

HWY_INLINE Floats zeros() { return broadcast(0.0f); }

// 16 floats, aligned to 64 bytes.
HWY_INLINE Floats load_floats(const float* from) {
  Floats out;
  DSV32_EACH_PART(p) out.part[p] = hn::Load(FloatTag(), from + p * kPartLanes);
  return out;
}

HWY_INLINE Floats load_floats_anywhere(const float* from) {
  Floats out;
  DSV32_EACH_PART(p) out.part[p] = hn::LoadU(FloatTag(), from + p * kPartLanes);
  return out;
}

// Sixteen hwy::float16_t or hwy::bfloat16_t at any address.
template <class Half>
HWY_INLINE Floats load_halves(const Half* from) {
  const hn::Rebind<uint16_t, FloatTag> bits_tag;
  const hn::Rebind<Half, FloatTag> half_tag;
  Floats out;
  DSV32_EACH_PART(p) {
    const auto bits = hn::LoadU(bits_tag, reinterpret_cast<const uint16_t*>(from + p * kPartLanes));
    out.part[p] = hn::PromoteTo(FloatTag(), hn::BitCast(half_tag, bits));
  }
  return out;
}

// Sixteen int8 at any address.
HWY_INLINE Floats load_int8(const int8_t* from) {
  const hn::RebindToSigned<FloatTag> int_tag;
  const hn::Rebind<int8_t, FloatTag> byte_tag;
  Floats out;
  DSV32_EACH_PART(p)
  out.part[p] = hn::ConvertTo(FloatTag(), hn::PromoteTo(int_tag, hn::LoadU(byte_tag, from + p * kPartLanes)));
  return out;
}

HWY_INLINE void store_floats(const Floats& v, float* to) {
  DSV32_EACH_PART(p) hn::StoreU(v.part[p], FloatTag(), to + p * kPartLanes);
}

HWY_INLINE Floats mul(const Floats& a, const Floats& b) {
  Floats out;
  DSV32_EACH_PART(p) out.part[p] = hn::Mul(a.part[p], b.part[p]);
  return out;
}

HWY_INLINE Floats mul_add(const Floats& a, const Floats& b, const Floats& c) {
  Floats out;
  DSV32_EACH_PART(p) out.part[p] = hn::MulAdd(a.part[p], b.part[p], c.part[p]);
  return out;
}

HWY_INLINE Floats mul_sub(const Floats& a, const Floats& b, const Floats& c) {
  Floats out;
  DSV32_EACH_PART(p) out.part[p] = hn::MulSub(a.part[p], b.part[p], c.part[p]);
  return out;
}

HWY_INLINE Floats add(const Floats& a, const Floats& b) {
  Floats out;
  DSV32_EACH_PART(p) out.part[p] = hn::Add(a.part[p], b.part[p]);
  return out;
}

// The sixteen lanes as a tree: halves, quarters, ...
HWY_INLINE float sum_of_lanes(const Floats& v) {
  alignas(64) float lanes[16];
  store_floats(v, lanes);
  for (int half = 8; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  return lanes[0];
}

HWY_INLINE float half_to_float(uint16_t half) {
  if constexpr (HWY_TARGET >= HWY_SSE4 && HWY_ARCH_X86) return f16_to_f32(half);  // no instruction for it
  const hn::CappedTag<float, 1> tag;
  const hn::Rebind<hwy::float16_t, decltype(tag)> half_tag;
  const hn::Rebind<uint16_t, decltype(tag)> bits_tag;
  return hn::GetLane(hn::PromoteTo(tag, hn::BitCast(half_tag, hn::Set(bits_tag, half))));
}

}  // namespace HWY_NAMESPACE
}  // namespace dsv32
HWY_AFTER_NAMESPACE();

#endif  // DSV32_VEC16_INL_H_
