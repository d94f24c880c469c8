// Whether it is worth asking the disk, by what was measured of it, and what is said when nothing came.
#include <atomic>
#include <boost/test/unit_test.hpp>
#include <cerrno>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/fault_file_system.h"
#include "tests/support/known_prompt.h"

using namespace dsv32;
using namespace dsv32::known_prompt;

namespace {

// Three pages on disk, what earlier runs measured, and runs that ask for them.
struct MeasuredFixture {
  TempDir dir;
  EngineOptions options = options_in(dir.file("cache"));
  explicit MeasuredFixture(const CacheSpeeds& speeds) {
    fill(options.cache->directory);
    options.cache->least_tokens.reset();
    options.cache->prefetch = PrefetchPolicy::timeout;
    options.cache->write = WritePolicy::write_back;
    store_of(options)->record_speeds(speeds);
  }
  int64_t n_held() const { return Opened(options).sequence->sync(leaving_at(3 * kPageTokens)); }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(prefix_reasons)

// What earlier runs measured decides, from the first prompt on.
BOOST_AUTO_TEST_CASE(a_disk_slower_than_computing_is_not_read) {
  BOOST_TEST(MeasuredFixture({1e3, 100}).n_held() == 0);
  BOOST_TEST(MeasuredFixture({1e12, 100}).n_held() == 3 * kPageTokens);
}

BOOST_AUTO_TEST_CASE(who_waits_for_all_reads_from_a_slow_disk_too) {
  MeasuredFixture slow({1e3, 100});
  slow.options.cache->prefetch = PrefetchPolicy::wait_complete;
  BOOST_TEST(slow.n_held() == 3 * kPageTokens);
}

// From run to run it is believed to be less slow.
BOOST_AUTO_TEST_CASE(a_disk_that_was_slow_is_tried_again) {
  const MeasuredFixture slow({1e3, 100});
  int n_runs = 0;
  while (n_runs < 30 && slow.n_held() == 0) ++n_runs;
  BOOST_TEST(n_runs > 2);
  BOOST_TEST(n_runs < 30);
  BOOST_TEST(slow.n_held() == 3 * kPageTokens);
}

// However often it is asked whether its pages are there: while another prompt is read that is at every turn.
BOOST_AUTO_TEST_CASE(a_prompt_that_waits_makes_the_disk_no_quicker) {
  const MeasuredFixture slow({1e3, 100});
  Opened opened(slow.options);
  const std::vector<int32_t> tokens = leaving_at(3 * kPageTokens);
  for (int i = 0; i < 30; ++i) BOOST_TEST(opened.sequence->is_ready(tokens));
  BOOST_TEST(opened.sequence->sync(tokens) == 0);
}

// As when the process was stopped for a while: what was read did not come in time, or came late.
BOOST_AUTO_TEST_CASE(one_slow_read_does_not_end_the_reading) {
  for (const PrefetchPolicy policy : {PrefetchPolicy::timeout, PrefetchPolicy::wait_complete})
    for (const double former : {0.0, 1e8}) {
      MeasuredFixture disk({former, 1000});
      std::atomic<bool> has_stalled = false;
      FaultFileSystem stalling;
      stalling.on_call = [&](int64_t, FileOp op) -> std::optional<int> {
        if (op == FileOp::read && !has_stalled.exchange(true))
          std::this_thread::sleep_for(std::chrono::seconds(1));
        return std::nullopt;
      };
      {
        EngineOptions stalled = disk.options;
        stalled.cache->files = &stalling;
        stalled.cache->prefetch = policy;
        Opened warm(stalled);
        has_stalled = false;  // of what is read at the start
        const bool comes = policy == PrefetchPolicy::wait_complete;
        BOOST_TEST(warm.sequence->sync(leaving_at(3 * kPageTokens)) == (comes ? 3 * kPageTokens : 0));
        BOOST_TEST(has_stalled);
      }
      BOOST_TEST(disk.n_held() == 3 * kPageTokens);
    }
}

BOOST_AUTO_TEST_CASE(it_is_said_why_nothing_came_from_the_cache) {
  const auto why = [](const EngineOptions& options, const std::vector<int32_t>& tokens) {
    Opened opened(options);
    BOOST_TEST(opened.sequence->sync(tokens) == 0);
    return std::string(opened.sequence->why_none_cached());
  };
  MeasuredFixture known({1e12, 100});
  BOOST_TEST(why(known.options, random_tokens(100, 77)) == "no prefix of it is known");
  EngineOptions options = known.options;
  options.cache->salt = "another";
  BOOST_TEST(why(options, base()) == "nothing is stored for this model with these settings");
  options = known.options;
  options.cache->least_tokens = 1000;
  BOOST_TEST(why(options, base()) == "its stored prefix is too short to be worth reading");
  options = known.options;
  options.cache.reset();
  BOOST_TEST(why(options, base()) == "the prefix cache is off");
  options = known.options;
  options.cache->directory = "/dev/null/x";
  BOOST_TEST(why(options, base()) == "the folder of prefixes cannot be used");
  BOOST_TEST(why(MeasuredFixture({1e3, 100}).options, base()) ==
             "reading from the disk seems slower than computing");
  {
    FaultFileSystem disk;
    disk.on_call = [](int64_t, FileOp op) {
      if (op == FileOp::read) std::this_thread::sleep_for(std::chrono::milliseconds(300));
      return std::optional<int>();
    };
    options = known.options;
    options.cache->files = &disk;
    options.cache->prefetch = PrefetchPolicy::best_effort;
    BOOST_TEST(why(options, base()) == "the disk did not give its stored prefix in time");
  }
  {
    FaultFileSystem disk;
    options = known.options;
    options.cache->files = &disk;
    Opened opened(options);
    disk.on_call = [](int64_t, FileOp op) { return op == FileOp::read ? std::optional(-EIO) : std::nullopt; };
    BOOST_TEST(opened.sequence->sync(base()) == 0);
    BOOST_TEST(std::string(opened.sequence->why_none_cached()) ==
               "its stored prefix is damaged or cannot be read");
  }
  Opened opened(known.options);
  opened.sequence->sync(leaving_at(3 * kPageTokens));
  BOOST_TEST(std::string(opened.sequence->why_none_cached()) == "");
}

BOOST_AUTO_TEST_CASE(speeds_are_kept_for_the_next_run) {
  const TempDir dir;
  EngineOptions options = options_in(dir.file("cache"));
  fill(options.cache->directory);
  BOOST_TEST(store_of(options)->speeds().prefill_tokens_per_second > 0);
  BOOST_TEST(store_of(options)->speeds().read_bytes_per_second == 0);
  Opened(options).sequence->sync(leaving_at(3 * kPageTokens));
  BOOST_TEST(store_of(options)->speeds().read_bytes_per_second > 0);
}

BOOST_AUTO_TEST_SUITE_END()
