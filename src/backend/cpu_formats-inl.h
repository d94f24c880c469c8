// Unpacks a step of a row, 256 columns, to floats, for every storage format.
//
// A format has kBlocks of its Block in a step; unpack(), which makes an Unpacked of them: codes as bytes
// (quant_codes.h) and scales; and weights(), sixteen values from value i on as floats.
#if defined(DSV32_CPU_FORMATS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DSV32_CPU_FORMATS_INL_H_
#undef DSV32_CPU_FORMATS_INL_H_
#else
#define DSV32_CPU_FORMATS_INL_H_
#endif

#include <type_traits>

#include "backend/cpu_kernels.h"
#include "backend/vec16-inl.h"
#include "gguf/quant_codes.h"

HWY_BEFORE_NAMESPACE();
namespace dsv32 {
namespace HWY_NAMESPACE {

// Weights stored as floats. B: float, hwy::float16_t or hwy::bfloat16_t.
template <class B>
struct FloatFormat {
  using Block = B;
  static constexpr int kBlocks = kStepValues;
  struct Unpacked {};

  static HWY_INLINE void unpack(const Block*, Unpacked&) {}

  static HWY_INLINE Floats weights(const Block* at, const Unpacked&, int i) {
    if constexpr (std::is_same_v<Block, float>)
      return load_floats(at + i);
    else
      return load_halves(at + i);
  }
};

template <class B>
struct BlockFormat {
  using Block = B;
  static constexpr int kBlocks = kStepValues / Block::kValues;
  static constexpr int kGroups = Block::kValues / Block::kGroupValues;
  static constexpr bool kHasCodes = std::is_same_v<Block, BlockQ8_0>;  // as bytes in the block
  static constexpr bool kHasOneScale = Block::kValues == 32 && requires(Block b) {
    b.d;
  };  // read from the block
  struct Unpacked {
    alignas(64) int8_t codes[kStepValues];
    alignas(64) float scales[16], offsets[16];  // of the groups; an offset is minus the min
  };

  static HWY_INLINE void unpack(const Block* at, Unpacked& unpacked) {
    if constexpr (kHasCodes) return;
    for (int b = 0; b < kBlocks; ++b) {
      const Groups groups = dsv32::unpack(at[b], unpacked.codes + b * Block::kValues);
      if constexpr (kHasOneScale) continue;
      if constexpr (kBlocks > 1) {
        for (int g = 0; g < kGroups; ++g)
          unpacked.scales[b * kGroups + g] = scale_number<Block>(groups.scales[g]);
      } else {
        scale(groups.scales, half_to_float(shared_scale(*at)) * Block::kScaleFactor, unpacked.scales);
        if constexpr (Block::kHasMins) scale(groups.mins, -half_to_float(at->dmin), unpacked.offsets);
      }
    }
  }

  static HWY_INLINE void scale(const Bytes16& numbers, float factor, float* out) {
    store_floats(mul(load_int8(reinterpret_cast<const int8_t*>(&numbers)), broadcast(factor)), out);
  }

  static HWY_INLINE float scale_of(const Block& block, const Unpacked& unpacked, int group) {
    if constexpr (kHasOneScale)
      return half_to_float(block.d);
    else
      return unpacked.scales[group];
  }

  static HWY_INLINE Floats weights(const Block* at, const Unpacked& unpacked, int i) {
    const Block& block = at[i / Block::kValues];
    const int group = i / Block::kGroupValues;
    const int8_t* codes = unpacked.codes + i;
    if constexpr (kHasCodes) codes = block.qs + i % Block::kValues;
    const Floats scale = broadcast(scale_of(block, unpacked, group));
    if constexpr (requires { block.m; })
      return mul_add(load_int8(codes), scale, broadcast(half_to_float(block.m)));
    else if constexpr (Block::kHasMins)
      return mul_add(load_int8(codes), scale, broadcast(unpacked.offsets[group]));
    else
      return mul(load_int8(codes), scale);
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace dsv32
HWY_AFTER_NAMESPACE();

#endif  // DSV32_CPU_FORMATS_INL_H_
