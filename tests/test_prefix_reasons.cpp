// How long a prompt waits for the disk, and what is said when nothing came.
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

// Pages on disk, and runs that ask for three of them.
struct KnownFixture {
  TempDir dir;
  EngineOptions options = options_in(dir.file("cache"));
  KnownFixture() {
    fill(options.cache->directory);
    options.cache->prefetch = PrefetchPolicy::timeout;
    options.cache->write = WritePolicy::write_back;
  }
  int64_t n_held() const { return Opened(options).sequence->sync(leaving_at(3 * kPageTokens)); }
};

// A disk whose reads, from now on, take so long.
void slow_down(FaultFileSystem& disk, std::chrono::milliseconds read) {
  disk.on_call = [read](int64_t, FileOp op) -> std::optional<int> {
    if (op == FileOp::read) std::this_thread::sleep_for(read);
    return std::nullopt;
  };
}

}  // namespace

BOOST_FIXTURE_TEST_SUITE(prefix_reasons, KnownFixture)

// What this process's own prompts took decides how long the disk is waited for.
BOOST_AUTO_TEST_CASE(a_disk_slower_than_computing_is_not_waited_for) {
  FaultFileSystem disk;
  options.cache->files = &disk;
  Opened opened(options);
  slow_down(disk, std::chrono::milliseconds(1000));
  opened.engine->prefix_cache()->note_prefill(1000, 0.01);
  BOOST_TEST(opened.sequence->sync(leaving_at(3 * kPageTokens)) == 0);
  BOOST_TEST(std::string(opened.sequence->why_none_cached()) ==
             "the disk did not give its stored prefix in time");
}

BOOST_AUTO_TEST_CASE(who_waits_for_all_reads_from_a_slow_disk_too) {
  FaultFileSystem disk;
  options.cache->files = &disk;
  options.cache->prefetch = PrefetchPolicy::wait_complete;
  Opened opened(options);
  slow_down(disk, std::chrono::milliseconds(500));
  opened.engine->prefix_cache()->note_prefill(1000, 0.01);
  BOOST_TEST(opened.sequence->sync(leaving_at(3 * kPageTokens)) == 3 * kPageTokens);
}

// As when the process was stopped for a while.
BOOST_AUTO_TEST_CASE(one_slow_read_does_not_end_the_reading) {
  FaultFileSystem disk;
  options.cache->files = &disk;
  {
    Opened opened(options);
    slow_down(disk, std::chrono::milliseconds(1000));
    opened.engine->prefix_cache()->note_prefill(1000, 0.01);
    BOOST_TEST(opened.sequence->sync(leaving_at(3 * kPageTokens)) == 0);
  }
  slow_down(disk, std::chrono::milliseconds(0));
  BOOST_TEST(n_held() == 3 * kPageTokens);
}

BOOST_AUTO_TEST_CASE(it_is_said_why_nothing_came_from_the_cache) {
  const auto why = [](const EngineOptions& asked, const std::vector<int32_t>& tokens) {
    Opened opened(asked);
    BOOST_TEST(opened.sequence->sync(tokens) == 0);
    return std::string(opened.sequence->why_none_cached());
  };
  const EngineOptions known = options;
  BOOST_TEST(why(known, random_tokens(100, 77)) == "no prefix of it is known");
  options.cache->directory = dir.file("another");
  BOOST_TEST(why(options, base()) == "nothing is stored for this model with these settings");
  options = known;
  options.cache.reset();
  BOOST_TEST(why(options, base()) == "the prefix cache is off");
  options = known;
  options.cache->directory = "/dev/null/x";
  BOOST_TEST(why(options, base()) == "the folder of prefixes cannot be used");
  {
    FaultFileSystem disk;
    slow_down(disk, std::chrono::milliseconds(300));
    options = known;
    options.cache->files = &disk;
    options.cache->prefetch = PrefetchPolicy::best_effort;
    BOOST_TEST(why(options, base()) == "the disk did not give its stored prefix in time");
  }
  {
    FaultFileSystem disk;
    options = known;
    options.cache->files = &disk;
    Opened opened(options);
    disk.on_call = [](int64_t, FileOp op) { return op == FileOp::read ? std::optional(-EIO) : std::nullopt; };
    BOOST_TEST(opened.sequence->sync(base()) == 0);
    BOOST_TEST(std::string(opened.sequence->why_none_cached()) ==
               "its stored prefix is damaged or cannot be read");
  }
  Opened opened(known);
  opened.sequence->sync(leaving_at(3 * kPageTokens));
  BOOST_TEST(std::string(opened.sequence->why_none_cached()) == "");
}

BOOST_AUTO_TEST_SUITE_END()
