// Rows and keys stored, the top-k buffer resolved and filled: the same bytes and the same decisions as on the
// CPU, compared bit for bit, since nothing is computed but the rounding to e4m3, which is exact on both.
#include <numeric>

#include "backend/cpu_backend.h"
#include "cuda/kernels.h"
#include "tests/gpu/gpu_test.h"
#include "tests/gpu/kept_tokens.h"
#include "tests/gpu/twin_cache.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(gpu_transfer, *boost::unit_test::precondition(needs_gpu))

namespace {

// A decode step: one token of each sequence at its own position.
struct DecodeStep {
  std::vector<int32_t> pos, tokens, seq;
  DeviceArray<int32_t> d_tokens, d_pos, d_seq;
  explicit DecodeStep(std::vector<int32_t> positions)
      : pos(std::move(positions)),
        tokens(pos.size()),
        seq(last_first(n())),
        d_tokens(tokens),
        d_pos(pos),
        d_seq(seq) {}
  static std::vector<int32_t> last_first(int64_t n) {
    std::vector<int32_t> numbers(static_cast<size_t>(n));
    std::iota(numbers.begin(), numbers.end(), 0);
    std::ranges::rotate(numbers, numbers.end() - 1);
    return numbers;
  }
  int64_t n() const { return static_cast<int64_t>(pos.size()); }
  StepTokens host() const {
    return {n(), n(), *std::ranges::max_element(pos), tokens.data(), pos.data(), seq.data()};
  }
  StepTokens device() const {
    return {n(), n(), *std::ranges::max_element(pos), d_tokens.data(), d_pos.data(), d_seq.data()};
  }
};

}  // namespace

BOOST_AUTO_TEST_CASE(stored_rows_and_keys_are_the_same_bytes) {
  CpuBackend cpu(1);
  TestLaunch test;
  for (const KvType kv_type : {KvType::fp8, KvType::bf16, KvType::f32})
    for (const CacheLayout layout : {CacheLayout{kv_type, 512, 64, 128}, CacheLayout{kv_type, 160, 32, 64}}) {
      TwinCache cache(layout, 0);
      const DecodeStep step({0, 700, 63});
      KeptTokens kept(layout, step.n(), 1);
      const StoreTokens ours = kept.device(step.device(), cache.device());
      cpu.store_tokens(kept.host(step.host(), cache.host()));
      cuda::store_tokens(ours, test.launch());
      BOOST_TEST(kept.d_qr.values() == kept.qr);
      BOOST_TEST(kept.d_kv.values() == kept.kv);
      BOOST_TEST(kept.d_c.values() == kept.c);
      BOOST_TEST(kept.d_k.values() == kept.k);
      BOOST_TEST(cache.d_rows.values() == cache.rows);
      BOOST_TEST(cache.d_slots.values() == cache.slots);
      BOOST_TEST(cache.d_keys.values() == cache.keys);
    }
}

