// Sixteen f32 or u32 lanes on any SIMD width: one AVX-512 register, two of AVX2, or four of SSE4 and NEON.
//
// Formats are written once for sixteen lanes, and all widths then add in the same order. Included once per
// target by Highway's foreach_target, hence the toggling guard. Words are lanes of four bytes, byte b of lane
// l being byte 4 l + b in memory (little-endian).
#if defined(DSV32_VEC16_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DSV32_VEC16_INL_H_
#undef DSV32_VEC16_INL_H_
#else
#define DSV32_VEC16_INL_H_
#endif

#include <cstdint>

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace dsv32 {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::CappedTag<float, 16>;
using IntTag = hn::RebindToSigned<FloatTag>;
using WordTag = hn::RebindToUnsigned<FloatTag>;
using ByteTag = hn::Repartition<uint8_t, WordTag>;
using Block128Tag = hn::CappedTag<uint8_t, 16>;

constexpr int kPartLanes = static_cast<int>(hn::MaxLanes(FloatTag()));
constexpr int kParts = 16 / kPartLanes;
constexpr int kPartBytes = 4 * kPartLanes;

struct Floats {
  hn::Vec<FloatTag> part[kParts];
};
struct Words {
  hn::Vec<WordTag> part[kParts];
};

#undef DSV32_EACH_PART
#define DSV32_EACH_PART(p) HWY_UNROLL(4) for (int p = 0; p < kParts; ++p)

HWY_INLINE Floats zeros() {
  Floats out;
  DSV32_EACH_PART(p) out.part[p] = hn::Zero(FloatTag());
  return out;
}

// 16 floats, aligned to 64 bytes.
HWY_INLINE Floats load_floats(const float* from) {
  Floats out;
  DSV32_EACH_PART(p) out.part[p] = hn::Load(FloatTag(), from + p * kPartLanes);
  return out;
}

HWY_INLINE Floats load_floats_anywhere(const void* from) {
  const auto* bytes = static_cast<const uint8_t*>(from);
  Floats out;
  DSV32_EACH_PART(p) out.part[p] = hn::BitCast(FloatTag(), hn::LoadU(ByteTag(), bytes + p * kPartBytes));
  return out;
}

HWY_INLINE void store_floats(const Floats& v, float* to) {
  DSV32_EACH_PART(p) hn::StoreU(v.part[p], FloatTag(), to + p * kPartLanes);
}

HWY_INLINE Floats mul_add(const Floats& a, const Floats& b, const Floats& c) {
  Floats out;
  DSV32_EACH_PART(p) out.part[p] = hn::MulAdd(a.part[p], b.part[p], c.part[p]);
  return out;
}

HWY_INLINE Floats mul(const Floats& a, const Floats& b) {
  Floats out;
  DSV32_EACH_PART(p) out.part[p] = hn::Mul(a.part[p], b.part[p]);
  return out;
}

HWY_INLINE Floats add(const Floats& a, const Floats& b) {
  Floats out;
  DSV32_EACH_PART(p) out.part[p] = hn::Add(a.part[p], b.part[p]);
  return out;
}

HWY_INLINE Floats broadcast(float value) {
  Floats out;
  DSV32_EACH_PART(p) out.part[p] = hn::Set(FloatTag(), value);
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

// 64 bytes at any address.
HWY_INLINE Words load_words(const void* from) {
  const auto* bytes = static_cast<const uint8_t*>(from);
  Words out;
  DSV32_EACH_PART(p) out.part[p] = hn::BitCast(WordTag(), hn::LoadU(ByteTag(), bytes + p * kPartBytes));
  return out;
}

// 32 bytes at any address into lanes 0..7, and again into lanes 8..15.
HWY_INLINE Words load_words_twice(const void* from) {
  const auto* bytes = static_cast<const uint8_t*>(from);
  Words out;
  if constexpr (kParts == 1) {
    const hn::Half<ByteTag> half_tag;
    const auto half = hn::LoadU(half_tag, bytes);
    out.part[0] = hn::BitCast(WordTag(), hn::Combine(ByteTag(), half, half));
  } else {
    DSV32_EACH_PART(p)
    out.part[p] = hn::BitCast(WordTag(), hn::LoadU(ByteTag(), bytes + (p * kPartBytes) % 32));
  }
  return out;
}

// Four 128-bit vectors, lowest first, as the parts of sixteen lanes.
template <class Tag, class V>
HWY_INLINE void join(Tag tag, V a, V b, V c, V d, hn::Vec<Tag>* parts) {
  if constexpr (hn::MaxLanes(tag) == 4 * sizeof(V) / sizeof(hn::TFromD<Tag>)) {
    const hn::Half<Tag> half_tag;
    parts[0] = hn::Combine(tag, hn::Combine(half_tag, d, c), hn::Combine(half_tag, b, a));
  } else if constexpr (hn::MaxLanes(tag) == 2 * sizeof(V) / sizeof(hn::TFromD<Tag>)) {
    parts[0] = hn::Combine(tag, b, a);
    parts[1] = hn::Combine(tag, d, c);
  } else {
    parts[0] = a;
    parts[1] = b;
    parts[2] = c;
    parts[3] = d;
  }
}

// Four pieces of 16 bytes, `stride` bytes apart, into four lanes each.
HWY_INLINE Words load_four_pieces(const uint8_t* from, size_t stride) {
  const hn::CappedTag<uint8_t, 16> bytes_tag;
  const hn::Repartition<uint32_t, decltype(bytes_tag)> tag;
  Words out;
  join(WordTag(), hn::BitCast(tag, hn::LoadU(bytes_tag, from)),
       hn::BitCast(tag, hn::LoadU(bytes_tag, from + stride)),
       hn::BitCast(tag, hn::LoadU(bytes_tag, from + 2 * stride)),
       hn::BitCast(tag, hn::LoadU(bytes_tag, from + 3 * stride)), out.part);
  return out;
}

// Four u32, `stride` bytes apart, into four lanes each.
HWY_INLINE Words load_four_words(const uint8_t* from, size_t stride) {
  const hn::CappedTag<uint32_t, 4> tag;
  uint32_t words[4];
  for (size_t i = 0; i < 4; ++i) hwy::CopyBytes<4>(from + i * stride, &words[i]);
  Words out;
  join(WordTag(), hn::Set(tag, words[0]), hn::Set(tag, words[1]), hn::Set(tag, words[2]),
       hn::Set(tag, words[3]), out.part);
  return out;
}

template <int kBits>
HWY_INLINE Words shift_right(const Words& v) {
  Words out;
  DSV32_EACH_PART(p) out.part[p] = hn::ShiftRight<kBits>(v.part[p]);
  return out;
}

template <int kBits>
HWY_INLINE Words shift_left(const Words& v) {
  Words out;
  DSV32_EACH_PART(p) out.part[p] = hn::ShiftLeft<kBits>(v.part[p]);
  return out;
}

// Lane l shifted right by shifts[l].
HWY_INLINE Words shift_right_each(const Words& v, const uint32_t (&shifts)[16]) {
  Words out;
  DSV32_EACH_PART(p) out.part[p] = hn::Shr(v.part[p], hn::LoadU(WordTag(), shifts + p * kPartLanes));
  return out;
}

HWY_INLINE Words keep_bits(const Words& v, uint32_t mask) {
  Words out;
  DSV32_EACH_PART(p) out.part[p] = hn::And(v.part[p], hn::Set(WordTag(), mask));
  return out;
}

// a | (b & mask)
HWY_INLINE Words or_bits(const Words& a, const Words& b, uint32_t mask) {
  Words out;
  DSV32_EACH_PART(p) out.part[p] = hn::OrAnd(a.part[p], b.part[p], hn::Set(WordTag(), mask));
  return out;
}

// The bits of a where those of mask are set, the bits of b elsewhere.
HWY_INLINE Words select_bits(uint32_t mask, const Words& a, const Words& b) {
  Words out;
  DSV32_EACH_PART(p) {
    const auto where = hn::Set(WordTag(), mask);
    out.part[p] = hn::OrAnd(hn::AndNot(where, b.part[p]), a.part[p], where);
  }
  return out;
}

// The field of bits kMask << kPos of each lane, less kBias, as a float; exact. No integer conversion: placed
// in the mantissa of 2^(23 - kPos), the field counts in units of one. Needs a field that ends below bit 23.
template <int kPos, uint32_t kMask, int kBias>
HWY_INLINE Floats field(const Words& v) {
  static_assert((static_cast<uint64_t>(kMask) << kPos) < (1u << 23));
  constexpr uint32_t kFrame = static_cast<uint32_t>(127 + 23 - kPos) << 23;
  constexpr float kOffset = static_cast<float>(1 << (23 - kPos)) + static_cast<float>(kBias);
  Floats out;
  DSV32_EACH_PART(p) {
    const auto framed = hn::OrAnd(hn::Set(WordTag(), kFrame), v.part[p], hn::Set(WordTag(), kMask << kPos));
    out.part[p] = hn::Sub(hn::BitCast(FloatTag(), framed), hn::Set(FloatTag(), kOffset));
  }
  return out;
}

#if HWY_IS_DEBUG_BUILD
constexpr int32_t kLookupMask = 15;  // Highway then asserts that indices are in range
#else
constexpr int32_t kLookupMask = -1;  // the instruction ignores the upper bits
#endif

// Lane l of the result is the lane of `table` that the four lowest bits of lane l of `v` name. One register
// wide only.
HWY_INLINE hn::Vec<FloatTag> look_up_lanes(hn::Vec<FloatTag> table, hn::Vec<WordTag> v) {
  const auto indices = hn::And(hn::BitCast(IntTag(), v), hn::Set(IntTag(), kLookupMask));
  const auto found =
      hn::TableLookupLanes(hn::BitCast(IntTag(), table), hn::IndicesFromVec(IntTag(), indices));
  return hn::BitCast(FloatTag(), found);
}

// Sixteen floats, and the same as bytes 128 above where they are whole numbers of -128 to 127.
struct Table16 {
  alignas(64) float values[16];
  alignas(16) uint8_t bytes[16];
};

// The fields of kBits (at most four) at bit kPos of each lane, less kBias. A table lookup of sixteen lanes
// beats the three operations of field(), where there is one.
template <int kPos, int kBits, int kBias>
HWY_INLINE Floats small_field(const Words& v) {
  static_assert(kBits <= 4);
  if constexpr (kParts == 1) {
    // Fields of the same four bits share a shift: the table passes over the bits below its field.
    constexpr int kShift = kPos % 4 + kBits <= 4 ? kPos / 4 * 4 : kPos;
    static constexpr Table16 kTable = [] {
      Table16 table{};
      for (int i = 0; i < 16; ++i)
        table.values[i] = static_cast<float>((i >> (kPos - kShift) & ((1 << kBits) - 1)) - kBias);
      return table;
    }();
    Floats out;
    out.part[0] = look_up_lanes(hn::Load(FloatTag(), kTable.values), hn::ShiftRight<kShift>(v.part[0]));
    return out;
  } else if constexpr (kPos < 16) {
    return field<kPos, (1 << kBits) - 1, kBias>(v);
  } else {
    return field<kPos - 16, (1 << kBits) - 1, kBias>(shift_right<16>(v));
  }
}

// Four source lanes, each into four lanes: {A x 4, B x 4, C x 4, D x 4}.
template <int A, int B, int C, int D>
HWY_INLINE Floats spread(const Floats& v) {
  Floats out;
  if constexpr (kParts == 1) {
    alignas(64) static constexpr uint32_t kLanes[16] = {A, A, A, A, B, B, B, B, C, C, C, C, D, D, D, D};
    out.part[0] = look_up_lanes(v.part[0], hn::Load(WordTag(), kLanes));
  } else {
    const hn::CappedTag<float, 4> tag;
    alignas(64) float lanes[16];
    store_floats(v, lanes);
    join(FloatTag(), hn::Set(tag, lanes[A]), hn::Set(tag, lanes[B]), hn::Set(tag, lanes[C]),
         hn::Set(tag, lanes[D]), out.part);
  }
  return out;
}

HWY_INLINE float half_to_float(uint16_t half) {
  const hn::CappedTag<float, 4> tag;
  const hn::Rebind<hwy::float16_t, decltype(tag)> half_tag;
  const hn::Repartition<uint64_t, decltype(half_tag)> u64_tag;
  return hn::GetLane(hn::PromoteTo(tag, hn::BitCast(half_tag, hn::Set(u64_tag, half))));
}

// Four f16 in a u64, lowest first, widened: {0 1 2 3 0 1 2 3 ...}.
HWY_INLINE Floats widen_halves(uint64_t four) {
  const hn::Rebind<hwy::float16_t, FloatTag> half_tag;
  const hn::Repartition<uint64_t, decltype(half_tag)> u64_tag;
  Floats out;
  DSV32_EACH_PART(p) out.part[p] = hn::PromoteTo(FloatTag(), hn::BitCast(half_tag, hn::Set(u64_tag, four)));
  return out;
}

// Sixteen bytes, as uint8_t or int8_t, the lower eight in `low`.
template <class Byte>
HWY_INLINE Floats widen_bytes(uint64_t low, uint64_t high) {
  const hn::CappedTag<uint64_t, 2> u64_tag;
  const hn::Rebind<Byte, FloatTag> byte_tag;
  const auto both = hn::InterleaveLower(hn::Set(u64_tag, low), hn::Set(u64_tag, high));
  Floats out;
  if constexpr (kParts == 1) {
    out.part[0] = hn::ConvertTo(FloatTag(), hn::PromoteTo(IntTag(), hn::BitCast(byte_tag, both)));
  } else {
    alignas(16) Byte bytes[16];
    hn::StoreU(hn::BitCast(Block128Tag(), both), Block128Tag(), reinterpret_cast<uint8_t*>(bytes));
    DSV32_EACH_PART(p)
    out.part[p] =
        hn::ConvertTo(FloatTag(), hn::PromoteTo(IntTag(), hn::LoadU(byte_tag, bytes + p * kPartLanes)));
  }
  return out;
}

// Sixteen uint8 at any address, one a lane.
HWY_INLINE Words load_uint8(const uint8_t* from) {
  const hn::Rebind<uint8_t, WordTag> byte_tag;
  Words out;
  DSV32_EACH_PART(p)
  out.part[p] = hn::PromoteTo(WordTag(), hn::LoadU(byte_tag, from + p * kPartLanes));
  return out;
}

// Sixteen int8 at any address.
HWY_INLINE Floats load_int8(const int8_t* from) {
  const hn::Rebind<int8_t, FloatTag> byte_tag;
  Floats out;
  DSV32_EACH_PART(p)
  out.part[p] =
      hn::ConvertTo(FloatTag(), hn::PromoteTo(IntTag(), hn::LoadU(byte_tag, from + p * kPartLanes)));
  return out;
}

// Bits 0..3 of a lane, bit b moved to bit 4 of byte b; other bits arbitrary.
HWY_INLINE Words nibble_to_fifth_bits(const Words& v) {
  Words out;
  DSV32_EACH_PART(p) {
    const auto nibble = hn::And(v.part[p], hn::Set(WordTag(), 15));
    out.part[p] = hn::Mul(nibble, hn::Set(WordTag(), 0x02040810));
  }
  return out;
}

// Bytes looked up in a table of sixteen; every byte of `v` is below 16.
HWY_INLINE Words look_up_bytes(const uint8_t (&table)[16], const Words& v) {
  const auto values = hn::LoadDup128(ByteTag(), table);
  Words out;
  DSV32_EACH_PART(p)
  out.part[p] = hn::BitCast(WordTag(), hn::TableLookupBytes(values, hn::BitCast(ByteTag(), v.part[p])));
  return out;
}

}  // namespace HWY_NAMESPACE
}  // namespace dsv32
HWY_AFTER_NAMESPACE();

#endif  // DSV32_VEC16_INL_H_
