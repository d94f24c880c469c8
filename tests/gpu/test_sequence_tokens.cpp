// Decode steps with several tokens of a sequence: their rows are stored, and their selections resolved and
// fetched, as the top-k buffer's policy says, one token after the other. Compared with the CPU bit for bit.
#include "backend/cpu_backend.h"
#include "cuda/kernels.h"
#include "tests/gpu/gpu_test.h"
#include "tests/gpu/kept_tokens.h"
#include "tests/gpu/twin_cache.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(gpu_sequence_tokens, *boost::unit_test::precondition(needs_gpu))

namespace {

// A decode step with n_tokens[s] tokens of sequence s, the first at position first[s].
struct SequenceStep {
  std::vector<int64_t> sequences;  // of each token
  std::vector<int32_t> pos, tokens, seq;
  DeviceArray<int32_t> d_tokens, d_pos, d_seq;

  SequenceStep(const std::vector<int32_t>& first, const std::vector<int32_t>& n_tokens)
      : pos(positions(first, n_tokens, sequences)),
        tokens(pos.size()),
        seq(pos.size()),
        d_tokens(tokens),
        d_pos(pos),
        d_seq((std::iota(seq.begin(), seq.end(), 0), seq)) {}
  int64_t n() const { return std::ssize(pos); }
  int64_t max_pos() const { return *std::ranges::max_element(pos); }
  // Tokens [begin, end).
  StepTokens host(int64_t begin, int64_t end) const {
    return {end - begin,        n(),         max_pos(), tokens.data() + begin, pos.data() + begin,
            seq.data() + begin, Role::decode};
  }
  StepTokens device(int64_t begin, int64_t end) const {
    return {end - begin,          n(),         max_pos(), d_tokens.data() + begin, d_pos.data() + begin,
            d_seq.data() + begin, Role::decode};
  }

 private:
  static std::vector<int32_t> positions(const std::vector<int32_t>& first,
                                        const std::vector<int32_t>& n_tokens,
                                        std::vector<int64_t>& sequences) {
    std::vector<int32_t> pos;
    for (size_t s = 0; s < first.size(); ++s)
      for (int32_t i = 0; i < n_tokens[s]; ++i)
        pos.push_back(first[s] + i), sequences.push_back(static_cast<int64_t>(s));
    return pos;
  }
};

// The tokens' selections, and what becomes of them, here and there.
struct Selections {
  int64_t topk;
  std::vector<int32_t> selected, n_selected, misses, n_misses;
  std::vector<int64_t> row_ids;
  DeviceArray<int32_t> d_selected, d_n_selected, d_misses, d_n_misses;
  DeviceArray<int64_t> d_row_ids;

  Selections(int64_t most, const std::vector<std::vector<int32_t>>& of_tokens)
      : topk(most),
        selected(of_tokens.size() * static_cast<size_t>(topk)),
        n_selected(of_tokens.size()),
        misses(selected.size()),
        n_misses(of_tokens.size()),
        row_ids(selected.size()),
        d_selected((fill(of_tokens), selected)),
        d_n_selected(n_selected),
        d_misses(selected.size()),
        d_n_misses(of_tokens.size()),
        d_row_ids(selected.size()) {}
  Resolve host(const StepTokens& step, const CacheView& cache, int64_t first, int64_t* tally) {
    const int64_t at = first * topk;
    return {step,
            cache,
            selected.data() + at,
            n_selected.data() + first,
            topk,
            row_ids.data() + at,
            misses.data() + at,
            n_misses.data() + first,
            tally};
  }
  Resolve device(const StepTokens& step, const CacheView& cache, int64_t first, int64_t* tally) const {
    const int64_t at = first * topk;
    return {step,
            cache,
            d_selected.data() + at,
            d_n_selected.data() + first,
            topk,
            d_row_ids.data() + at,
            d_misses.data() + at,
            d_n_misses.data() + first,
            tally};
  }
  void check() const {
    BOOST_REQUIRE(d_n_misses.values() == n_misses);
    const std::vector<int64_t> gpu_row_ids = d_row_ids.values();
    const std::vector<int32_t> gpu_misses = d_misses.values();
    for (size_t t = 0; t < n_selected.size(); ++t) {
      const auto first = static_cast<int64_t>(t) * topk;
      BOOST_REQUIRE(std::equal(row_ids.begin() + first, row_ids.begin() + first + n_selected[t],
                               gpu_row_ids.begin() + first));
      BOOST_REQUIRE(std::equal(misses.begin() + first, misses.begin() + first + n_misses[t],
                               gpu_misses.begin() + first));
    }
  }

