// How fast rows are stored, resolved and fetched at real sizes, beside what a plain copy over the link
// reaches in the same run. Prints; checks nothing.
#include <cstdio>
#include <numeric>

#include "backend/topk_buffer.h"
#include "cuda/kernels.h"
#include "tests/gpu/gpu_test.h"
#include "tests/gpu/kept_tokens.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(gpu_transfer, *boost::unit_test::precondition(needs_gpu))

namespace {

constexpr int64_t kContext = 131072;
const CacheLayout kRealLayout{KvType::fp8, 512, 64, 128};

// The time of one of several calls made one after the other, so that a launch's own cost is not counted.
double seconds_each(TestLaunch& test, const std::function<void()>& call) {
  constexpr int kCalls = 16;
  return test.seconds([&] {
    for (int i = 0; i < kCalls; ++i) call();
  }) / kCalls;
}

// One sequence of kContext tokens with a buffer of n_slots, and its last tokens as a step.
struct RealCache {
  int64_t n_slots, n_tokens;
  std::vector<int32_t> pages, state, pos, seq;
  DeviceArray<uint8_t> rows, slots, keys;
  DeviceArray<int32_t> d_pages, d_state, d_pos, d_seq;
  DeviceArray<TopkBuffer> buffer;

  explicit RealCache(int64_t slot_count, int64_t token_count = 1)
      : n_slots(slot_count),
        n_tokens(token_count),
        pages(lines(token_count)),
        state(fresh(slot_count)),
        pos(numbered(token_count, kContext - token_count)),
        seq(numbered(token_count)),
        rows(static_cast<size_t>(kContext * kRealLayout.row_bytes()), true),
        slots(static_cast<size_t>((slot_count + kPageTokens) * kRealLayout.row_bytes())),
        keys(static_cast<size_t>(kContext / kPageTokens * kRealLayout.key_page_bytes())),
        d_pages(pages),
        d_state(state),
        d_pos(pos),
        d_seq(seq),
        buffer(std::vector<TopkBuffer>(
            static_cast<size_t>(token_count),
            {static_cast<int32_t>(slot_count), d_state.data(), d_state.data() + slot_count})) {}
  static std::vector<int32_t> numbered(int64_t n, int64_t first = 0) {
    std::vector<int32_t> values(static_cast<size_t>(n));
    std::iota(values.begin(), values.end(), static_cast<int32_t>(first));
    return values;
  }
  static std::vector<int32_t> lines(int64_t n) {  // of pages, all equal
    std::vector<int32_t> all;
    for (const std::vector<int32_t> line = numbered(kContext / kPageTokens); n > 0; --n)
      all.insert(all.end(), line.begin(), line.end());
    return all;
  }
  static std::vector<int32_t> fresh(int64_t n) {
    std::vector<int32_t> values(static_cast<size_t>(2 * n));
    reset({static_cast<int32_t>(n), values.data(), values.data() + n});
    return values;
  }
  CacheView view() const {
    CacheView cache;
    cache.layout = kRealLayout, cache.rows = rows.data(), cache.pages = d_pages.data();
    cache.key_pages = keys.data();
    cache.max_pages = kContext / kPageTokens, cache.slots = slots.data();
    cache.slot_pages = d_pages.data(), cache.buffers = buffer.data(), cache.most_slots = n_slots;
    return cache;
  }
  StepTokens step() const { return {n_tokens, n_tokens, kContext - 1, nullptr, d_pos.data(), d_seq.data()}; }
};

// n ascending positions, one of each of n equal parts of the context.
std::vector<int32_t> scattered(int64_t n, uint64_t seed) {
  Rng rng(seed);
  const int64_t part = kContext / n;
  std::vector<int32_t> positions;
  for (int64_t i = 0; i < n; ++i)
    positions.push_back(static_cast<int32_t>(i * part) +
                        static_cast<int32_t>(rng.next() % static_cast<uint64_t>(part)));
  return positions;
}

}  // namespace

