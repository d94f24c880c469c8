// How a step of a row becomes floats, for every storage format.
//
// A format has kBlocks of its Block a step and kValues columns; unpack(), which makes a Stage of them, codes
// as bytes (quant_codes.h); and weights(), sixteen from value i on as floats.
#if defined(DSV32_CPU_FORMATS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DSV32_CPU_FORMATS_INL_H_
#undef DSV32_CPU_FORMATS_INL_H_
#else
#define DSV32_CPU_FORMATS_INL_H_
#endif

#include <type_traits>

#include "backend/vec16-inl.h"
#include "gguf/quant_codes.h"

HWY_BEFORE_NAMESPACE();
namespace dsv32 {
namespace HWY_NAMESPACE {

// Floats as they lie. B: float, hwy::float16_t or hwy::bfloat16_t.
template <class B>
struct FloatFormat {
  using Block = B;
  static constexpr int kBlocks = 256, kValues = 256;
  struct Stage {};

  static HWY_INLINE void unpack(const Block*, Stage&) {}

  static HWY_INLINE Floats weights(const Block* at, const Stage&, int i) {
    if constexpr (std::is_same_v<Block, float>)
      return load_floats_anywhere(at + i);
    else
      return load_halves(at + i);
  }
};

// Blocks of 32 values, eight a step.
template <class B>
struct SmallBlockFormat {
  using Block = B;
  static constexpr int kBlocks = 8, kValues = 256;
  static constexpr bool kIsUnpacked = std::is_same_v<Block, BlockQ8_0>;
  struct Stage {
    alignas(64) int8_t codes[kValues];
  };

  static HWY_INLINE void unpack(const Block* at, Stage& stage) {
    if constexpr (!kIsUnpacked)
      for (int b = 0; b < kBlocks; ++b) dsv32::unpack(at[b], stage.codes + b * Block::kValues);
  }

  static HWY_INLINE Floats weights(const Block* at, const Stage& stage, int i) {
    const Block& block = at[i / Block::kValues];
    const int8_t* codes = stage.codes + i;
    if constexpr (kIsUnpacked) codes = block.qs + i % Block::kValues;
    const Floats scale = broadcast(half_to_float(block.d));
    if constexpr (Block::kHasMins)
      return mul_add(load_int8(codes), scale, broadcast(half_to_float(block.m)));
    else
      return mul(load_int8(codes), scale);
  }
};

// Blocks of 256 values.
template <class B>
struct BlockFormat {
  using Block = B;
  static constexpr int kBlocks = 1, kValues = 256;
  struct Stage {
    alignas(64) int8_t codes[kValues];
    alignas(64) float scales[16], mins[16];  // of the groups
  };

  static HWY_INLINE void unpack(const Block* at, Stage& stage) {
    const Groups groups = dsv32::unpack(*at, stage.codes);
    scale(groups.scales, half_to_float(shared_scale(*at)) * Block::kUnit, stage.scales);
    if constexpr (Block::kHasMins) scale(groups.mins, half_to_float(at->dmin), stage.mins);
  }

  static HWY_INLINE void scale(const Bytes16& numbers, float factor, float* out) {
    store_floats(mul(load_int8(reinterpret_cast<const int8_t*>(&numbers)), broadcast(factor)), out);
  }

  static HWY_INLINE Floats weights(const Block*, const Stage& stage, int i) {
    const Floats codes = load_int8(stage.codes + i);
    const Floats scale = broadcast(stage.scales[i / Block::kGroupValues]);
    if constexpr (Block::kHasMins)
      return mul_sub(codes, scale, broadcast(stage.mins[i / Block::kGroupValues]));
    else
      return mul(codes, scale);
  }
};

// Blocks whose groups have scales of eight bits.
template <class B>
struct Fp4Format {
  using Block = B;
  static constexpr int kValues = 256, kBlocks = kValues / Block::kValues;
  struct Stage {
    alignas(64) int8_t codes[kValues];
    float scales[kValues / Block::kGroupValues];
  };

  static HWY_INLINE void unpack(const Block* at, Stage& stage) {
    constexpr int kGroups = Block::kValues / Block::kGroupValues;
    for (int b = 0; b < kBlocks; ++b) {
      const Groups groups = dsv32::unpack(at[b], stage.codes + b * Block::kValues);
      for (int g = 0; g < kGroups; ++g) stage.scales[b * kGroups + g] = scale_number<Block>(groups.scales[g]);
    }
  }

  static HWY_INLINE Floats weights(const Block*, const Stage& stage, int i) {
    return mul(load_int8(stage.codes + i), broadcast(stage.scales[i / Block::kGroupValues]));
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace dsv32
HWY_AFTER_NAMESPACE();

#endif  // DSV32_CPU_FORMATS_INL_H_
