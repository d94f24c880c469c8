// One step of a row times prepared activations, for every storage format.
//
// A format F has kBlocks of its Block a step and kValues columns; unpack(), which makes a Stage of a row's
// step; and weights(), sixteen of them as floats. Several tokens share the weights, and a token's operations
// do not depend on their number.
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
  static constexpr int kBlocks = 64, kValues = 64;
  struct Stage {};

  static HWY_INLINE void unpack(const Block*, Stage&) {}

  static HWY_INLINE Floats weights(const Block* at, const Stage&, int i) {
    if constexpr (std::is_same_v<Block, float>)
      return load_floats_anywhere(at + i);
    else
      return load_halves(at + i);
  }
};

// Blocks of codes: see quant_codes.h.
template <class B>
struct BlockFormat {
  using Block = B;
  static constexpr int kValues = 256, kBlocks = kValues / Block::kValues;
  static constexpr bool kIsUnpacked = std::is_same_v<Block, BlockQ8_0>;
  struct Stage {
    alignas(64) int8_t codes[kValues];
    alignas(64) float scales[16], offsets[16];  // of the groups
  };

  static HWY_INLINE void unpack(const Block* at, Stage& stage) {
    if constexpr (kBlocks == 1) {
      const Groups groups = dsv32::unpack(*at, stage.codes);
      scale(groups.scales, half_to_float(at->d) * kUnit<Block>, stage.scales);
      if constexpr (Block::kHasMins) scale(groups.mins, half_to_float(dmin(*at)), stage.offsets);
      return;
    }
    for (int b = 0; b < kBlocks; ++b) {
      if constexpr (!kIsUnpacked) dsv32::unpack(at[b], stage.codes + b * Block::kValues);
      stage.scales[b] = half_to_float(at[b].d);
      if constexpr (Block::kHasMins) stage.offsets[b] = -half_to_float(dmin(at[b]));
    }
  }

  static HWY_INLINE void scale(const Bytes16& numbers, float factor, float* out) {
    store_floats(mul(load_int8(reinterpret_cast<const int8_t*>(&numbers)), broadcast(factor)), out);
  }

  static HWY_INLINE Floats weights(const Block* at, const Stage& stage, int i) {
    const int8_t* codes = stage.codes + i;
    if constexpr (kIsUnpacked) codes = at[i / Block::kValues].qs + i % Block::kValues;
    const Floats scale = broadcast(stage.scales[i / Block::kGroupValues]);
    if constexpr (Block::kHasMins)
      return mul_sub(load_int8(codes), scale, broadcast(stage.offsets[i / Block::kGroupValues]));
    else
      return mul(load_int8(codes), scale);
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace dsv32
HWY_AFTER_NAMESPACE();

#endif  // DSV32_CPU_FORMATS_INL_H_