 private:
  void fill(const std::vector<std::vector<int32_t>>& of_tokens) {
    for (size_t t = 0; t < of_tokens.size(); ++t) {
      std::ranges::copy(of_tokens[t], selected.begin() + static_cast<int64_t>(t) * topk);
      n_selected[t] = static_cast<int32_t>(of_tokens[t].size());
    }
  }
};

FetchLatents fetch_of(const Resolve& op) {
  return {op.step, op.cache, op.selected, op.row_ids, op.misses, op.n_misses, op.topk};
}

int64_t below(int64_t n, Rng& rng) { return static_cast<int64_t>(rng.next() % static_cast<uint64_t>(n)); }

// Fills a buffer with distinct positions below `end`, many of them the newest, and empty slots, in any order:
// so new positions lie in it already, also where other claims take their slot.
void fill_at_random(const TopkBuffer& buffer, int32_t end, Rng& rng) {
  const auto n = static_cast<size_t>(buffer.n_slots);
  std::vector<int32_t> positions(static_cast<size_t>(end));
  std::iota(positions.rbegin(), positions.rend(), 0);
  for (size_t i = positions.size(); i-- > 1;)
    if (rng.next() % 2) std::swap(positions[i], positions[rng.next() % (i + 1)]);
  positions.resize(std::max(n, positions.size()), kEmptySlot);
  std::copy_n(positions.begin(), n, buffer.slot_pos);
  const int64_t one_of = 1 + below(8, rng);
  for (size_t s = 0; s < n; ++s)
    if (below(one_of, rng) == 0) buffer.slot_pos[s] = kEmptySlot;
  std::iota(buffer.order, buffer.order + n, 0);
  for (size_t i = n; i-- > 1;) std::swap(buffer.order[i], buffer.order[rng.next() % (i + 1)]);
}

// What a token at `pos` selects: nothing, the lowest positions, or any.
std::vector<int32_t> any_selection(Rng& rng, int32_t pos, int64_t topk) {
  const int64_t n_visible = pos + 1, n = std::min(n_visible, topk), kind = below(8, rng);
  if (kind == 0) return {};
  if (kind == 1) return sample(rng, n, n);
  return sample(rng, kind == 2 ? 1 + below(n, rng) : n, n_visible);
}

struct Case {
  int64_t topk;
  std::vector<int32_t> most_tokens;  // of each sequence
  KvType kv_type = KvType::fp8;
  int64_t resident = -1;
  int32_t first_pos = 0;
  int n_steps = has_argument("brief") ? 12 : 120;
};

// Steps with any number of tokens, of which any number stays. fetches: resolve() may fetch. is_cut: the step
// is resolved in two slices, which may divide a sequence.
void check_case(const Case& of, bool fetches, bool is_cut) {
  CpuBackend cpu(1);
  TestLaunch test;
  const int64_t n_seqs = std::ssize(of.most_tokens), most = std::ranges::max(of.most_tokens);
  TwinCache cache({of.kv_type, 512, 64, 128}, most * (of.topk + 1), of.resident, n_seqs);
  Rng rng(static_cast<uint64_t>(of.topk + most));
  cache.randomize(1);
  std::vector<int32_t> held(of.most_tokens.size());
  for (int32_t& n : held) n = of.first_pos + static_cast<int32_t>(below(20, rng));
  std::vector<int64_t> tally(2);
  const DeviceArray<int64_t> d_tally(tally);
  bool has_fetched = false;
  for (int at = 0; at < of.n_steps; ++at) {
    if (at % 3 == 0) {
      for (size_t s = 0; s < held.size(); ++s)
        if (cache.buffers[s].n_slots > 0) fill_at_random(cache.buffers[s], held[s] + 4, rng);
      cache.d_states.fill(cache.states);
    }
    std::vector<int32_t> n_tokens;
    for (const int32_t n : of.most_tokens) n_tokens.push_back(1 + static_cast<int32_t>(below(n, rng)));
    const SequenceStep step(held, n_tokens);
    const StepLines lines(cache, step.sequences);
    const CacheView host = lines.host(cache), device = lines.device(cache);
    const int64_t n = step.n();
    std::vector<std::vector<int32_t>> selections;
    for (int64_t t = 0; t < n; ++t)  // at times all nothing: then only the claims are recorded
      selections.push_back(at % 7 == 6 ? std::vector<int32_t>()
                                       : any_selection(rng, step.pos[static_cast<size_t>(t)], of.topk));
    Selections those(of.topk, selections);
    KeptTokens kept(cache.layout, n, static_cast<uint64_t>(at));
    cpu.store_tokens(kept.host(step.host(0, n), host, false));
    cuda::store_tokens(kept.device(step.device(0, n), device, false), test.launch());
    const int64_t cut = is_cut ? below(n + 1, rng) : n;
    for (const auto& [begin, end] : {std::pair(int64_t{0}, cut), std::pair(cut, n)}) {
      cpu.resolve(those.host(step.host(begin, end), host, begin, tally.data()));
      const Resolve ours = those.device(step.device(begin, end), device, begin, d_tally.data());
      has_fetched = cuda::resolve(ours, fetches, test.launch());
      if (!has_fetched) cuda::fetch_latents(fetch_of(ours), test.launch());
    }
    cpu.fetch_latents(fetch_of(those.host(step.host(0, n), host, 0, nullptr)));
    those.check();
    BOOST_REQUIRE(cache.d_states.values() == cache.states);
    BOOST_REQUIRE(cache.d_slots.values() == cache.slots);
    for (size_t s = 0; s < held.size(); ++s) held[s] += 1 + static_cast<int32_t>(below(n_tokens[s], rng));
  }
  BOOST_TEST(cache.d_rows.values() == cache.rows);
  BOOST_TEST(d_tally.values() == tally);
  BOOST_TEST(tally[1] > 0);
}

}  // namespace

