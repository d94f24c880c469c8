// Rows and keys stored, the top-k buffer resolved and filled: the same bytes and the same decisions as on the
// CPU.
#include <numeric>

#include "backend/cpu_backend.h"
#include "cuda/kernels.h"
#include "tests/gpu/gpu_test.h"

using namespace dsv32;

namespace {

constexpr int64_t kPages = 40, kSeqs = 3, kMaxPages = 12;

// A cache of three sequences with shuffled pages, once in host memory and once on the device (rows in pinned
// host memory).
struct TwinCache {
  CacheLayout layout;
  int64_t n_slots;
  std::vector<uint8_t> rows, keys, slots;
  std::vector<int32_t> row_pages, key_pages, states;
  std::vector<int64_t> first_slots;
  std::vector<TopkBuffer> buffers;
  DeviceArray<uint8_t> d_rows, d_resident, d_keys, d_slots;
  DeviceArray<int32_t> d_row_pages, d_key_pages, d_states;
  DeviceArray<int64_t> d_first_slots;
  DeviceArray<TopkBuffer> d_buffers;

  TwinCache(CacheLayout cache_layout, int64_t capacity)
      : layout(cache_layout),
        n_slots(capacity > 0 ? capacity + 1 : 0),
        rows(static_cast<size_t>(kPages * kPageTokens * layout.row_bytes())),
        keys(static_cast<size_t>(kPages * layout.key_page_bytes())),
        slots(static_cast<size_t>(kSeqs * n_slots * layout.row_bytes())),
        row_pages(shuffled(1)),
        key_pages(shuffled(2)),
        states(static_cast<size_t>(kSeqs * n_slots * 2)),
        first_slots{n_slots, 0, 2 * n_slots},
        buffers(fresh_buffers(states.data())),
        d_rows(rows, true),
        d_resident(rows),
        d_keys(keys),
        d_slots(slots),
        d_row_pages(row_pages),
        d_key_pages(key_pages),
        d_states(states),
        d_first_slots(first_slots),
        d_buffers(device_buffers()) {}

  CacheView host() const {
    CacheView view = common();
    view.rows = view.resident = const_cast<uint8_t*>(rows.data());
    view.key_pages = const_cast<uint8_t*>(keys.data());
    view.row_pages = view.resident_pages = row_pages.data(), view.key_page_ids = key_pages.data();
    if (n_slots == 0) return view;
    view.slots = const_cast<uint8_t*>(slots.data());
    view.first_slots = first_slots.data(), view.buffers = buffers.data();
    return view;
  }
  CacheView device() const {
    CacheView view = common();
    view.rows = d_rows.data(), view.resident = d_resident.data(), view.key_pages = d_keys.data();
    view.row_pages = view.resident_pages = d_row_pages.data(), view.key_page_ids = d_key_pages.data();
    if (n_slots == 0) return view;
    view.slots = d_slots.data(), view.first_slots = d_first_slots.data(), view.buffers = d_buffers.data();
    return view;
  }

