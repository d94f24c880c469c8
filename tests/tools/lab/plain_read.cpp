// See plain_read.h. The share of a thread is compiled once per instruction set, and the best one is chosen at
// run time.
#include "tests/tools/lab/plain_read.h"

#include <algorithm>
#include <atomic>
#include <cstring>

// SVE's registers have no size at compile time, and NEON serves there.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/tools/lab/plain_read.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace dsv32 {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

uint64_t sum_of_words(const uint8_t* bytes, size_t n_bytes) {
  uint64_t sum = 0;
  for (size_t i = 0; i < n_bytes; i += sizeof sum) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + i, std::min(sizeof word, n_bytes - i));
    sum += word;
  }
  return sum;
}

#if HWY_TARGET == HWY_SCALAR

template <size_t kStreams>
uint64_t read_share(const uint8_t* bytes, size_t n_bytes) {
  return sum_of_words(bytes, n_bytes);
}

#else

// The share of one thread.
template <size_t kStreams>
uint64_t read_share(const uint8_t* bytes, size_t n_bytes) {
  const hn::ScalableTag<uint64_t> tag;
  const hn::Repartition<uint8_t, decltype(tag)> byte_tag;
  constexpr size_t kVectors = 4, kSums = 8;
  const size_t vector_bytes = hn::Lanes(byte_tag), step = kVectors * vector_bytes;
  const size_t stream = n_bytes / kStreams / step * step;
  hn::Vec<decltype(tag)> sums[kSums];
  HWY_UNROLL(8) for (size_t k = 0; k < kSums; ++k) sums[k] = hn::Zero(tag);
  for (size_t i = 0; i < stream; i += step)
    HWY_UNROLL(8) for (size_t s = 0; s < kStreams; ++s) HWY_UNROLL(4) for (size_t v = 0; v < kVectors; ++v) {
      const uint8_t* at = bytes + s * stream + i + v * vector_bytes;
      auto& sum = sums[(kVectors * s + v) % kSums];
      sum = hn::Add(sum, hn::BitCast(tag, hn::LoadU(byte_tag, at)));
    }
  uint64_t total = sum_of_words(bytes + kStreams * stream, n_bytes - kStreams * stream);
  uint64_t lanes[HWY_MAX_BYTES / sizeof(uint64_t)];
  for (size_t k = 1; k < kSums; ++k) sums[0] = hn::Add(sums[0], sums[k]);
  hn::StoreU(sums[0], tag, lanes);
  for (size_t i = 0; i < hn::Lanes(tag); ++i) total += lanes[i];
  return total;
}

#endif  // HWY_TARGET == HWY_SCALAR

uint64_t read_in_order(const uint8_t* bytes, size_t n_bytes) { return read_share<1>(bytes, n_bytes); }
uint64_t read_by_streams(const uint8_t* bytes, size_t n_bytes) { return read_share<8>(bytes, n_bytes); }

}  // namespace HWY_NAMESPACE
}  // namespace dsv32
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace dsv32 {

HWY_EXPORT(read_in_order);
HWY_EXPORT(read_by_streams);

uint64_t plain_read(const uint8_t* bytes, size_t n_bytes, ReadPattern pattern, WorkerPool& workers) {
  constexpr size_t kLine = 64;
  std::atomic<uint64_t> total = 0;
  const auto n_shares = static_cast<size_t>(workers.n_threads());
  const size_t n_lines = (n_bytes + kLine - 1) / kLine;
  workers.parallel_for(workers.n_threads(), true, [&](int64_t i) {
    const auto share = static_cast<size_t>(i);
    const size_t begin = std::min(n_bytes, n_lines * share / n_shares * kLine);
    const size_t end = std::min(n_bytes, n_lines * (share + 1) / n_shares * kLine);
    total += pattern == ReadPattern::in_order
                 ? HWY_DYNAMIC_DISPATCH(read_in_order)(bytes + begin, end - begin)
                 : HWY_DYNAMIC_DISPATCH(read_by_streams)(bytes + begin, end - begin);
  });
  return total;
}

}  // namespace dsv32

#endif  // HWY_ONCE
