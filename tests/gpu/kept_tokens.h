// What store_tokens() is given, on host and device. Whole numbers, whose sums are the same bits in any order,
// and no angle: then the CPU's rows and keys are to be met bit for bit.
#pragma once

#include <vector>

#include "backend/backend.h"
#include "tests/gpu/gpu_test.h"

namespace dsv32 {

struct KeptTokens {
  static constexpr int64_t kQueryRank = 48;
  std::vector<float> qr, kv, c, k, ones, zeros;
  DeviceArray<float> d_qr, d_kv, d_c, d_k, d_ones, d_zeros;

  KeptTokens(const CacheLayout& layout, int64_t n, uint64_t seed)
      : qr(whole_numbers(n * kQueryRank, seed)),
        kv(whole_numbers(n * (layout.kv_lora_rank + layout.qk_rope_head_dim), seed + 1)),
        c(static_cast<size_t>(n * layout.kv_lora_rank)),
        k(whole_numbers(n * layout.index_head_dim, seed + 2)),
        ones(512, 1.0f),
        zeros(512),
        d_qr(qr),
        d_kv(kv),
        d_c(c),
        d_k(k),
        d_ones(ones),
        d_zeros(zeros) {}

  // With keys only where has_keys.
  StoreTokens host(const StepTokens& step, const CacheView& cache, bool has_keys = true) {
    return {step,
            cache,
            zeros.data(),
            1e-6f,
            qr.data(),
            ones.data(),
            kQueryRank,
            kv.data(),
            ones.data(),
            c.data(),
            has_keys ? k.data() : nullptr,
            ones.data(),
            zeros.data(),
            1e-6f};
  }
  StoreTokens device(const StepTokens& step, const CacheView& cache, bool has_keys = true) const {
    return {step,
            cache,
            d_zeros.data(),
            1e-6f,
            d_qr.data(),
            d_ones.data(),
            kQueryRank,
            d_kv.data(),
            d_ones.data(),
            d_c.data(),
            has_keys ? d_k.data() : nullptr,
            d_ones.data(),
            d_zeros.data(),
            1e-6f};
  }

 private:
  // From -4 to 4, in pairs that add up to nothing: a row's mean is 0.
  static std::vector<float> whole_numbers(int64_t n, uint64_t seed) {
    Rng rng(seed);
    std::vector<float> values(static_cast<size_t>(n));
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = i % 2 ? -values[i - 1] : static_cast<float>(rng.next() % 9) - 4;
    return values;
  }
};

}  // namespace dsv32
