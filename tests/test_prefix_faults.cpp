// Prefixes where memory or threads are lacking: every allocation and every thread of the prefix cache fails
// in its turn, alone and with all that follow. What is restored then is less, and never something else.
#include <boost/test/unit_test.hpp>
#include <functional>
#include <memory>
#include <new>
#include <vector>

#include "prefix/prefix_cache.h"
#include "tests/support/disk_options.h"
#include "tests/support/failing_allocations.h"
#include "tests/support/failing_threads.h"
#include "tests/support/tiny_file.h"
#include "tests/support/tiny_sequence.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(prefix_faults)

namespace {

constexpr int64_t kPages = 3;

// An engine that computes, a prefix on disk, and prefix caches that come and go over the engine's pool.
struct FaultsFixture {
  TinyFile file{least_shape()};
  std::unique_ptr<TinySequence> tiny;
  std::shared_ptr<LatentCache> pool;
  PrefixCacheOptions options;
  const std::vector<int32_t> known = random_tokens(kPages * kPageTokens, 1);
  std::vector<int32_t> wanted = known, longer = random_tokens((kPages + 2) * kPageTokens, 2);
  std::vector<uint8_t> expected;

  FaultsFixture() {
    EngineOptions engine_options;
    engine_options.context = 1024, engine_options.n_threads = 1, engine_options.max_seqs = 2;
    tiny = std::make_unique<TinySequence>(file.path, engine_options);
    pool = std::shared_ptr<LatentCache>(&tiny->engine->cache(), [](LatentCache*) {});
    options = *with_disk(engine_options, file.dir.file("cache")).cache;
    tiny->sequence->sync(known);
    expected = remembered(*tiny->engine, *tiny->sequence);
    const auto prefixes = open();
    prefixes->remember(tiny->sequence->cached(), known);
    prefixes->flush();
    prefixes->forget(tiny->sequence->cached());
    wanted.push_back(7);
    tiny->sequence->sync(longer);
  }
  std::unique_ptr<PrefixCache> open() {
    return std::make_unique<PrefixCache>(
        pool, [] { return std::optional(Hash256{7}); }, options);
  }

  // A life of a prefix cache; false when it could not begin. `n_held`: of `wanted`, in the sequence.
  bool live(CachedSequence& sequence, int64_t& n_held) {
    std::unique_ptr<PrefixCache> prefixes;
    try {
      prefixes = open();
    } catch (const std::bad_alloc&) {
      return false;
    }
    prefixes->prefetch(wanted);
    n_held = prefixes->restore(sequence, wanted, 0);
    prefixes->remember(tiny->sequence->cached(), longer);
    prefixes->flush();
    prefixes->forget(sequence);
    prefixes->forget(tiny->sequence->cached());
    return true;
  }

  std::vector<uint8_t> bytes_of(const CachedSequence& sequence, int64_t n_tokens) {
    std::vector<PoolPage> pages;
    for (int64_t i = 0; i * kPageTokens < n_tokens; ++i) pages.push_back(sequence.page(i));
    return bytes_of(pages);
  }
  std::vector<uint8_t> bytes_of(const std::vector<PoolPage>& pages) {
    std::vector<uint8_t> bytes;
    const CachePlan& plan = pool->plan();
    const std::vector<std::vector<uint8_t>> keys = pool->download_keys(pages);
    for (size_t i = 0; i < pages.size(); ++i) {
      for (int64_t layer = 0; layer < plan.n_layers; ++layer) {
        const uint8_t* rows = pool->page_rows(pages[i], layer);
        bytes.insert(bytes.end(), rows, rows + kPageTokens * plan.layout.row_bytes());
      }
      bytes.insert(bytes.end(), keys[i].begin(), keys[i].end());
    }
    return bytes;
  }

  // `Failing`: FailingAllocations or FailingThreads.
  template <typename Failing>
  int64_t n_that_can_fail(bool lasts) {
    tiny->sequence->sync(known);
    const std::vector<uint8_t> whole = bytes_of(tiny->sequence->cached(), kPages * kPageTokens);
    tiny->sequence->sync(longer);
    for (int64_t n = 0;; ++n) {
      const std::unique_ptr<CachedSequence> sequence = pool->open();
      int64_t n_held = 0;
      bool has_failed = false;
      {
        Failing failing(n, lasts);
        live(*sequence, n_held);
        has_failed = failing.stop();
      }
      BOOST_TEST_INFO("the one that fails: " << n);
      BOOST_TEST(n_held == sequence->n_tokens());
      const std::vector<uint8_t> held = bytes_of(*sequence, n_held);
      BOOST_TEST((held == std::vector<uint8_t>(whole.begin(), whole.begin() + std::ssize(held))));
      pool->close(*sequence);
      BOOST_TEST(n_free() == n_free_at_first_);
      if (!has_failed) BOOST_TEST(n_held == kPages * kPageTokens);
      if (!has_failed) return n;
    }
  }
  // Pages that nobody has.
  int64_t n_free() {
    std::vector<PoolPage> taken;
    while (const std::optional<PoolPage> page = pool->take_page()) taken.push_back(*page);
    for (const PoolPage& page : taken) pool->release(page);
    return std::ssize(taken);
  }
  int64_t n_free_at_first_ = 0;
};

}  // namespace

BOOST_AUTO_TEST_CASE(any_allocation_may_fail) {
  FaultsFixture fixture;
  fixture.n_free_at_first_ = fixture.n_free();
  for (const bool lasts : {false, true}) BOOST_TEST(fixture.n_that_can_fail<FailingAllocations>(lasts) > 20);
}

BOOST_AUTO_TEST_CASE(any_thread_may_not_be_had) {
  FaultsFixture fixture;
  fixture.n_free_at_first_ = fixture.n_free();
  for (const bool lasts : {false, true}) BOOST_TEST(fixture.n_that_can_fail<FailingThreads>(lasts) >= 1);
}

BOOST_AUTO_TEST_SUITE_END()
