// The prefix store when it ends at once: by a signal at any call, by a signal at any time, by the power.
//
// Whatever happens, the next open finds each page absent or whole, all of those whose storing had been
// reported, no leftover, and the directory within its limit.
#include <boost/test/unit_test.hpp>
#include <csignal>
#include <fstream>
#include <random>
#include <thread>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "tests/support/child_process.h"
#include "tests/support/contains.h"
#include "tests/support/power_loss.h"
#include "tests/support/sanitized.h"
#include "tests/support/stored_pages.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(prefix_store_crash)

namespace {

// A few prompts that share beginnings, with evictions on the way when the limit is small.
const std::vector<std::vector<int32_t>>& some_prompts() {
  static const std::vector<std::vector<int32_t>> prompts = [] {
    std::vector<std::vector<int32_t>> made;
    for (const std::vector<int>& numbers : {std::vector{1, 2}, {1, 3, 4}, {5}, {1, 2, 6}})
      made.push_back(make_prompt(numbers));
    return made;
  }();
  return prompts;
}

void store_some(const StoreOptions& options, FileSystem& fs) {
  const auto store = open_store(options, fs, {});
  if (!store) return;
  for (const auto& prompt : some_prompts()) {
    store_prompt(*store, prompt);
    std::vector<PageHash> path;
    for (const PageName& name : names_of(prompt)) path.push_back(name.own);
    store->record_use(path);
  }
}

void check_after_crash(const StoreOptions& options, const char* when) {
  const auto found = load_all(options);
  BOOST_REQUIRE_MESSAGE(found, "refused after " << when);
  BOOST_TEST(found->n_wrong == 0, when);
  BOOST_TEST(found->n_missed == 0, when);
  BOOST_TEST(files_named(options.directory, "tmp-").empty(), when);
  BOOST_TEST(bytes_below(options.directory) <= *options.limits.max_bytes, when);
}

}  // namespace

// --- T2: killed at every call of the file system -------------------------------------------------

