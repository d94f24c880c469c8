// How long a prompt waits for the disk, and what is said when nothing came.
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/fault_file_system.h"
#include "tests/support/known_prompt.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(prefix_reasons)

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
};

// A run that computes fast, with a disk whose reads take so long once it is open.
struct SlowDisk {
  FaultFileSystem disk;
  std::chrono::milliseconds read{0};
  Opened opened;
  SlowDisk(EngineOptions options, std::chrono::milliseconds then) : opened(with(options)) {
    opened.engine->prefix_cache()->note_prefill(1000, 0.01);
    read = then;
  }
  int64_t n_held() { return opened.sequence->sync(leaving_at(3 * kPageTokens)); }
  std::string why_none() const { return opened.sequence->why_none_cached(); }

 private:
  const EngineOptions& with(EngineOptions& options) {
    options.cache->files = &disk;
    disk.on_call = [this](int64_t, FileOp op) -> std::optional<int> {
      if (op == FileOp::read) std::this_thread::sleep_for(read);
      return std::nullopt;
    };
    return options;
  }
};

}  // namespace

// What this process's own prompts took decides how long the disk is waited for; the next one gets all.
BOOST_FIXTURE_TEST_CASE(a_disk_slower_than_computing_is_not_waited_for, KnownFixture) {
  {
    SlowDisk slow(options, std::chrono::milliseconds(1000));
    BOOST_TEST(slow.n_held() == 0);
    BOOST_TEST(slow.why_none() == "the disk did not give its stored prefix in time");
  }
  BOOST_TEST(Opened(options).sequence->sync(leaving_at(3 * kPageTokens)) == 3 * kPageTokens);
}

BOOST_FIXTURE_TEST_CASE(who_waits_for_all_reads_from_a_slow_disk_too, KnownFixture) {
  options.cache->prefetch = PrefetchPolicy::wait_complete;
  BOOST_TEST(SlowDisk(options, std::chrono::milliseconds(500)).n_held() == 3 * kPageTokens);
}

BOOST_FIXTURE_TEST_CASE(it_is_said_why_nothing_came_from_the_cache, KnownFixture) {
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
  options = known;
  options.cache->prefetch = PrefetchPolicy::best_effort;
  SlowDisk slow(options, std::chrono::milliseconds(300));
  BOOST_TEST(slow.n_held() == 0);
  BOOST_TEST(slow.why_none() == "the disk did not give its stored prefix in time");
  Opened opened(known);
  opened.sequence->sync(leaving_at(3 * kPageTokens));
  BOOST_TEST(std::string(opened.sequence->why_none_cached()) == "");
}

BOOST_AUTO_TEST_SUITE_END()
