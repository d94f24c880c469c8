// The prefix store when calls fail and room runs out: the run goes on, the cache may not.
#include <boost/test/unit_test.hpp>
#include <csignal>
#include <set>

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include "base/error.h"
#include "tests/support/child_process.h"
#include "tests/support/failing_allocations.h"
#include "tests/support/fault_file_system.h"
#include "tests/support/store_fixture.h"

using namespace dsv32;

BOOST_FIXTURE_TEST_SUITE(prefix_store_faults, DamageFixture)

namespace stdfs = std::filesystem;

// --- failing calls -------------------------------------------------------------------------------

namespace {

// T5. Each call fails in turn, once or from there on; the run ends well, and the next one finds nothing
// wrong.
void fail_every_call(DamageFixture& fixture, std::span<const int> errors, bool is_lasting, int64_t step) {
  for (const int error : errors)
    for (int64_t point = 0;; point += step) {
      fixture.restore();
      int64_t n_failed = 0;
      FaultFileSystem fs;
      fs.on_call = [&](int64_t n, FileOp op) -> std::optional<int> {
        const bool is_transfer = op == FileOp::read || op == FileOp::write;
        const bool is_hit = is_lasting ? n >= point && !(error == EINTR && is_transfer) : n == point;
        n_failed += is_hit;
        return is_hit ? std::optional(-error) : std::nullopt;
      };
      std::vector<int32_t> reported;
      if (const auto store = fixture.open(fs)) {
        BOOST_TEST(load_all(*store, fixture.options).n_wrong == 0);
        const auto prompt = make_prompt({1, 9, 10});
        const int64_t n_stored = store_prompt(*store, prompt);
        reported.assign(prompt.begin(), prompt.begin() + n_stored * 64);
        store->record_use({&names_of(prompt)[0].own, 1});
        BOOST_TEST(load_all(*store, fixture.options).n_wrong == 0);
      }
      const std::set<std::string> different(fixture.warnings.begin(), fixture.warnings.end());
      BOOST_TEST(different.size() == fixture.warnings.size(), "a warning is repeated");
      BOOST_TEST(fixture.warnings.size() <= 4u);
      const auto after = load_all(fixture.options);
      BOOST_REQUIRE(after);
      BOOST_TEST(after->n_wrong == 0);
      BOOST_TEST(after->n_missed == 0, "errno " << error << " at call " << point);
      // What was reported is there, unless a later fault was of the disk: then it may have been given up.
      const bool is_given_up = is_lasting || error == EIO || error == ENOENT;
      if (!is_given_up && !reported.empty())
        BOOST_TEST(after->has(reported), "errno " << error << " at " << point);
      BOOST_TEST(files_named(fixture.options.directory, "tmp-").empty());
      if (n_failed == 0) break;
    }
}

}  // namespace

BOOST_AUTO_TEST_CASE(any_call_may_fail_once) {
  fail_every_call(*this, std::vector{EIO, ENOSPC, EINTR, EACCES}, false, 1);
}
BOOST_AUTO_TEST_CASE(any_call_may_fail_from_some_moment_on) {
  fail_every_call(*this, std::vector{EIO, ENOSPC}, true, 3);
}
BOOST_AUTO_TEST_CASE(any_call_may_fail_in_any_way,
                     *boost::unit_test::label("long") * boost::unit_test::disabled()) {
  const std::vector<int> errors = {EIO,    ENOSPC, EDQUOT, EINTR,  EACCES, EPERM, EROFS, EMFILE,
                                   ENOMEM, EINVAL, ENOENT, EEXIST, ELOOP,  EFBIG, EBUSY, EOPNOTSUPP};
  fail_every_call(*this, errors, false, 1);
  fail_every_call(*this, errors, true, 1);
}

// What an unreachable server answers says nothing about a file: a miss, and all is there when it is back.
BOOST_AUTO_TEST_CASE(time_outs_and_stale_handles_are_misses_and_delete_nothing) {
  for (const int error : {ETIMEDOUT, ESTALE})
    for (int64_t point = 0;; ++point) {
      restore();
      int64_t n_failed = 0, n_unlinked = 0;
      FaultFileSystem fs;
      fs.on_call = [&](int64_t n, FileOp op) -> std::optional<int> {
        n_unlinked += op == FileOp::unlink;
        n_failed += n >= point;
        return n >= point ? std::optional(-error) : std::nullopt;
      };
      if (const auto store = open(fs)) BOOST_TEST(load_all(*store, options).n_wrong == 0);
      BOOST_TEST(n_unlinked == 0);
      BOOST_TEST(load_all(options)->has(prompt), "errno " << error << " from call " << point);
      if (n_failed == 0) break;
    }
}