BOOST_AUTO_TEST_CASE(timing_of_resolve_and_store, *boost::unit_test::label("timing")) {
  TestLaunch test;
  constexpr int64_t kTopk = 2048;
  for (const int64_t n_slots : {4097, 8193}) {
    const RealCache cache(n_slots);
    const DeviceArray<int32_t> n_selected(std::vector<int32_t>{kTopk}), misses(kTopk), n_misses(1);
    const DeviceArray<int64_t> row_ids(kTopk), tally(std::vector<int64_t>{0, 0});
    for (const auto& [n_of_eight, fetches] : std::initializer_list<std::pair<uint64_t, bool>>{
             {0, false},
             {1, false},
             {8, false},
             {0, true},
             {1, true},
             {8, true}}) {  // eighths of the selection that each step renews
      std::vector<std::unique_ptr<DeviceArray<int32_t>>> steps;
      std::vector<int32_t> selected = scattered(kTopk, 1);
      for (uint64_t at = 0; at < 16; ++at) {
        const std::vector<int32_t> others = scattered(kTopk, at + 2);
        Rng rng(at);
        for (size_t i = 0; i < selected.size(); ++i)
          if (rng.next() % 8 < n_of_eight) selected[i] = others[i];
        steps.push_back(std::make_unique<DeviceArray<int32_t>>(selected));
      }
      size_t at = 0;
      const double seconds = seconds_each(test, [&] {
        cuda::Launch plain = test.launch();  // the state is the call's before: it has to be complete
        plain.is_plain = true;
        const Resolve op{cache.step(),      cache.view(),    steps[at++ % steps.size()]->data(),
                         n_selected.data(), kTopk,           row_ids.data(),
                         misses.data(),     n_misses.data(), tally.data()};
        cuda::resolve(op, fetches, plain);
      });
      std::printf("resolve%s of 2048 in %lld slots, %d misses the last time: %.1f us\n",
                  fetches ? " and fetch" : "", static_cast<long long>(n_slots), n_misses.values()[0],
                  seconds * 1e6);
    }
    const KeptTokens kept(cache.view().layout, 1, 1);
    CacheView without = cache.view();
    without.slots = without.rows, without.buffers = nullptr;
    for (const CacheView& view : {cache.view(), without})
      std::printf("store of a row%s: %.1f us\n", view.buffers ? ", with a slot" : "",
                  seconds_each(test, [&] {
                    cuda::store_tokens(kept.device(cache.step(), view, false), test.launch());
                  }) * 1e6);
  }
}

// Each token wants an eighth of other rows than the one before.
BOOST_AUTO_TEST_CASE(timing_of_resolve_for_tokens_of_a_sequence, *boost::unit_test::label("timing")) {
  TestLaunch test;
  constexpr int64_t kTopk = 2048, kSteps = 8;
  for (const int64_t n_tokens : {1, 2, 3, 4})
    for (const bool fetches : {false, true}) {
      const RealCache cache(8321, n_tokens);
      const auto n = static_cast<size_t>(n_tokens);
      const DeviceArray<int32_t> n_selected(std::vector<int32_t>(n, kTopk)), misses(n * kTopk), n_misses(n);
      const DeviceArray<int64_t> row_ids(n * kTopk), tally(std::vector<int64_t>{0, 0});
      std::vector<std::unique_ptr<DeviceArray<int32_t>>> steps;
      std::vector<int32_t> selected = scattered(kTopk, 1);
      Rng rng(5);
      for (uint64_t at = 0; at < kSteps; ++at) {
        std::vector<int32_t> of_all;
        for (size_t t = 0; t < n; ++t) {
          const std::vector<int32_t> others = scattered(kTopk, 10 * at + t + 2);
          for (size_t i = 0; i < selected.size(); ++i)
            if (rng.next() % 8 == 0) selected[i] = others[i];
          of_all.insert(of_all.end(), selected.begin(), selected.end());
        }
        steps.push_back(std::make_unique<DeviceArray<int32_t>>(of_all));
      }
      size_t at = 0;
      const double seconds = seconds_each(test, [&] {
        cuda::Launch plain = test.launch();  // the state is the call's before: it has to be complete
        plain.is_plain = true;
        const Resolve op{cache.step(),      cache.view(),    steps[at++ % steps.size()]->data(),
                         n_selected.data(), kTopk,           row_ids.data(),
                         misses.data(),     n_misses.data(), tally.data()};
        cuda::resolve(op, fetches, plain);
      });
      std::printf("resolve%s of 2048 for %lld tokens of a sequence, %d misses of the last: %.1f us\n",
                  fetches ? " and fetch" : "", static_cast<long long>(n_tokens), n_misses.values().back(),
                  seconds * 1e6);
    }
}

