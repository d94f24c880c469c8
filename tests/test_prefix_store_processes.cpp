// The prefix store between processes: one copy of everything, and nobody waits for one who stopped.
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <csignal>
#include <random>
#include <thread>

#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "tests/support/child_process.h"
#include "tests/support/fault_file_system.h"
#include "tests/support/store_fixture.h"

using namespace dsv32;

BOOST_FIXTURE_TEST_SUITE(prefix_store_processes, StoreFixture)

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

// Every file is a page that is whole.
void check_whole(const StoreFixture& fixture) {
  const CacheFiles files = fixture.open_files();
  for (const StoredPage& page : content_of(files).pages) {
    const OwnedFd folder = files.open_folder(page.folder);
    BOOST_TEST((verify_page(files.fs(), folder.get(), page.folder, page.name) == PageFault::none));
  }
  BOOST_TEST(files_named(fixture.options.directory, "tmp-").empty());
}

}  // namespace

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
        const auto store = open_store(options, real_file_system(), {});
        if (!store) return 3;
        if (store_prompt(*store, prompt, 5) != 12) return 4;
        const Contents found = load_all(*store, options);
        return found.has(prompt) && found.n_wrong + found.n_missed == 0 ? 0 : 5;
      }));
    ::close(start[0]), ::close(start[1]);
    for (const pid_t child : children) BOOST_TEST(wait_for(child) == 0);
    BOOST_TEST(load_all(options)->has(prompt));
    BOOST_TEST(pages().size() == 12u);
    check_whole(*this);
  }
}