// Hundreds of steps of one or several sequences, of which one may be resident, with random and with
// adversarial selections: the same slots, misses, order and bytes, whether resolve() fetches or
// fetch_latents().
BOOST_AUTO_TEST_CASE(resolve_and_fetch_follow_the_policy) {
  struct Case {
    int64_t topk, capacity, n_seqs;
    KvType kv_type = KvType::fp8;
    int32_t first_pos = 0, n_steps = has_argument("brief") ? 25 : 200;
  };
  CpuBackend cpu(1);
  TestLaunch test;
  const bool can_fetch = cuda::card().has_clusters;
  // The last: more rows of 2304 bytes than eight blocks have on their way together.
  for (const Case& of :
       {Case{1, 1, 3}, Case{1, 3, 3}, Case{7, 7, 3}, Case{7, 15, 3}, Case{64, 64, 3}, Case{64, 129, 3},
        Case{64, 80, 1}, Case{64, 80, 4}, Case{64, 80, 16}, Case{600, 601, 2, KvType::f32, 600, 12}})
    for (const bool fetches : {false, true}) {
      const int64_t topk = of.topk;
      const auto n_seqs = static_cast<size_t>(of.n_seqs);
      TwinCache cache({of.kv_type, 512, 64, 128}, of.capacity, topk == 7 ? 1 : -1, of.n_seqs);
      Rng rng(static_cast<uint64_t>(of.capacity));
      cache.randomize(1);
      std::vector<int64_t> tally(2);
      const size_t n = n_seqs * static_cast<size_t>(topk);
      const DeviceArray<int64_t> d_tally(tally), d_row_ids(n);
      DeviceArray<int32_t> d_selected(n), d_n_selected(n_seqs), d_misses(n), d_n_misses(n_seqs);
      bool has_fetched = false;
      for (int32_t at = 0; at < of.n_steps; ++at) {
        std::vector<int32_t> positions(n_seqs);
        for (size_t t = 0; t < n_seqs; ++t)
          positions[t] = of.first_pos + at + static_cast<int32_t>(t % 4) * 50;
        const DecodeStep step(positions);
        std::vector<int32_t> selected(n), n_selected(n_seqs), misses(n), n_misses(n_seqs);
        std::vector<int64_t> row_ids(n);
        for (size_t t = 0; t < n_seqs; ++t) {
          const int64_t n_visible = step.pos[t] + 1, n_wanted = std::min(n_visible, topk);
          // Every fifth time the lowest positions, after steps that did not want them.
          const std::vector<int32_t> all = sample(rng, n_wanted, at % 5 == 0 ? n_wanted : n_visible);
          std::ranges::copy(all, selected.begin() + static_cast<int64_t>(t) * topk);
          n_selected[t] = static_cast<int32_t>(all.size());
        }
        KeptTokens kept(cache.layout, of.n_seqs, static_cast<uint64_t>(at));
        d_selected.fill(selected), d_n_selected.fill(n_selected);
        cpu.store_tokens(kept.host(step.host(), cache.host(), false));
        cuda::store_tokens(kept.device(step.device(), cache.device(), false), test.launch());
        cpu.resolve({step.host(), cache.host(), selected.data(), n_selected.data(), topk, row_ids.data(),
                     misses.data(), n_misses.data(), tally.data()});
        const Resolve ours{step.device(),    cache.device(),  d_selected.data(), d_n_selected.data(), topk,
                           d_row_ids.data(), d_misses.data(), d_n_misses.data(), d_tally.data()};
        has_fetched = cuda::resolve(ours, fetches, test.launch());
        cpu.fetch_latents({step.host(), cache.host(), selected.data(), row_ids.data(), misses.data(),
                           n_misses.data(), topk});
        if (!has_fetched)
          cuda::fetch_latents({step.device(), cache.device(), d_selected.data(), d_row_ids.data(),
                               d_misses.data(), d_n_misses.data(), topk},
                              test.launch());
        BOOST_REQUIRE(d_n_misses.values() == n_misses);
        const std::vector<int64_t> gpu_row_ids = d_row_ids.values();
        const std::vector<int32_t> gpu_misses = d_misses.values();
        for (size_t t = 0; t < n_seqs; ++t) {
          const auto first = static_cast<int64_t>(t) * topk;
          BOOST_REQUIRE(std::equal(row_ids.begin() + first, row_ids.begin() + first + n_selected[t],
                                   gpu_row_ids.begin() + first));
          BOOST_REQUIRE(std::equal(misses.begin() + first, misses.begin() + first + n_misses[t],
                                   gpu_misses.begin() + first));
        }
        if (at % 20 != 0 && at + 1 != of.n_steps) continue;
        BOOST_REQUIRE(cache.d_states.values() == cache.states);
        BOOST_REQUIRE(cache.d_slots.values() == cache.slots);
      }
      if (fetches && can_fetch) BOOST_TEST(has_fetched == (of.n_seqs <= kFewFetchTokens));
      BOOST_TEST(d_tally.values() == tally);
      BOOST_TEST(tally[1] > 0);
    }
}