// One sequence or several, of different numbers of tokens, of which one may be resident; so few that
// resolve() fetches, and more.
BOOST_AUTO_TEST_CASE(they_are_resolved_one_after_the_other) {
  for (const Case& of :
       {Case{7, {4}}, Case{64, {2}}, Case{64, {4}}, Case{1, {1, 2, 3, 4}}, Case{7, {3, 1, 4}, KvType::fp8, 1},
        Case{33, {2, 2}}, Case{64, {1, 4, 2, 1, 3, 4, 1}, KvType::fp8, 4}, Case{20, {1, 1, 2}, KvType::f32}})
    for (const bool fetches : {false, true}) check_case(of, fetches, false);
}

BOOST_AUTO_TEST_CASE(a_slice_may_end_within_a_sequence) {
  for (const Case& of : {Case{7, {4}}, Case{33, {1, 4, 3, 4, 2}}, Case{64, {3, 4, 4}, KvType::fp8, 1}})
    for (const bool fetches : {false, true}) check_case(of, fetches, true);
}

// More rows of 2304 bytes than eight blocks have on their way together, for one token after the other.
BOOST_AUTO_TEST_CASE(rows_of_a_token_come_in_several_rounds) {
  const Case of{400, {4}, KvType::f32, -1, 500, 20};
  for (const bool fetches : {false, true}) check_case(of, fetches, false);
}

// Buffers that fit shared memory and ones that do not, with scratch memory for all tokens or for a few: so
// that a launch ends within a sequence.
BOOST_AUTO_TEST_CASE(large_buffers_are_resolved_one_token_after_the_other) {
  constexpr int32_t kPositions = 60000;
  const std::vector<int32_t> n_tokens = {1, 4, 2, 3};
  CpuBackend cpu(1);
  for (const size_t n_scratch_bytes : {size_t{256} << 20, size_t{1} << 20})
    for (const int32_t n_slots : {8300, 20001}) {
      constexpr int64_t kTopk = 2048;
      TestLaunch test(n_scratch_bytes);
      const size_t n_seqs = n_tokens.size(), n_state = 2 * static_cast<size_t>(n_slots);
      std::vector<int32_t> state(n_seqs * n_state);
      DeviceArray<int32_t> d_state(state.size());
      const SequenceStep step(std::vector<int32_t>(n_seqs, kPositions), n_tokens);
      const int64_t n = step.n(), n_pages = pages_for(n_slots);
      std::vector<TopkBuffer> buffers, device_buffers;
      std::vector<int32_t> slot_pages;
      for (const int64_t s : step.sequences) {
        int32_t *its = state.data() + static_cast<size_t>(s) * n_state,
                *there = d_state.data() + static_cast<size_t>(s) * n_state;
        buffers.push_back({n_slots, its, its + n_slots});
        device_buffers.push_back({n_slots, there, there + n_slots});
        for (int64_t page = 0; page < n_pages; ++page)
          slot_pages.push_back(static_cast<int32_t>(s * n_pages + page));
      }
      const DeviceArray<TopkBuffer> d_buffers(device_buffers);
      const DeviceArray<int32_t> d_slot_pages(slot_pages);
      uint8_t has_slots = 0;  // no row is touched here
      CacheView host;
      host.slots = &has_slots, host.most_slots = n_slots, host.max_pages = n_pages;
      CacheView device = host;
      host.slot_pages = slot_pages.data(), host.buffers = buffers.data();
      device.slot_pages = d_slot_pages.data(), device.buffers = d_buffers.data();
      Rng rng(static_cast<uint64_t>(n_slots));
      for (size_t t = 0; t < buffers.size(); ++t)
        if (t == 0 || step.sequences[t] != step.sequences[t - 1])
          fill_at_random(buffers[t], kPositions + 4, rng);
      d_state.fill(state);
      std::vector<int64_t> tally(2);
      const DeviceArray<int64_t> d_tally(tally);
      for (int at = 0; at < 6; ++at) {
        std::vector<std::vector<int32_t>> selections;
        for (int64_t t = 0; t < n; ++t)  // from one part of the positions, so that tokens share many
          selections.push_back(sample(rng, at == 4 && t % 2 ? 0 : kTopk, 5000 + 2000 * at));
        Selections those(kTopk, selections);
        for (int64_t t = 0; t < n; ++t)  // as when rows are stored
          claim_newest(buffers[static_cast<size_t>(t)], step.pos[static_cast<size_t>(t)]);
        cpu.resolve(those.host(step.host(0, n), host, 0, tally.data()));
        cuda::resolve(those.device(step.device(0, n), device, 0, d_tally.data()), false, test.launch());
        those.check();
        BOOST_REQUIRE(d_state.values() == state);
      }
      BOOST_TEST(d_tally.values() == tally);
      BOOST_TEST(tally[1] > 0);
      BOOST_TEST(tally[1] < tally[0]);
    }
}

BOOST_AUTO_TEST_SUITE_END()
