// Sixteen f32 lanes on any SIMD width: one AVX-512 register, two of AVX2, or four of SSE4 and NEON.
//
// Formats are written once for sixteen lanes, so all widths add in the same order. Included once per target
// by Highway's foreach_target, hence the toggling guard.
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

// Unrolls the loop that follows, of up to four rounds, or eight with AVX-512 (kSums); a loop of more would
// keep its sums in memory. Not with scalar parts, where that takes the compiler a minute.
#undef DSV32_UNROLL
#define DSV32_UNROLL HWY_UNROLL((kParts > 4 ? 1 : kParts == 1 ? 8 : 4))

#undef DSV32_EACH_PART
#define DSV32_EACH_PART(p) DSV32_UNROLL for (int p = 0; p < kParts; ++p)

HWY_INLINE Floats broadcast(float value) {
  Floats out;
  DSV32_EACH_PART (p) out.part[p] = hn::Set(FloatTag(), value);
  return out;
}

HWY_INLINE Floats zeros() { return broadcast(0.0f); }

// Sixteen floats at any address.
HWY_INLINE Floats load_floats(const float* from) {
  Floats out;
  DSV32_EACH_PART (p) out.part[p] = hn::LoadU(FloatTag(), from + p * kPartLanes);
  return out;
}

// Sixteen hwy::float16_t or hwy::bfloat16_t at any address.
template <class Half>
HWY_INLINE Floats load_halves(const Half* from) {
  const hn::Rebind<uint16_t, FloatTag> bits_tag;
  const hn::Rebind<Half, FloatTag> half_tag;
  Floats out;
  DSV32_EACH_PART (p) {
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
  DSV32_EACH_PART (p)
    out.part[p] =
        hn::ConvertTo(FloatTag(), hn::PromoteTo(int_tag, hn::LoadU(byte_tag, from + p * kPartLanes)));
  return out;
}

HWY_INLINE void store_floats(const Floats& v, float* to) {
  DSV32_EACH_PART (p) hn::StoreU(v.part[p], FloatTag(), to + p * kPartLanes);
}

HWY_INLINE Floats mul(const Floats& a, const Floats& b) {
  Floats out;
  DSV32_EACH_PART (p) out.part[p] = hn::Mul(a.part[p], b.part[p]);
  return out;
}

HWY_INLINE Floats mul_add(const Floats& a, const Floats& b, const Floats& c) {
  Floats out;
  DSV32_EACH_PART (p) out.part[p] = hn::MulAdd(a.part[p], b.part[p], c.part[p]);
  return out;
}

HWY_INLINE Floats add(const Floats& a, const Floats& b) {
  Floats out;
  DSV32_EACH_PART (p) out.part[p] = hn::Add(a.part[p], b.part[p]);
  return out;
}

// Eight lanes: the sum of the halves of sixteen.
using EightTag = hn::CappedTag<float, 8>;
constexpr int kEightParts = 8 / static_cast<int>(hn::MaxLanes(EightTag()));
struct Eight {
  hn::Vec<EightTag> part[kEightParts];
};

HWY_INLINE Eight add_halves(const Floats& v) {
  Eight out;
#if HWY_MAX_BYTES >= 64
  out.part[0] = hn::Add(hn::LowerHalf(EightTag(), v.part[0]), hn::UpperHalf(EightTag(), v.part[0]));
#else
  DSV32_UNROLL for (int p = 0; p < kEightParts; ++p) out.part[p] =
      hn::Add(v.part[p], v.part[p + kEightParts]);
#endif
  return out;
}

// The same as add_halves(), for parts that come one by one, in order.
HWY_INLINE void add_part(hn::Vec<FloatTag> part, int p, Eight& halves) {
#if HWY_MAX_BYTES >= 64
  halves = add_halves({{part}});
#else
  if (p < kEightParts)
    halves.part[p] = part;
  else
    halves.part[p - kEightParts] = hn::Add(halves.part[p - kEightParts], part);
#endif
}

// to[i] = from[i] + the sum of the lanes of v[i], for four v, side by side. Order: in each half (0 + 2) + (1
// + 3), then the halves.
HWY_INLINE void add_sums(const Eight* v, const float* from, float* to) {
#if HWY_TARGET == HWY_SCALAR
  const auto half = [](const Eight& e, int at) {
    const auto lane = [&](int i) { return hn::GetLane(e.part[at + i]); };
    return (lane(0) + lane(2)) + (lane(1) + lane(3));
  };
  for (int i = 0; i < 4; ++i) to[i] = from[i] + (half(v[i], 0) + half(v[i], 4));
#else
  const EightTag tag;
  const hn::Repartition<uint64_t, EightTag> pair_tag;
  const hn::FixedTag<float, 4> four_tag;
  const auto pairs = [&](auto a, auto b) {
    return hn::BitCast(pair_tag, hn::Add(hn::InterleaveLower(tag, a, b), hn::InterleaveUpper(tag, a, b)));
  };
  const auto fours = [&](int p) {
    const auto ab = pairs(v[0].part[p], v[1].part[p]), cd = pairs(v[2].part[p], v[3].part[p]);
    return hn::Add(hn::BitCast(tag, hn::InterleaveLower(pair_tag, ab, cd)),
                   hn::BitCast(tag, hn::InterleaveUpper(pair_tag, ab, cd)));
  };
#if HWY_MAX_BYTES >= 32
  const auto both = fours(0);
  const auto sums = hn::Add(hn::LowerHalf(four_tag, both), hn::UpperHalf(four_tag, both));
#else
  const auto sums = hn::Add(fours(0), fours(1));
#endif
  hn::StoreU(hn::Add(hn::LoadU(four_tag, from), sums), four_tag, to);
#endif
}

HWY_INLINE float sum_of_lanes(const Floats& v) {
  const Eight folded = add_halves(v);
  const Eight same[4] = {folded, folded, folded, folded};
  float sums[4] = {};
  add_sums(same, sums, sums);
  return sums[0];
}

HWY_INLINE float half_to_float(uint16_t half) {
  if constexpr (HWY_TARGET >= HWY_SSE4 && HWY_ARCH_X86) return f16_to_f32(half);  // has no f16 instruction
  const hn::CappedTag<float, 1> tag;
  const hn::Rebind<hwy::float16_t, decltype(tag)> half_tag;
  const hn::Rebind<uint16_t, decltype(tag)> bits_tag;
  return hn::GetLane(hn::PromoteTo(tag, hn::BitCast(half_tag, hn::Set(bits_tag, half))));
}

}  // namespace HWY_NAMESPACE
}  // namespace dsv32
HWY_AFTER_NAMESPACE();

#endif  // DSV32_VEC16_INL_H_
