// A cache of a few sequences, once for the CPU and once for the GPU, and the tables of steps that have
// several tokens of a sequence.
#pragma once

#include <numeric>
#include <vector>

#include "context/cache_plan.h"
#include "tests/gpu/gpu_test.h"

namespace dsv32 {

// A cache of a few sequences with shuffled pages, once in host memory and once on the device (rows in pinned
// host memory).
struct TwinCache {
  static constexpr int64_t kSeqs = 3, kSeqPages = 12;
  CacheLayout layout;
  int64_t n_seqs, n_pages, n_slots, max_pages, n_slot_pages;
  int64_t resident_seq;  // -1: all have buffers, if there are any
  std::vector<uint8_t> rows, keys, slots;
  std::vector<int32_t> pages, slot_pages, states;
  std::vector<TopkBuffer> buffers;
  DeviceArray<uint8_t> d_rows, d_keys, d_slots;
  DeviceArray<int32_t> d_pages, d_slot_pages, d_states;
  DeviceArray<TopkBuffer> d_buffers;

  TwinCache(CacheLayout cache_layout, int64_t capacity, int64_t resident = -1, int64_t seq_count = kSeqs)
      : layout(cache_layout),
        n_seqs(seq_count),
        n_pages(n_seqs * kSeqPages + 4),
        n_slots(capacity > 0 ? capacity + 1 : 0),
        max_pages(std::max(kSeqPages, pages_for(n_slots))),
        n_slot_pages(n_seqs * max_pages),
        resident_seq(resident),
        rows(static_cast<size_t>(n_pages * kPageTokens * layout.row_bytes())),
        keys(static_cast<size_t>(n_pages * layout.key_page_bytes())),
        slots(static_cast<size_t>(n_slot_pages * kPageTokens * layout.row_bytes())),
        pages(lines(n_pages, kSeqPages, 1)),
        slot_pages(lines(n_slot_pages, max_pages, 3)),
        states(static_cast<size_t>(n_seqs * n_slots * 2)),
        buffers(fresh_buffers(states.data())),
        d_rows(rows, true),
        d_keys(keys),
        d_slots(slots),
        d_pages(pages),
        d_slot_pages(slot_pages),
        d_states(states),
        d_buffers(device_buffers()) {}

  // Rows and slots.
  void randomize(uint64_t seed) {
    Rng rng(seed);
    for (uint8_t& byte : rows) byte = static_cast<uint8_t>(rng.next());
    for (uint8_t& byte : slots) byte = static_cast<uint8_t>(rng.next());
    d_rows.fill(rows), d_slots.fill(slots);
  }
  CacheView host() const {
    CacheView view = common();
    view.rows = const_cast<uint8_t*>(rows.data()), view.slots = const_cast<uint8_t*>(slots.data());
    view.key_pages = const_cast<uint8_t*>(keys.data());
    view.pages = pages.data(), view.slot_pages = slot_pages.data();
    if (n_slots > 0) view.buffers = buffers.data();
    return view;
  }
  CacheView device() const {
    CacheView view = common();
    view.rows = d_rows.data(), view.slots = d_slots.data(), view.key_pages = d_keys.data();
    view.pages = d_pages.data(), view.slot_pages = d_slot_pages.data();
    if (n_slots > 0) view.buffers = d_buffers.data();
    return view;
  }
  int64_t slot_row(int64_t seq, int64_t slot) const {
    return slot_pages[static_cast<size_t>(seq * max_pages + slot / kPageTokens)] * kPageTokens +
           slot % kPageTokens;
  }

 private:
  CacheView common() const {
    CacheView view;
    view.layout = layout, view.max_pages = max_pages, view.most_slots = n_slots;
    return view;
  }
  // [n_seqs, max_pages] n pages of each sequence, out of `of` shuffled ones.
  std::vector<int32_t> lines(int64_t of, int64_t n, uint64_t seed) const {
    std::vector<int32_t> shuffled(static_cast<size_t>(of)), table(static_cast<size_t>(n_seqs * max_pages));
    std::iota(shuffled.begin(), shuffled.end(), 0);
    Rng rng(seed);
    for (size_t i = shuffled.size(); i-- > 1;) std::swap(shuffled[i], shuffled[rng.next() % (i + 1)]);
    for (int64_t s = 0; s < n_seqs; ++s)
      std::copy_n(shuffled.begin() + s * n, n, table.begin() + s * max_pages);
    return table;
  }
  int32_t slots_of(int64_t seq) const { return seq == resident_seq ? 0 : static_cast<int32_t>(n_slots); }
  std::vector<TopkBuffer> fresh_buffers(int32_t* state) const {
    std::vector<TopkBuffer> made;
    for (int64_t s = 0; s < n_seqs; ++s) {
      made.push_back({slots_of(s), state + 2 * s * n_slots, state + (2 * s + 1) * n_slots});
      if (n_slots > 0) reset(made.back());
    }
    return made;
  }
  std::vector<TopkBuffer> device_buffers() const {
    std::vector<TopkBuffer> made;
    for (int64_t s = 0; s < n_seqs; ++s)
      made.push_back(
          {slots_of(s), d_states.data() + 2 * s * n_slots, d_states.data() + (2 * s + 1) * n_slots});
    return made;
  }
};

// n of the numbers below `of`, ascending.
inline std::vector<int32_t> sample(Rng& rng, int64_t n, int64_t of) {
  std::vector<int32_t> numbers(static_cast<size_t>(of));
  std::iota(numbers.begin(), numbers.end(), 0);
  for (size_t i = numbers.size(); i-- > 1;) std::swap(numbers[i], numbers[rng.next() % (i + 1)]);
  numbers.resize(static_cast<size_t>(n));
  std::ranges::sort(numbers);
  return numbers;
}

// The tables of a step: a line for each token, that of its sequence.
struct StepLines {
  std::vector<int32_t> pages, slot_pages;
  std::vector<TopkBuffer> buffers;
  DeviceArray<int32_t> d_pages, d_slot_pages;
  DeviceArray<TopkBuffer> d_buffers;

  StepLines(const TwinCache& cache, const std::vector<int64_t>& sequences)
      : pages(of_each(sequences, cache.pages, cache.max_pages)),
        slot_pages(of_each(sequences, cache.slot_pages, cache.max_pages)),
        buffers(of_each(sequences, cache.buffers, 1)),
        d_pages(pages),
        d_slot_pages(slot_pages),
        d_buffers(of_each(sequences, cache.d_buffers.values(), 1)) {}

  CacheView host(const TwinCache& cache) const {
    CacheView view = cache.host();
    view.pages = pages.data(), view.slot_pages = slot_pages.data(), view.buffers = buffers.data();
    return view;
  }
  CacheView device(const TwinCache& cache) const {
    CacheView view = cache.device();
    view.pages = d_pages.data(), view.slot_pages = d_slot_pages.data(), view.buffers = d_buffers.data();
    return view;
  }

 private:
  template <typename T>
  static std::vector<T> of_each(const std::vector<int64_t>& sequences, const std::vector<T>& lines,
                                int64_t width) {
    std::vector<T> table;
    for (const int64_t s : sequences)
      table.insert(table.end(), lines.begin() + s * width, lines.begin() + (s + 1) * width);
    return table;
  }
};

}  // namespace dsv32