namespace {

// Each child does what a busy user does, at random; some empty the cache or lose a page. The longest call
// counts.
int work_at_random(const StoreOptions& options, unsigned seed, double seconds) {
  std::mt19937 random(seed);
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  double longest = 0;
  int64_t n_wrong = 0, n_loaded = 0;
  while (Clock::now() < end) {
    std::unique_ptr<PageStore> store;
    longest = std::max(longest, seconds_of([&] { store = open_store(options, real_file_system(), {}); }));
    if (!store) continue;
    for (int i = 0; i < 10; ++i) {
      std::vector<int> numbers;
      for (unsigned n = 1 + random() % 4; n > 0; --n) numbers.push_back(static_cast<int>(random() % 4));
      longest = std::max(longest, seconds_of([&] { store_prompt(*store, make_prompt(numbers)); }) / 4);
      if (random() % 4 == 0) {
        const Contents found = load_all(*store, options);
        n_wrong += found.n_wrong;
        n_loaded += static_cast<int64_t>(found.prompts.size());
      }
      std::string reason;
      if (seed % 4 == 1 && random() % 8 == 0)
        if (const auto files = CacheFiles::open(options.directory, real_file_system(), reason))
          make_room(*files, {.max_bytes = random() % 100'000, .min_free_bytes = 0}, 0);
      if (seed % 4 == 2 && random() % 16 == 0)
        if (const auto pages = page_files(options.directory); !pages.empty()) {
          std::error_code ignored;
          std::filesystem::remove(pages[random() % pages.size()], ignored);
        }
    }
  }
  if (n_wrong > 0) return 3;
  if (n_loaded == 0) return 4;
  return longest > 2.5 ? 5 : 0;
}

void work_together(StoreFixture& fixture, double seconds) {
  for (const unsigned n_processes : {2u, 4u, 8u}) {
    fixture.options.directory = fixture.dir->file("work_" + std::to_string(n_processes));
    fixture.options.limits.max_bytes = 250'000;
    std::vector<pid_t> children;
    for (unsigned i = 0; i < n_processes; ++i)
      children.push_back(fork_child([&] { return work_at_random(fixture.options, i, seconds); }));
    for (const pid_t child : children) BOOST_TEST(wait_for(child) == 0);
    const auto found = load_all(fixture.options);
    BOOST_TEST(found->n_wrong + found->n_missed == 0);
    check_whole(fixture);
  }
}

}  // namespace

BOOST_AUTO_TEST_CASE(processes_that_store_evict_and_lose_pages_agree) { work_together(*this, 1.5); }
BOOST_AUTO_TEST_CASE(processes_agree_for_minutes,
                     *boost::unit_test::label("long") * boost::unit_test::disabled()) {
  work_together(*this, 120);
}

// --- T11 -----------------------------------------------------------------------------------------

namespace {

// Stores one page and stops at the first call of this kind.
int store_and_stop_at(const StoreOptions& options, FileOp op) {
  FaultFileSystem fs;
  bool is_armed = false;
  fs.on_call = [&](int64_t, FileOp made) -> std::optional<int> {
    if (made == op && std::exchange(is_armed, false)) raise(SIGSTOP);
    return std::nullopt;
  };
  const auto store = open_store(options, fs, {});
  if (!store) return 3;
  is_armed = true;
  return store_prompt(*store, make_prompt({77})) == 1 && !is_armed ? 0 : 4;
}

}  // namespace

// Wherever it stops: others do not wait for it, and what it writes is not swept, however long it takes.
BOOST_AUTO_TEST_CASE(a_stopped_process_holds_nobody_up) {
  for (const FileOp op : {FileOp::reserve, FileOp::write, FileOp::rename, FileOp::sync_directory}) {
    options.directory = dir->file(format("stopped_%d", static_cast<int>(op)));
    store_prompt(*open(), make_prompt({1, 2}));
    const pid_t holder = fork_child([&] { return store_and_stop_at(options, op); });
    wait_until_stopped(holder);
    BOOST_TEST(seconds_of([&] { BOOST_TEST(store_prompt(*open(), make_prompt({1, 2, 3, 4})) == 4); }) < 2);
    BOOST_TEST(load_all(options)->has(make_prompt({1, 2, 3, 4})));
    kill(holder, SIGCONT);
    BOOST_TEST(wait_for(holder) == 0);
    BOOST_TEST(load_all(options)->has(make_prompt({77})));
    BOOST_TEST(load_all(options)->has(make_prompt({1, 2, 3, 4})));
  }
  BOOST_TEST(warnings.empty());
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

// T17 between processes: sampled all the while, the directory exceeds the limit by no more than what is being
// written. The processes are stopped meanwhile, or a sample would count what left and what came for it.
BOOST_AUTO_TEST_CASE(processes_together_keep_the_limit) {
  constexpr unsigned kProcesses = 3, kPages = 2;  // that a process stores at a time
  options.limits.max_bytes = 400'000;
  std::vector<pid_t> children;
  for (unsigned i = 0; i < kProcesses; ++i)
    children.push_back(fork_child([&, i] {
      StoreOptions own = options;
      own.format.fingerprint.fill(static_cast<uint8_t>(i));
      const auto store = open_store(own, real_file_system(), {});
      if (!store) return 3;
      for (int n = 0; n < 120; ++n) store_prompt(*store, make_prompt({n, n + 1}), kPages);
      return 0;
    }));
  uint64_t most = 0;
  while (!children.empty()) {
    for (const pid_t child : children) kill(child, SIGSTOP);
    std::erase_if(children, [](pid_t child) {
      int status = 0;
      waitpid(child, &status, WUNTRACED);
      if (WIFSTOPPED(status)) return false;
      BOOST_TEST(status == 0);
      return true;
    });
    most = std::max(most, bytes_below(options.directory));
    for (const pid_t child : children) kill(child, SIGCONT);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  BOOST_TEST(most <= *options.limits.max_bytes + kProcesses * kPages * page_bytes());
  BOOST_TEST(most > *options.limits.max_bytes / 2);
  BOOST_TEST(bytes_below(options.directory) <=
             *options.limits.max_bytes + kProcesses * kPages * page_bytes());
  open();
  BOOST_TEST(bytes_below(options.directory) <= *options.limits.max_bytes);
  BOOST_TEST(load_all(options)->n_missed == 0);
}

BOOST_AUTO_TEST_SUITE_END()