namespace {

constexpr int64_t kApart = kIsSanitized ? 3 : 1;  // calls; to fork takes long under the sanitizers

void kill_at_every_call(int n_rounds, bool is_tight) {
  const auto dir = make_store_dir();
  int64_t n_points = 0, n_killed = 0;
  for (int round = 0; round < n_rounds; ++round)
    for (int64_t point = round;; point += kApart) {
      StoreOptions options = store_options(dir->file(format("kill_%d_%ld", round, point)));
      // A round begins with a cache that holds something; where it is tight, storing evicts.
      if (round % 2) store_prompt(*open_store(options, real_file_system(), {}), make_prompt({8, 9}));
      options.limits.max_bytes = is_tight ? 40'000 : 10'000'000;
      const int end = wait_for(fork_child([&] {
        FaultFileSystem fs;
        fs.on_call = [&](int64_t n, FileOp) -> std::optional<int> {
          if (n == point) kill(getpid(), SIGKILL);
          return std::nullopt;
        };
        store_some(options, fs);
        return 0;
      }));
      const bool was_killed = end == kKilledBy + SIGKILL;
      BOOST_REQUIRE((was_killed || end == 0));
      check_after_crash(options, format("a kill at call %ld", point).c_str());
      ++n_points;
      n_killed += was_killed;
      std::filesystem::remove_all(options.directory);
      if (!was_killed) break;
      point += round % 3;  // later rounds skip some, and so end in other places
    }
  BOOST_TEST(n_killed > 100 / kApart);
  BOOST_TEST(n_points == n_killed + n_rounds);
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_kill_at_any_call_leaves_whole_pages) { kill_at_every_call(1, false); }
BOOST_AUTO_TEST_CASE(a_kill_at_any_call_while_evicting_leaves_whole_pages) { kill_at_every_call(2, true); }
BOOST_AUTO_TEST_CASE(a_kill_at_any_call_twenty_times_over,
                     *boost::unit_test::label("long") * boost::unit_test::disabled()) {
  kill_at_every_call(20, false);
  kill_at_every_call(20, true);
}

// --- T1: killed at any time ----------------------------------------------------------------------

namespace {

// What a child is about to find out: shared with the parent, which outlives it.
struct Shared {
  std::atomic<int64_t> n_stored, n_loaded, n_wrong;
};

int store_and_load_for_ever(const StoreOptions& options, unsigned seed, Shared& shared) {
  std::mt19937 random(seed);
  for (;;) {
    const auto store = open_store(options, real_file_system(), {});
    if (!store) continue;
    for (int i = 0; i < 8; ++i) {
      std::vector<int> numbers;
      for (unsigned n = 1 + random() % 4; n > 0; --n) numbers.push_back(static_cast<int>(random() % 3));
      shared.n_stored += store_prompt(*store, make_prompt(numbers));
    }
    const Contents contents = load_all(*store, options);
    shared.n_loaded += static_cast<int64_t>(contents.prompts.size());
    shared.n_wrong += contents.n_wrong;
  }
}

void kill_at_any_time(int n_kills) {
  const auto dir = make_store_dir();
  StoreOptions options = store_options(dir->file("cache"));
  options.limits.max_bytes = 150'000;
  void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  BOOST_REQUIRE(memory != MAP_FAILED);
  Shared& shared = *new (memory) Shared{};
  std::mt19937 random(1);
  for (int n_killed = 0; n_killed < n_kills;) {
    std::vector<pid_t> children;
    for (unsigned n = 1 + random() % 4; n > 0; --n)
      children.push_back(
          fork_child([&, seed = random()] { return store_and_load_for_ever(options, seed, shared); }));
    for (const pid_t child : children) {
      std::this_thread::sleep_for(std::chrono::microseconds(1000 + random() % 14'000));
      kill(child, SIGKILL);
      BOOST_REQUIRE(wait_for(child) == kKilledBy + SIGKILL);
      ++n_killed;
    }
    check_after_crash(options, format("kill %d", n_killed).c_str());
  }
  BOOST_TEST(shared.n_wrong == 0);
  BOOST_TEST(shared.n_stored > n_kills / 4);  // it was worth killing them
  BOOST_TEST(shared.n_loaded > n_kills / 4);
  munmap(memory, sizeof(Shared));
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_thousand_kills_at_any_time_leave_whole_pages) {
  kill_at_any_time(kIsSanitized ? 200 : 1000);
}
BOOST_AUTO_TEST_CASE(twenty_thousand_kills_at_any_time,
                     *boost::unit_test::label("long") * boost::unit_test::disabled()) {
  kill_at_any_time(20'000);
}

// --- T3: the power goes --------------------------------------------------------------------------

namespace {

using Picture = PowerLossFileSystem::Picture;

struct Losses {
  int64_t n_pictures = 0;
  int64_t n_wrong = 0;    // loaded, and not what was stored
  int64_t n_damaged = 0;  // given a page's name, and not whole
  int64_t n_lost = 0;     // reported as stored, and gone
  int64_t n_litter = 0;   // temporary files that stay
};

// Stores some prompts and paints `n_mixed` + 2 pictures before every call; each is opened as the next start
// would.
Losses lose_power_at_every_call(SyncKind broken, bool is_late, int n_mixed) {
  const auto dir = make_store_dir();
  const StoreOptions options = store_options(dir->file("cache"));
  StoreOptions painted = options;
  painted.directory = dir->file("picture");
  PowerLossFileSystem fs(options.directory);
  fs.broken = broken;
  fs.is_late = is_late;
  std::vector<std::vector<int32_t>> reported;
  std::mt19937 random(3);
  Losses losses;

  const auto see = [&](Picture picture) {
    fs.paint(painted.directory, picture, random);
    std::optional<Contents> found;
    const auto store = open_store(painted, real_file_system(), [&](const std::string& line) {
      losses.n_damaged += contains(line, "damaged");
    });
    if (store) found = load_all(*store, painted);
    ++losses.n_pictures;
    if (found) {
      losses.n_wrong += found->n_wrong;
      losses.n_damaged += found->n_missed;
      losses.n_litter += static_cast<int64_t>(files_named(painted.directory, "tmp-").size());
    }
    for (const auto& prompt : reported) losses.n_lost += !found || !found->has(prompt);
    std::filesystem::remove_all(painted.directory);
  };
  // On a thread of its own, as another process would: it must not read into the memory of who is writing.
  const auto look = [&](Picture picture) { std::thread(see, picture).join(); };
  bool is_open = false;
  fs.on_call = [&](int64_t, FileOp op) -> std::optional<int> {
    const bool is_quiet =
        op == FileOp::stat || op == FileOp::space || op == FileOp::list || op == FileOp::read;
    if (!is_open || is_quiet) return std::nullopt;  // which change nothing that a picture shows
    for (const Picture picture : {Picture::nothing_unsynced, Picture::everything_unsynced}) look(picture);
    for (int i = 0; i < n_mixed; ++i) look(Picture::mixed);
    return std::nullopt;
  };

  const auto store = open_store(options, fs, {});
  is_open = true;
  for (const auto& prompt : some_prompts()) {
    for (size_t end = 64; end <= prompt.size(); end += 64) {
      const auto begun = std::span(prompt).first(end);
      BOOST_REQUIRE(store_prompt(*store, begun) == static_cast<int64_t>(end) / 64);
      reported.emplace_back(begun.begin(), begun.end());
    }
  }
  is_open = false;
  return losses;
}

void check_power_loss(int n_mixed) {
  const Losses losses = lose_power_at_every_call(SyncKind::none, false, n_mixed);
  BOOST_TEST(losses.n_wrong == 0);
  BOOST_TEST(losses.n_damaged == 0);
  BOOST_TEST(losses.n_lost == 0);
  BOOST_TEST(losses.n_litter == 0);
  BOOST_TEST(losses.n_pictures > 50 * (n_mixed + 2));
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_power_cut_leaves_absent_or_whole_and_all_that_was_reported) {
  check_power_loss(kIsSanitized ? 1 : 4);
}
BOOST_AUTO_TEST_CASE(two_hundred_power_cuts_at_each_call,
                     *boost::unit_test::label("long") * boost::unit_test::disabled()) {
  check_power_loss(200);
}

// T4: the test above is worth what it sees. Each sync that is left out shows as loss or damage, and so does
// data that is synced only after its name; and even then no wrong byte is given out.
BOOST_AUTO_TEST_CASE(a_power_cut_shows_every_sync_that_is_missing_or_late) {
  struct Case {
    SyncKind kind;
    bool is_late;
  };
  for (const Case c : {Case{SyncKind::page_data, false}, Case{SyncKind::page_data, true},
                       Case{SyncKind::page_name, false}, Case{SyncKind::folder_name, false}}) {
    const Losses losses = lose_power_at_every_call(c.kind, c.is_late, 1);
    BOOST_TEST(losses.n_lost + losses.n_damaged > 0,
               "sync " << static_cast<int>(c.kind) << " late " << c.is_late);
    BOOST_TEST(losses.n_wrong == 0);
  }
}

BOOST_AUTO_TEST_SUITE_END()