// --- failing allocations -------------------------------------------------------------------------

namespace {

// All that a run asks of the store, with evictions.
void use_all(const StoreOptions& options, const std::vector<PageName>& names, std::span<const int32_t> prompt,
             PageMemory& memory) {
  const auto store = open_store(options, real_file_system(), [](const std::string&) {});
  if (!store) return;
  for (size_t i = 0; i < names.size(); ++i) {
    store->load(names[i].own, prompt.subspan(i * 64, 64), memory.at(0));
    store->record_use({&names[i].own, 1});
  }
  try {
    store_prompt(*store, prompt);
  } catch (const std::bad_alloc&) {  // of the test's own
  }
  store->discard(names.back().own);
}

}  // namespace

// For every n, until none fails: nothing is thrown, and the next run finds nothing wrong.
BOOST_AUTO_TEST_CASE(any_allocation_may_fail) {
  const auto another = make_prompt({1, 9, 10});
  const std::vector<PageName> names = names_of(another);
  PageMemory memory({}, 1);
  for (const bool lasts : {false, true}) {
    int64_t n = 0;
    for (bool has_failed = true; has_failed; n += lasts ? 7 : 1) {
      restore();
      options.limits.max_bytes = 4 * page_bytes();  // one more fits, then others leave
      FailingAllocations failing(n, lasts);
      bool is_thrown = false;
      try {
        use_all(options, names, another, memory);
      } catch (...) {
        is_thrown = true;
      }
      has_failed = failing.stop();
      BOOST_TEST(!is_thrown, "allocation " << n);
      const auto after = load_all(options);
      BOOST_REQUIRE(after);
      BOOST_TEST(after->n_wrong + after->n_missed == 0, "allocation " << n);
      BOOST_TEST(files_named(options.directory, "tmp-").empty(), "allocation " << n);
    }
    BOOST_TEST(n > 100);
  }
}

// An interrupted or short transfer is continued: nothing is lost by it.
BOOST_AUTO_TEST_CASE(interrupted_and_short_transfers_are_continued) {
  const auto another = make_prompt({11}, 8);
  for (const uint64_t most : {uint64_t{512}, uint64_t{1000}, uint64_t{4096}, uint64_t{5000}}) {
    options.directory = dir->file(format("short_%ld", static_cast<long>(most)));
    FaultFileSystem fs;
    fs.most_at_once = most;
    if (most % 4096 != 0)  // O_DIRECT transfers whole blocks
      fs.on_open = [](const std::string&, int flags) {
        return flags & O_DIRECT ? std::optional(-EINVAL) : std::nullopt;
      };
    bool is_second = false;
    fs.on_call = [&](int64_t, FileOp op) -> std::optional<int> {
      const bool is_transfer = op == FileOp::read || op == FileOp::write;
      return is_transfer && (is_second = !is_second) ? std::optional(-EINTR) : std::nullopt;
    };
    const auto store = open(fs);
    BOOST_TEST(store_prompt(*store, another, 8) == 8);
    BOOST_TEST(load_all(*store, options).has(another));
    BOOST_TEST(load_all(options)->has(another));
  }
  BOOST_TEST(warnings.empty());
}

// A sync that fails once has lost its bytes: the page must go, and must not be synced again.
BOOST_AUTO_TEST_CASE(a_failed_sync_is_not_tried_again) {
  for (const FileOp op : {FileOp::sync_data, FileOp::sync_directory}) {
    restore();
    FaultFileSystem fs;
    int n_syncs = 0;
    fs.on_call = [&](int64_t, FileOp made) -> std::optional<int> {
      return made == op && ++n_syncs == 1 ? std::optional(-EIO) : std::nullopt;
    };
    const auto store = open(fs);
    BOOST_TEST(store_prompt(*store, make_prompt({12})) == 0);
    BOOST_TEST(n_syncs == 1);
    BOOST_TEST(pages().size() == 3u);
    BOOST_TEST(store_prompt(*store, make_prompt({12})) == 1);  // anew, in another file
    BOOST_TEST(warnings.size() == 1u);
  }
}

// Whichever of them fails: the pages ahead of it are there, and nothing of those behind it.
BOOST_AUTO_TEST_CASE(of_pages_stored_together_those_ahead_of_a_failure_stay) {
  const auto another = make_prompt({13}, 8);
  for (const FileOp op : {FileOp::reserve, FileOp::write, FileOp::sync_data, FileOp::rename}) {
    restore();
    FaultFileSystem fs;
    std::atomic<int> n = 0;
    fs.on_call = [&](int64_t, FileOp made) {
      return made == op && ++n == 5 ? std::optional(-EIO) : std::nullopt;
    };
    const auto store = open(fs);
    const auto n_stored = static_cast<size_t>(store_prompt(*store, another, 8));
    BOOST_TEST(n_stored < 8u);
    BOOST_TEST(pages().size() == 3 + n_stored);
    BOOST_TEST(files_named(options.directory, "tmp-").empty());
    BOOST_TEST(load_all(options)->prompts.size() == 3 + n_stored);
    BOOST_TEST(store_prompt(*store, another, 8) == 8);
    BOOST_TEST(load_all(options)->has(another));
    BOOST_TEST(warnings.size() == 1u);
  }
}

