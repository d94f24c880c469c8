// The prefix store between processes: one copy of everything, no deadlock, and nobody waits long for one who
// stopped.
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <csignal>
#include <fstream>
#include <random>
#include <set>
#include <thread>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include "prefix/cache_directory.h"
#include "tests/support/child_process.h"
#include "tests/support/fault_file_system.h"
#include "tests/support/store_fixture.h"

using namespace dsv32;

namespace {

using Clock = std::chrono::steady_clock;

double seconds_of(const std::function<void()>& body) {
  const auto begin = Clock::now();
  body();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

void wait_until_stopped(pid_t pid) {
  int status = 0;
  BOOST_REQUIRE(waitpid(pid, &status, WUNTRACED) == pid);
  BOOST_REQUIRE(WIFSTOPPED(status));
}

// Every file is a segment that is whole, no two of the same tokens.
void check_one_copy(const StoreFixture& fixture) {
  const auto cache = fixture.open_directory();
  BOOST_REQUIRE(cache);
  std::set<Hash256> chains;
  size_t n_entries = 0;
  for (const CachedModel& model : list_models(*cache))
    for (const StoredSegment& one : list_segments(*cache, model.fingerprint))
      chains.insert(one.chain), ++n_entries;
  BOOST_TEST(chains.size() == n_entries);
  BOOST_TEST(fixture.segment_files().size() == n_entries);
  BOOST_TEST(files_named(fixture.options.directory, "tmp-").empty());
}

}  // namespace

BOOST_FIXTURE_TEST_SUITE(prefix_store_processes, StoreFixture)

// --- T10 -----------------------------------------------------------------------------------------

BOOST_AUTO_TEST_CASE(processes_that_store_the_same_prompt_at_once_leave_one_copy) {
  const auto prompt = make_prompt({1, 2, 3, 4, 5, 6}, 2);
  for (const int n_processes : {2, 4, 8}) {
    options.directory = dir->file("same_" + std::to_string(n_processes));
    int start[2];
    BOOST_REQUIRE(pipe(start) == 0);
    std::vector<pid_t> children;
    for (int i = 0; i < n_processes; ++i)
      children.push_back(fork_child([&] {
        char byte = 0;
        ::close(start[1]);
        [[maybe_unused]] const ssize_t n = read(start[0], &byte, 1);  // until all are there
        const auto store = PrefixStore::open(options, real_file_system(), {});
        if (!store) return 3;
        if (store_prompt(*store, prompt, 2) != 6) return 4;
        const Contents found = load_all(*store);
        return found.has(prompt) && found.n_wrong + found.n_missed == 0 ? 0 : 5;
      }));
    ::close(start[0]), ::close(start[1]);
    for (const pid_t child : children) BOOST_TEST(wait_for(child) == 0);
    BOOST_TEST(load_all(options)->has(prompt));
    BOOST_TEST(files_named(options.directory, "seg-").size() == 6u);
    check_one_copy(*this);
  }
}

namespace {

// Each child does what a busy user does, at random; some empty the cache or lose a segment. The longest call
// counts.
int work_at_random(const PrefixStoreOptions& options, unsigned seed, double seconds) {
  std::mt19937 random(seed);
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  double longest = 0;
  int64_t n_wrong = 0, n_loaded = 0;
  while (Clock::now() < end) {
    std::unique_ptr<PrefixStore> store;
    longest =
        std::max(longest, seconds_of([&] { store = PrefixStore::open(options, real_file_system(), {}); }));
    if (!store) continue;
    for (int i = 0; i < 10; ++i) {
      std::vector<int> numbers;
      for (unsigned n = 1 + random() % 4; n > 0; --n) numbers.push_back(static_cast<int>(random() % 4));
      longest = std::max(longest, seconds_of([&] { store_prompt(*store, make_prompt(numbers)); }) / 4);
      if (random() % 4 == 0) {
        const Contents found = load_all(*store);
        n_wrong += found.n_wrong;
        n_loaded += static_cast<int64_t>(found.prompts.size());
      }
      if (seed % 4 == 1 && random() % 8 == 0)
        if (const auto cache =
                CacheDirectory::open(options.directory, options.limits, real_file_system(), {}))
          prune(*cache, random() % 500'000);
      if (seed % 4 == 2 && random() % 16 == 0)
        if (const auto segments = files_named(options.directory, "seg-"); !segments.empty())
          std::filesystem::remove(segments[random() % segments.size()]);
    }
  }
  if (n_wrong > 0) return 3;
  if (n_loaded == 0) return 4;
  return longest > 2.5 ? 5 : 0;
}

void work_together(StoreFixture& fixture, double seconds) {
  for (const unsigned n_processes : {2u, 4u, 8u}) {
    fixture.options.directory = fixture.dir->file("work_" + std::to_string(n_processes));
    fixture.options.limits.max_bytes = 900'000;
    std::vector<pid_t> children;
    for (unsigned i = 0; i < n_processes; ++i)
      children.push_back(fork_child([&] { return work_at_random(fixture.options, i, seconds); }));
    for (const pid_t child : children) BOOST_TEST(wait_for(child) == 0);
    const auto found = load_all(fixture.options);
    BOOST_TEST(found->n_wrong + found->n_missed == 0);
    check_one_copy(fixture);
  }
}

}  // namespace

BOOST_AUTO_TEST_CASE(processes_that_store_evict_and_lose_segments_agree) { work_together(*this, 1.5); }
BOOST_AUTO_TEST_CASE(processes_agree_for_minutes,
                     *boost::unit_test::label("long") * boost::unit_test::disabled()) {
  work_together(*this, 120);
}

// --- T11 -----------------------------------------------------------------------------------------

namespace {

// Others go on within 2 s while somebody holds what they need, at once after the first wait, and as before
// when it is given back. `hold` runs in a child and stops itself.
void check_stopped_holder(StoreFixture& fixture, const std::function<int()>& hold, bool is_blocking) {
  constexpr double kMost = 2.3;
  fixture.warnings.clear();
  auto store = fixture.open();
  BOOST_REQUIRE(store);
  const auto prompt = make_prompt({1, 2});
  BOOST_REQUIRE(store_prompt(*store, prompt) == 2);
  const pid_t holder = fork_child(hold);
  wait_until_stopped(holder);

  int64_t n_stored = 0;
  BOOST_TEST(seconds_of([&] { n_stored = store_prompt(*store, make_prompt({1, 2, 3, 4})); }) < kMost);
  BOOST_TEST(n_stored == (is_blocking ? 0 : 4));
  BOOST_TEST(seconds_of([&] { store_prompt(*store, make_prompt({5})); }) < (is_blocking ? 0.3 : kMost));
  std::unique_ptr<PrefixStore> other;
  BOOST_TEST(seconds_of([&] { other = fixture.open(); }) < kMost);
  BOOST_REQUIRE(other);
  BOOST_TEST(load_all(*other).has(prompt));                        // reading needs nobody's leave
  BOOST_TEST(fixture.warnings.size() == (is_blocking ? 2u : 0u));  // one of each store

  kill(holder, SIGCONT);
  BOOST_TEST(wait_for(holder) == 0);
  BOOST_TEST(store_prompt(*store, make_prompt({1, 2, 3, 4})) == 4);
  store.reset();
  other.reset();
  const auto found = load_all(fixture.options);
  BOOST_TEST(found->has(make_prompt({1, 2, 3, 4})));
  BOOST_TEST(found->n_wrong + found->n_missed == 0);
}

// Stores one segment and stops at the first call of this kind.
int store_and_stop_at(const PrefixStoreOptions& options, FileOp op) {
  FaultFileSystem fs;
  bool is_armed = false;
  fs.on_call = [&](int64_t, FileOp made) -> std::optional<int> {
    if (made == op && std::exchange(is_armed, false)) raise(SIGSTOP);
    return std::nullopt;
  };
  const auto store = PrefixStore::open(options, fs, {});
  if (!store) return 3;
  is_armed = true;
  return store_prompt(*store, make_prompt({77})) == 1 && !is_armed ? 0 : 4;
}

void check_stopped_holders(StoreFixture& fixture) {
  check_stopped_holder(
      fixture,
      [&] {
        const int lock = ::open((fixture.options.directory + "/LOCK").c_str(), O_RDWR);
        flock(lock, LOCK_EX);
        raise(SIGSTOP);
        return 0;
      },
      true);
  // In the middle of its turn.
  check_stopped_holder(
      fixture, [&] { return store_and_stop_at(fixture.options, FileOp::rename); }, true);
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_stopped_process_holds_nobody_up_for_long) { check_stopped_holders(*this); }
BOOST_AUTO_TEST_CASE(stopped_processes_hold_nobody_up_for_long,
                     *boost::unit_test::label("long") * boost::unit_test::disabled()) {
  for (int i = 0; i < 20; ++i) {
    options.directory = dir->file("again_" + std::to_string(i));
    check_stopped_holders(*this);
  }
}

// Who writes bytes holds no lock that others need; and what it writes is not swept, however long it takes.
BOOST_AUTO_TEST_CASE(a_process_stopped_while_it_writes_bytes_holds_nobody_up) {
  check_stopped_holder(
      *this, [&] { return store_and_stop_at(options, FileOp::write); }, false);
  BOOST_TEST(load_all(options)->has(make_prompt({77})));
}

// What dies while it writes leaves a file that the next open removes.
BOOST_AUTO_TEST_CASE(what_a_killed_writer_leaves_is_swept) {
  const pid_t writer = fork_child([&] { return store_and_stop_at(options, FileOp::sync_data); });
  wait_until_stopped(writer);
  BOOST_TEST(load_all(options)->prompts.empty());
  BOOST_TEST(files_named(options.directory, "tmp-").size() == 1u);
  kill(writer, SIGKILL);
  BOOST_TEST(wait_for(writer) == kKilledBy + SIGKILL);
  BOOST_TEST(files_named(options.directory, "tmp-").size() == 1u);
  BOOST_TEST(load_all(options)->prompts.empty());
  BOOST_TEST(files_named(options.directory, "tmp-").empty());
}

// T17 between processes: sampled all the while, the directory never holds more than the limit. A sample is
// taken in a turn, or it would count what left and what came for it.
BOOST_AUTO_TEST_CASE(processes_together_keep_the_limit) {
  options.limits.max_bytes = 1'000'000;
  std::vector<pid_t> children;
  for (unsigned i = 0; i < 3; ++i)
    children.push_back(fork_child([&, i] {
      PrefixStoreOptions own = options;
      own.sizes.fingerprint.fill(static_cast<uint8_t>(i));
      const auto store = PrefixStore::open(own, real_file_system(), {});
      if (!store) return 3;
      for (int n = 0; n < 120; ++n) store_prompt(*store, make_prompt({n, n + 1}));
      return 0;
    }));
  uint64_t most = 0;
  for (size_t n_done = 0; n_done < children.size();) {
    const int lock = ::open((options.directory + "/LOCK").c_str(), O_RDWR);
    if (lock >= 0 && flock(lock, LOCK_EX) == 0) most = std::max(most, bytes_below(options.directory));
    if (lock >= 0) ::close(lock);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    int status = 0;
    for (pid_t& child : children)
      if (child > 0 && waitpid(child, &status, WNOHANG) == child) {
        BOOST_TEST(status == 0);
        child = 0, ++n_done;
      }
  }
  BOOST_TEST(most <= *options.limits.max_bytes);
  BOOST_TEST(most > *options.limits.max_bytes / 2);
  BOOST_TEST(load_all(options)->n_missed == 0);
}

BOOST_AUTO_TEST_SUITE_END()