// The stores of a prefill step go over the link as they are made.
BOOST_AUTO_TEST_CASE(timing_of_prefill_store, *boost::unit_test::label("timing")) {
  TestLaunch test;
  constexpr int64_t kTokens = 2048;
  const RealCache cache(1);
  std::vector<int32_t> positions = RealCache::numbered(kTokens);
  const DeviceArray<int32_t> pos(positions), seq(std::vector<int32_t>(kTokens, 0));
  CacheView view = cache.view();
  const KeptTokens kept(view.layout, kTokens, 1);
  view.slots = view.rows, view.buffers = nullptr;
  const double seconds = seconds_each(test, [&] {
    cuda::store_tokens(kept.device({kTokens, 1, kTokens - 1, nullptr, pos.data(), seq.data()}, view, false),
                       test.launch());
  });
  std::printf("store of %lld rows of 640 bytes: %.1f us, %.1f GB/s over the link\n",
              static_cast<long long>(kTokens), seconds * 1e6, kTokens * 640 / seconds / 1e9);
}

BOOST_AUTO_TEST_CASE(timing_of_fetch, *boost::unit_test::label("timing")) {
  TestLaunch test;
  constexpr int64_t kMost = 8192;
  const RealCache cache(kMost + 1);
  const DeviceArray<uint8_t> target(size_t{256} << 20), source(size_t{256} << 20, true);
  const auto copy_rate = [&](size_t n_bytes) {
    const double seconds = seconds_each(test, [&] {
      CUDA_CHECK(
          cudaMemcpyAsync(target.data(), source.data(), n_bytes, cudaMemcpyHostToDevice, test.stream()));
    });
    return static_cast<double>(n_bytes) / seconds / 1e9;
  };
  const double most = copy_rate(source.size());
  std::printf("memcpy of 256 MiB host to device: %.1f GB/s\n", most);
  std::vector<int64_t> row_ids(kMost);
  std::iota(row_ids.begin(), row_ids.end(), 1);
  const DeviceArray<int64_t> d_row_ids(row_ids);
  const DeviceArray<int32_t> misses(RealCache::numbered(kMost));
  for (const int32_t n_rows : {1, 256, 1024, 2048, 4096, 8192}) {  // as if that many were missing
    const DeviceArray<int32_t> selected(scattered(n_rows, 9)), n_misses(std::vector<int32_t>{n_rows});
    const double seconds = seconds_each(test, [&] {
      cuda::fetch_latents({cache.step(), cache.view(), selected.data(), d_row_ids.data(), misses.data(),
                           n_misses.data(), n_rows},
                          test.launch());
    });
    const double rate = n_rows * 640 / seconds / 1e9;
    std::printf(
        "fetch of %5d rows of 640 bytes: %6.1f us, %5.1f M rows/s, %4.1f GB/s = %3.0f %% of that memcpy; "
        "memcpy of as many bytes %4.1f GB/s\n",
        n_rows, seconds * 1e6, n_rows / seconds / 1e6, rate, 100 * rate / most,
        copy_rate(static_cast<size_t>(n_rows) * 640));
  }
}

BOOST_AUTO_TEST_SUITE_END()