// After three failures of the disk this process stores no more; it still reads.
BOOST_AUTO_TEST_CASE(a_disk_that_keeps_failing_ends_the_storing) {
  FaultFileSystem fs;
  int n_reserved = 0;
  fs.on_call = [&](int64_t, FileOp op) -> std::optional<int> {
    if (op != FileOp::reserve) return std::nullopt;
    ++n_reserved;
    return -ENOSPC;
  };
  const auto store = open(fs);
  for (int i = 0; i < 10; ++i) BOOST_TEST(store_prompt(*store, make_prompt({i + 20})) == 0);
  BOOST_TEST(n_reserved == 3);
  BOOST_TEST(!store->can_write());
  BOOST_TEST(load_all(*store, options).has(prompt));
  BOOST_TEST(warnings.size() == 1u);
}

// --- limits of the process and of the disk -------------------------------------------------------

namespace {

// Runs `body` in a child under a limit; its exit code.
template <typename Body>
int run_limited(int resource, rlim_t limit, const Body& body) {
  return wait_for(fork_child([&] {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limits = {limit, limit};
    setrlimit(static_cast<__rlimit_resource>(resource), &limits);
    return body();
  }));
}

}  // namespace

BOOST_AUTO_TEST_CASE(too_few_descriptors_or_small_files_only_cost_the_cache) {
  const auto use = [&] {
    const auto store = open_store(options, real_file_system(), {});
    if (!store) return 0;
    const Contents found = load_all(*store, options);
    store_prompt(*store, make_prompt({1, 2, 30}));
    return found.n_wrong == 0 ? 0 : 1;
  };
  for (rlim_t n_files = 3; n_files < 20; ++n_files) {
    BOOST_TEST(run_limited(RLIMIT_NOFILE, n_files, use) == 0, n_files);
    const auto found = load_all(options);
    BOOST_TEST(found->has(prompt), n_files);
    BOOST_TEST(found->n_missed == 0);
  }
  for (const rlim_t n_bytes : {0, 1000, 4096, 10'000, 20'000, 40'000}) {
    restore();
    BOOST_TEST(run_limited(RLIMIT_FSIZE, n_bytes, use) == 0, n_bytes);
    BOOST_TEST(load_all(options)->has(prompt));
  }
}

// T8: a disk that is really full.
namespace {

struct SmallDisk {
  TempDir dir;
  bool is_mounted = false;
  SmallDisk() { is_mounted = ::mount("tmpfs", dir.file("").c_str(), "tmpfs", 0, "size=2m,mode=0700") == 0; }
  ~SmallDisk() {
    if (is_mounted) ::umount2(dir.file("").c_str(), MNT_DETACH);
  }
};

boost::test_tools::assertion_result can_mount(boost::unit_test::test_unit_id) {
  boost::test_tools::assertion_result result(SmallDisk().is_mounted);
  result.message() << "no disk can be mounted here";
  return result;
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_full_disk_only_stops_the_storing, *boost::unit_test::precondition(can_mount)) {
  const SmallDisk disk;
  options.directory = disk.dir.file("cache");
  for (int fill = 0; fill < 50; ++fill) {
    warnings.clear();
    // Other files take all but some blocks, more of them each time.
    const std::string other = disk.dir.file("other");
    stdfs::remove(other);
    const int64_t left = static_cast<int64_t>(stdfs::space(disk.dir.file("")).available) - fill * 4096;
    if (left > 0) write_file(other, std::string(static_cast<size_t>(left), 'x'));
    const auto store = open();
    if (!store) continue;
    for (int i = 0; i < 4; ++i) store_prompt(*store, make_prompt({fill, i, i + 1}));
    const Contents found = load_all(*store, options);
    BOOST_TEST(found.n_wrong + found.n_missed == 0);
    BOOST_TEST(warnings.size() <= 3u);
    BOOST_TEST(files_named(options.directory, "tmp-").empty());
  }
  stdfs::remove(disk.dir.file("other"));
  prune(0);
  BOOST_TEST(bytes_below(options.directory) < 50'000u);
  BOOST_TEST(store_prompt(*open(), prompt) == 3);
}

BOOST_AUTO_TEST_SUITE_END()