 private:
  CacheView common() const {
    CacheView view;
    view.layout = layout, view.max_pages = kMaxPages, view.n_slots = n_slots;
    return view;
  }
  static std::vector<int32_t> shuffled(uint64_t seed) {
    std::vector<int32_t> pages(static_cast<size_t>(kPages));
    std::iota(pages.begin(), pages.end(), 0);
    Rng rng(seed);
    for (size_t i = pages.size(); i-- > 1;) std::swap(pages[i], pages[rng.next() % (i + 1)]);
    pages.resize(static_cast<size_t>(kSeqs * kMaxPages));
    return pages;
  }
  std::vector<TopkBuffer> fresh_buffers(int32_t* state) const {
    std::vector<TopkBuffer> made;
    for (int64_t s = 0; s < kSeqs; ++s) {
      made.push_back({static_cast<int32_t>(n_slots), state + 2 * s * n_slots, state + (2 * s + 1) * n_slots});
      if (n_slots > 0) reset(made.back());
    }
    return made;
  }
  std::vector<TopkBuffer> device_buffers() const {
    std::vector<TopkBuffer> made;
    for (int64_t s = 0; s < kSeqs; ++s)
      made.push_back({static_cast<int32_t>(n_slots), d_states.data() + 2 * s * n_slots,
                      d_states.data() + (2 * s + 1) * n_slots});
    return made;
  }
};

// A decode step: one token of each sequence at its own position.
struct DecodeStep {
  std::vector<int32_t> tokens{0, 0, 0}, pos, seq{2, 0, 1};
  DeviceArray<int32_t> d_tokens, d_pos, d_seq;
  explicit DecodeStep(std::vector<int32_t> positions)
      : pos(std::move(positions)), d_tokens(tokens), d_pos(pos), d_seq(seq) {}
  int64_t n() const { return static_cast<int64_t>(pos.size()); }
  StepTokens host() const {
    return {n(), kSeqs, *std::ranges::max_element(pos), tokens.data(), pos.data(), seq.data()};
  }
  StepTokens device() const {
    return {n(), kSeqs, *std::ranges::max_element(pos), d_tokens.data(), d_pos.data(), d_seq.data()};
  }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(gpu_transfer, *boost::unit_test::precondition(needs_gpu))

BOOST_AUTO_TEST_CASE(stored_rows_and_keys_are_the_same_bytes) {
  CpuBackend cpu(1);
  TestLaunch test;
  for (const KvType kv_type : {KvType::fp8, KvType::bf16, KvType::f32})
    for (const CacheLayout layout : {CacheLayout{kv_type, 512, 64, 128}, CacheLayout{kv_type, 160, 32, 64}}) {
      TwinCache cache(layout, 0);
      const DecodeStep step({0, 700, 63});
      const int64_t n = step.n(), stride = layout.kv_lora_rank + layout.qk_rope_head_dim;
      const std::vector<float> c = random_floats(static_cast<size_t>(n * layout.kv_lora_rank), 1, 4);
      const std::vector<float> k_pe = random_floats(static_cast<size_t>(n * stride), 2);
      const std::vector<float> k = random_floats(static_cast<size_t>(n * layout.index_head_dim), 3);
      const DeviceArray<float> d_c(c), d_k_pe(k_pe), d_k(k);
      cpu.store_latents({step.host(), cache.host(), c.data(), k_pe.data(), stride});
      cpu.store_index_keys({step.host(), cache.host(), k.data()});
      cuda::store_latents({step.device(), cache.device(), d_c.data(), d_k_pe.data(), stride}, test.launch());
      cuda::store_index_keys({step.device(), cache.device(), d_k.data()}, test.launch());
      BOOST_TEST(cache.d_rows.values() == cache.rows);
      BOOST_TEST(cache.d_resident.values() == cache.rows);
      BOOST_TEST(cache.d_keys.values() == cache.keys);
    }
}

// Hundreds of steps of three sequences with random and with adversarial selections: the same slots, misses,
// order and bytes.
BOOST_AUTO_TEST_CASE(resolve_and_fetch_follow_the_policy) {
  CpuBackend cpu(1);
  TestLaunch test;
  for (const int64_t topk : {1, 7, 64})
    for (const int64_t capacity : {topk, 2 * topk + 1}) {
      TwinCache cache({KvType::fp8, 512, 64, 128}, capacity);
      Rng rng(static_cast<uint64_t>(capacity));
      for (size_t i = 0; i < cache.rows.size(); ++i)
        cache.rows[i] = cache.d_rows.data()[i] = static_cast<uint8_t>(rng.next());
      std::vector<int64_t> tally(2);
      const DeviceArray<int64_t> d_tally(tally);
      for (int32_t at = 0; at < 200; ++at) {
        const DecodeStep step({at, at + 50, at + 100});
        const size_t n = static_cast<size_t>(kSeqs * topk);
        std::vector<int32_t> selected(n), n_selected(3), misses(n), n_misses(3);
        std::vector<int64_t> row_ids(n);
        for (size_t t = 0; t < 3; ++t) {
          std::vector<int32_t> all(static_cast<size_t>(step.pos[t]) + 1);
          std::iota(all.begin(), all.end(), 0);
          if (at % 5 != 0)  // else the lowest positions, after steps that did not want them
            for (size_t i = all.size(); i-- > 1;) std::swap(all[i], all[rng.next() % (i + 1)]);
          all.resize(std::min(all.size(), static_cast<size_t>(topk)));
          std::ranges::sort(all);
          std::ranges::copy(all, selected.begin() + static_cast<int64_t>(t) * topk);
          n_selected[t] = static_cast<int32_t>(all.size());
        }
        const std::vector<float> c = random_floats(3 * 512, static_cast<uint64_t>(at)),
                                 k_pe = random_floats(3 * 64, 1);
        const DeviceArray<float> d_c(c), d_k_pe(k_pe);
        const DeviceArray<int32_t> d_selected(selected), d_n_selected(n_selected), d_misses(n), d_n_misses(3);
        const DeviceArray<int64_t> d_row_ids(n);
        cpu.store_latents({step.host(), cache.host(), c.data(), k_pe.data(), 64});
        cuda::store_latents({step.device(), cache.device(), d_c.data(), d_k_pe.data(), 64}, test.launch());
        cpu.resolve({step.host(), cache.host(), selected.data(), n_selected.data(), topk, row_ids.data(),
                     misses.data(), n_misses.data(), tally.data()});
        cuda::resolve({step.device(), cache.device(), d_selected.data(), d_n_selected.data(), topk,
                       d_row_ids.data(), d_misses.data(), d_n_misses.data(), d_tally.data()},
                      test.launch());
        cpu.fetch_latents({step.host(), cache.host(), selected.data(), row_ids.data(), misses.data(),
                           n_misses.data(), topk});
        cuda::fetch_latents({step.device(), cache.device(), d_selected.data(), d_row_ids.data(),
                             d_misses.data(), d_n_misses.data(), topk},
                            test.launch());
        BOOST_REQUIRE(d_n_misses.values() == n_misses);
        const std::vector<int64_t> gpu_row_ids = d_row_ids.values();
        const std::vector<int32_t> gpu_misses = d_misses.values();
        for (size_t t = 0; t < 3; ++t) {
          const auto first = static_cast<int64_t>(t) * topk;
          BOOST_REQUIRE(std::equal(row_ids.begin() + first, row_ids.begin() + first + n_selected[t],
                                   gpu_row_ids.begin() + first));
          BOOST_REQUIRE(std::equal(misses.begin() + first, misses.begin() + first + n_misses[t],
                                   gpu_misses.begin() + first));
        }
        if (at % 20 != 0) continue;
        BOOST_REQUIRE(cache.d_states.values() == cache.states);
        BOOST_REQUIRE(cache.d_slots.values() == cache.slots);
      }
      BOOST_TEST(d_tally.values() == tally);
      BOOST_TEST(tally[1] > 0);
    }
}

BOOST_AUTO_TEST_CASE(timing, *boost::unit_test::label("timing")) {
  TestLaunch test;
  constexpr int64_t kTopk = 2048, kContext = 131072, kCapacity = 8192;
  const CacheLayout layout{KvType::fp8, 512, 64, 128};
  std::vector<int32_t> row_pages(kContext / kPageTokens), pos{kContext - 1}, seq{0}, selected(kTopk),
      n_selected{kTopk};
  std::iota(row_pages.begin(), row_pages.end(), 0);
  const int64_t n_slots = kCapacity + 1;
  const DeviceArray<uint8_t> rows(static_cast<size_t>(kContext * layout.row_bytes()), true);
  const DeviceArray<uint8_t> slots(static_cast<size_t>(n_slots * layout.row_bytes()));
  const DeviceArray<int32_t> d_pages(row_pages), d_pos(pos), d_seq(seq), d_n_selected(n_selected),
      misses(kTopk), n_misses(1);
  std::vector<int32_t> state(static_cast<size_t>(2 * n_slots));
  reset({static_cast<int32_t>(n_slots), state.data(), state.data() + n_slots});
  const DeviceArray<int32_t> d_state(state);
  const DeviceArray<TopkBuffer> buffer(
      std::vector<TopkBuffer>{{static_cast<int32_t>(n_slots), d_state.data(), d_state.data() + n_slots}});
  const DeviceArray<int64_t> first_slots(std::vector<int64_t>{0}), row_ids(kTopk),
      tally(std::vector<int64_t>{0, 0});
  CacheView cache;
  cache.layout = layout, cache.rows = rows.data(), cache.row_pages = d_pages.data(),
  cache.max_pages = static_cast<int64_t>(row_pages.size());
  cache.slots = slots.data(), cache.first_slots = first_slots.data(), cache.buffers = buffer.data(),
  cache.n_slots = n_slots;
  const StepTokens step{1, 1, kContext - 1, nullptr, d_pos.data(), d_seq.data()};
  Rng rng(1);
  for (int32_t i = 0; i < kTopk; ++i)
    selected[static_cast<size_t>(i)] = i * 64 + static_cast<int32_t>(rng.next() % 64);
  const DeviceArray<int32_t> d_selected(selected);
  const Resolve resolve{step,           cache,         d_selected.data(), d_n_selected.data(), kTopk,
                        row_ids.data(), misses.data(), n_misses.data(),   tally.data()};
  const double resolve_seconds = test.seconds([&] { cuda::resolve(resolve, test.launch()); });
  std::printf("resolve of 2048 in 8193 slots: %.1f us\n", resolve_seconds * 1e6);
  for (const int32_t n_rows : {256, 1024, 2048}) {  // as if that many were missing
    std::vector<int32_t> all(static_cast<size_t>(kTopk));
    std::iota(all.begin(), all.end(), 0);
    const DeviceArray<int32_t> d_misses(all), d_n_misses(std::vector<int32_t>{n_rows});
    const FetchLatents fetch{
        step, cache, d_selected.data(), row_ids.data(), d_misses.data(), d_n_misses.data(), kTopk};
    const double seconds = test.seconds([&] { cuda::fetch_latents(fetch, test.launch()); });
    std::printf("fetch of %d rows of 640 bytes: %.1f us, %.1f GB/s\n", n_rows, seconds * 1e6,
                n_rows * 640 / seconds / 1e9);
  }
  const DeviceArray<uint8_t> target(size_t{64} << 20);
  const double copy = test.seconds([&] {
    CUDA_CHECK(
        cudaMemcpyAsync(target.data(), rows.data(), target.size(), cudaMemcpyHostToDevice, test.stream()));
  });
  std::printf("memcpy of 64 MiB host to device: %.1f GB/s\n",
              static_cast<double>(target.size()) / copy / 1e9);
}

BOOST_AUTO_TEST_SUITE_END()