// Buffers as large as real ones and one that shared memory does not hold: scattered selections, runs,
// positions up to a million; the same decisions over steps that keep most of their rows.
BOOST_AUTO_TEST_CASE(large_buffers_follow_the_policy) {
  struct Shape {
    int32_t topk, n_slots, n_positions, run;
  };
  CpuBackend cpu(1);
  TestLaunch test;
  for (const Shape& shape :
       {Shape{2048, 2049, 4000, 1}, Shape{2048, 4097, 131072, 1}, Shape{2048, 8193, 1 << 20, 40},
        Shape{3073, 9001, 20000, 7}, Shape{2048, 20001, 131072, 3}, Shape{33, 70, 128, 3}}) {
    constexpr size_t kTokens = 2;
    const auto topk = static_cast<size_t>(shape.topk), n_slots = static_cast<size_t>(shape.n_slots);
    std::vector<int32_t> state(2 * kTokens * n_slots), pos(kTokens, shape.n_positions - 1), seq{1, 0};
    std::vector<TopkBuffer> buffers, device_buffers;
    const auto buffer_in = [&](int32_t* first, size_t s) {
      return TopkBuffer{shape.n_slots, first + 2 * s * n_slots, first + (2 * s + 1) * n_slots};
    };
    for (size_t s = 0; s < kTokens; ++s) reset(buffers.emplace_back(buffer_in(state.data(), s)));
    const DeviceArray<int32_t> d_state(state), d_pos(pos), d_seq(seq);
    for (size_t s = 0; s < kTokens; ++s) device_buffers.push_back(buffer_in(d_state.data(), s));
    const DeviceArray<TopkBuffer> d_buffers(device_buffers);
    const int64_t n_pages = pages_for(shape.n_slots);
    std::vector<int32_t> slot_pages(kTokens * static_cast<size_t>(n_pages));
    std::iota(slot_pages.rbegin(), slot_pages.rend(), 0);
    const DeviceArray<int32_t> d_slot_pages(slot_pages);
    std::vector<int64_t> tally(2), row_ids(kTokens * topk);
    const DeviceArray<int64_t> d_tally(tally), d_row_ids(row_ids.size());
    const DeviceArray<int32_t> d_misses(kTokens * topk), d_n_misses(kTokens);
    uint8_t has_slots = 0;  // no row is touched here
    CacheView host;
    host.slots = &has_slots, host.most_slots = shape.n_slots, host.max_pages = n_pages;
    CacheView device = host;
    host.slot_pages = slot_pages.data(), host.buffers = buffers.data();
    device.slot_pages = d_slot_pages.data(), device.buffers = d_buffers.data();

    Rng rng(topk);
    const auto any_position = [&] { return rng.next() % static_cast<uint64_t>(shape.n_positions); };
    std::vector<uint8_t> is_wanted(static_cast<size_t>(shape.n_positions));
    const auto add_run = [&] {
      const size_t first = any_position();
      for (size_t p = first; p < std::min(first + static_cast<size_t>(shape.run), is_wanted.size()); ++p)
        is_wanted[p] = 1;
    };
    for (int at = 0; at < 12; ++at) {
      std::vector<int32_t> selected(kTokens * topk), n_selected(kTokens), misses(kTokens * topk),
          n_misses(kTokens);
      for (size_t t = 0; t < kTokens; ++t) {
        const size_t n = at % 4 == 3 ? topk / 2 + t : topk;
        for (size_t p = 0; p < is_wanted.size(); ++p)  // an eighth of what was wanted is not any more
          if (is_wanted[p] && rng.next() % 8 == 0) is_wanted[p] = 0;
        while (static_cast<size_t>(std::ranges::count(is_wanted, 1)) < n)
          for (size_t i = 0; i < 1 + n / 16 / static_cast<size_t>(shape.run); ++i) add_run();
        int32_t* next = selected.data() + t * topk;
        for (size_t p = 0; p < is_wanted.size() && n_selected[t] < static_cast<int32_t>(n); ++p)
          if (is_wanted[p]) *next++ = static_cast<int32_t>(p), ++n_selected[t];
      }
      const StepTokens step{kTokens, kTokens, shape.n_positions - 1, nullptr, pos.data(), seq.data()};
      const StepTokens d_step{kTokens, kTokens, shape.n_positions - 1, nullptr, d_pos.data(), d_seq.data()};
      const DeviceArray<int32_t> d_selected(selected), d_n_selected(n_selected);
      for (const TopkBuffer& buffer : buffers) claim_newest(buffer, pos[0]);  // as when rows are stored
      cpu.resolve({step, host, selected.data(), n_selected.data(), shape.topk, row_ids.data(), misses.data(),
                   n_misses.data(), tally.data()});
      cuda::resolve({d_step, device, d_selected.data(), d_n_selected.data(), shape.topk, d_row_ids.data(),
                     d_misses.data(), d_n_misses.data(), d_tally.data()},
                    false, test.launch());
      BOOST_REQUIRE(d_n_misses.values() == n_misses);
      BOOST_REQUIRE(d_state.values() == state);
      const std::vector<int64_t> gpu_row_ids = d_row_ids.values();
      const std::vector<int32_t> gpu_misses = d_misses.values();
      for (size_t t = 0; t < kTokens; ++t) {
        const auto first = static_cast<int64_t>(t * topk);
        BOOST_REQUIRE(std::equal(row_ids.begin() + first, row_ids.begin() + first + n_selected[t],
                                 gpu_row_ids.begin() + first));
        BOOST_REQUIRE(std::equal(misses.begin() + first, misses.begin() + first + n_misses[t],
                                 gpu_misses.begin() + first));
      }
    }
    BOOST_TEST(d_tally.values() == tally);
    BOOST_TEST(tally[1] > 0);
    BOOST_TEST(tally[1] < tally[0]);
  }
}

// A new position takes the next victim's slot, one that is there keeps its own: first, last, in the middle;
// with more slots than one pass moves. The state is known once the step is resolved; nothing else is
// selected.
BOOST_AUTO_TEST_CASE(newest_rows_claim_slots) {
  CpuBackend cpu(1);
  TestLaunch test;
  for (const int64_t capacity : {1, 100, 1024, 9000}) {
    TwinCache cache({KvType::fp8, 512, 64, 128}, capacity);
    cache.randomize(3);
    KeptTokens kept(cache.layout, 3, 4);
    for (const int32_t pos : {0, 1, 2, 3, 3, 0, 2, 700, 2, 701}) {
      const DecodeStep step({pos, pos + 1, pos + 2});
      cpu.store_tokens(kept.host(step.host(), cache.host(), false));
      cuda::store_tokens(kept.device(step.device(), cache.device(), false), test.launch());
      const DeviceArray<int32_t> d_n_selected(std::vector<int32_t>{1, 1, 1}), d_misses(3), d_n_misses(3);
      const DeviceArray<int64_t> d_row_ids(3), d_tally(2);
      cuda::resolve({step.device(), cache.device(), step.d_pos.data(), d_n_selected.data(), 1,
                     d_row_ids.data(), d_misses.data(), d_n_misses.data(), d_tally.data()},
                    false, test.launch());
      BOOST_REQUIRE(d_n_misses.values() == std::vector<int32_t>(3));
      BOOST_REQUIRE(cache.d_states.values() == cache.states);
    }
    BOOST_TEST(cache.d_slots.values() == cache.slots);
    BOOST_TEST(cache.d_rows.values() == cache.rows);
  }
}

// Any number of misses, of any token, in rows of every kind: whole 16-byte words (640, 1152, 2304, 224
// bytes), odd ones (225, 330), longer than the bulk copies take (16 640), and slots that are not aligned.
BOOST_AUTO_TEST_CASE(missing_rows_are_fetched) {
  constexpr int64_t kTopk = 700;  // more rows than all blocks have on their way together
  CpuBackend cpu(1);
  TestLaunch test;
  for (const CacheLayout layout :
       {CacheLayout{KvType::fp8, 512, 64, 128}, CacheLayout{KvType::bf16, 512, 64, 128},
        CacheLayout{KvType::f32, 512, 64, 128}, CacheLayout{KvType::fp8, 160, 32, 64},
        CacheLayout{KvType::fp8, 161, 32, 64}, CacheLayout{KvType::bf16, 133, 32, 64},
        CacheLayout{KvType::f32, 4096, 64, 128}})
    for (const bool is_aligned : {true, false}) {
      if (!is_aligned && layout.row_bytes() != 640) continue;
      TwinCache cache(layout, kTopk);
      cache.randomize(static_cast<uint64_t>(layout.row_bytes()));
      const DeviceArray<uint8_t> shifted(cache.slots.size() + 8);
      const DecodeStep step({767, 767, 767});
      Rng rng(7);
      for (const auto& n_misses : std::vector<std::vector<int32_t>>{{0, 0, 0},
                                                                    {1, 0, 0},
                                                                    {0, 0, 1},
                                                                    {0, 40, 1},
                                                                    {kTopk, 0, 3},
                                                                    {500, 100, 699},
                                                                    {kTopk, kTopk, kTopk}}) {
        std::vector<int32_t> selected(3 * kTopk), misses(3 * kTopk, -1);
        std::vector<int64_t> row_ids(3 * kTopk);
        for (size_t t = 0; t < 3; ++t) {
          const size_t first = t * kTopk;
          std::vector<int64_t> slots(static_cast<size_t>(cache.n_slots));
          for (size_t s = 0; s < slots.size(); ++s)
            slots[s] = cache.slot_row(step.seq[t], static_cast<int64_t>(s));
          for (size_t i = slots.size(); i-- > 1;) std::swap(slots[i], slots[rng.next() % (i + 1)]);
          std::copy_n(slots.begin(), kTopk, row_ids.begin() + static_cast<int64_t>(first));
          std::ranges::copy(sample(rng, kTopk, 768), selected.begin() + static_cast<int64_t>(first));
          std::ranges::copy(sample(rng, n_misses[t], kTopk), misses.begin() + static_cast<int64_t>(first));
        }
        const DeviceArray<int32_t> d_selected(selected), d_misses(misses), d_n_misses(n_misses);
        const DeviceArray<int64_t> d_row_ids(row_ids);
        CacheView device = cache.device();
        if (!is_aligned) {
          device.slots = shifted.data() + 8;
          CUDA_CHECK(cudaMemcpy(device.slots, cache.slots.data(), cache.slots.size(), cudaMemcpyDefault));
        }
        cpu.fetch_latents({step.host(), cache.host(), selected.data(), row_ids.data(), misses.data(),
                           n_misses.data(), kTopk});
        cuda::fetch_latents({step.device(), device, d_selected.data(), d_row_ids.data(), d_misses.data(),
                             d_n_misses.data(), kTopk},
                            test.launch());
        std::vector<uint8_t> fetched = is_aligned ? cache.d_slots.values() : shifted.values();
        if (!is_aligned) fetched.erase(fetched.begin(), fetched.begin() + 8);
        BOOST_REQUIRE(fetched == cache.slots);
      }
    }
}

BOOST_AUTO_TEST_SUITE_END()
