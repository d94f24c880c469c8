// The prefix store when nothing goes wrong: what is stored is found, by whom, and how much is written.
#include <boost/test/unit_test.hpp>
#include <fstream>
#include <thread>

#include <fcntl.h>

#include "base/error.h"
#include "tests/support/fault_file_system.h"
#include "tests/support/store_fixture.h"

using namespace dsv32;

BOOST_FIXTURE_TEST_SUITE(prefix_store, StoreFixture)

BOOST_AUTO_TEST_CASE(what_is_stored_is_found_by_the_next_process) {
  const auto prompt = make_prompt({1, 2, 3}, 4);
  {
    const auto store = open();
    BOOST_REQUIRE(store);
    BOOST_TEST(store->can_write());
    BOOST_TEST(store->segments().empty());
    BOOST_TEST(store_prompt(*store, prompt, 4) == 3);
    BOOST_TEST(load_all(*store).has(prompt));
  }
  const auto found = load_all(options);
  BOOST_REQUIRE(found);
  BOOST_TEST(found->prompts.size() == 3u);
  BOOST_TEST(found->has(prompt));
  BOOST_TEST(found->n_wrong + found->n_missed == 0);
  BOOST_TEST(warnings.empty());
}

BOOST_AUTO_TEST_CASE(segments_come_with_tokens_positions_and_parents_first) {
  const auto store = open();
  store_prompt(*store, make_prompt({1, 2, 3}), 1);
  store_prompt(*store, make_prompt({1, 4}), 1);
  std::map<Hash256, const StoredSegment*> seen;
  const auto segments = store->segments();
  BOOST_TEST(segments.size() == 4u);
  for (const StoredSegment& segment : segments) {
    BOOST_TEST(segment.n_pages == 1);
    if (segment.first_page > 0) BOOST_TEST(segment.first_page == seen.at(segment.parent)->first_page + 1);
    seen[segment.chain] = &segment;
  }
  for (const StoredSegment& again : store->segments()) BOOST_TEST(seen.contains(again.chain));
}

// Any range of pages, aligned memory or not, and sizes that fit O_DIRECT or not.
BOOST_AUTO_TEST_CASE(any_run_of_pages_is_read_in_place_or_through_a_copy) {
  const TempDir disk;  // O_DIRECT is another thing where there is a disk
  for (const PageSizes sizes :
       {PageSizes{2, 256, 96}, PageSizes{3, 8192, 4096}, PageSizes{3, 4096, 1000}, PageSizes{1, 4097, 1},
        PageSizes{2, 4096, 0}, PageSizes{61, 512, 136}, PageSizes{61, 4096, 136}}) {
    options = store_options(
        disk.file(format("cache_%ld_%ld_%ld", sizes.n_layers, sizes.rows_page_bytes, sizes.keys_page_bytes)),
        sizes);
    const auto store = open();
    const auto prompt = make_prompt({5}, 16);
    BOOST_REQUIRE(store_prompt(*store, prompt, 16, sizes) == 1);
    const Hash256 segment = store->segments()[0].chain;
    for (const bool is_aligned : {false, true})
      for (const auto& [first, n_pages] : {std::pair{0, 16}, {0, 1}, {15, 1}, {3, 7}}) {
        PageMemory expected(sizes, n_pages), loaded(sizes, n_pages, is_aligned);
        expected.fill(prompt, first);
        BOOST_TEST(store->load_pages({segment, first}, loaded.targets()));
        BOOST_TEST((loaded == expected));
      }
    PageMemory memory(sizes, 2);
    BOOST_TEST(!store->load_pages({Hash256{99}, 0}, memory.targets()));
    BOOST_TEST(store->read_stats().n_bytes == 2 * 25 * store->sizes().page_bytes());
    BOOST_TEST(store->read_stats().seconds > 0);
  }
  BOOST_TEST(warnings.empty());
}

// The way that file systems without O_DIRECT take, whether they refuse it at the opening or at the reading.
BOOST_AUTO_TEST_CASE(file_systems_without_direct_io_are_used_through_the_page_cache) {
  for (const bool is_refused_late : {false, true}) {
    options.directory = dir->file(is_refused_late ? "late" : "early");
    FaultFileSystem fs;
    if (!is_refused_late)
      fs.on_open = [](const std::string&, int flags) {
        return flags & O_DIRECT ? std::optional(-EINVAL) : std::nullopt;
      };
    bool is_direct = false;  // the file that was opened last
    if (is_refused_late) {
      fs.on_open = [&](const std::string&, int flags) {
        is_direct = flags & O_DIRECT;
        return std::nullopt;
      };
      fs.on_call = [&](int64_t, FileOp op) -> std::optional<int> {
        const bool is_transfer = op == FileOp::read || op == FileOp::write;
        return is_transfer && std::exchange(is_direct, false) ? std::optional(-EINVAL) : std::nullopt;
      };
    }
    const auto store = open(fs);
    const auto prompt = make_prompt({1, 2, 3});
    BOOST_TEST(store_prompt(*store, prompt) == 3);
    BOOST_TEST(load_all(*store).has(prompt));
  }
  BOOST_TEST(warnings.empty());
}

BOOST_AUTO_TEST_CASE(the_same_tokens_are_written_once) {
  FaultFileSystem fs;
  const auto one = open(), other = open(fs);
  const auto prompt = make_prompt({1, 2});
  BOOST_TEST(store_prompt(*one, prompt) == 2);
  BOOST_TEST(store_prompt(*other, prompt) == 2);  // which has not looked since
  BOOST_TEST(fs.n_bytes_written == 0u);
  BOOST_TEST(store_prompt(*one, prompt) == 2);
  BOOST_TEST(segment_files().size() == 2u);
  BOOST_TEST(load_all(*other).has(prompt));
}

BOOST_AUTO_TEST_CASE(another_fingerprint_or_salt_sees_nothing) {
  const auto prompt = make_prompt({1, 2});
  store_prompt(*open(), prompt);
  const PrefixStoreOptions first = options;
  options.salt = "of another user";
  BOOST_TEST(load_all(options)->prompts.empty());
  store_prompt(*open(), make_prompt({1}));
  options = first;
  options.sizes.fingerprint[31] ^= 1;  // in the second half, which the directory's name does not hold
  BOOST_TEST(load_all(options)->prompts.empty());
  store_prompt(*open(), make_prompt({3}));
  options = first;
  options.sizes.rows_page_bytes += 64;  // what a fingerprint must rule out is still not believed
  BOOST_TEST(load_all(options)->prompts.empty());
  BOOST_TEST(!open()->store({}, 0, std::span(prompt).first(64), PageMemory({2, 320, 96}, 1).sources()));
  const auto found = load_all(first);
  BOOST_TEST(found->prompts.size() == 2u);
  BOOST_TEST(found->has(prompt));
}

BOOST_AUTO_TEST_CASE(what_continues_nothing_and_what_has_no_size_is_not_stored) {
  const PageMemory memory({}, 1);
  BOOST_TEST(!open()->store(Hash256{12}, 1, make_prompt({1}), memory.sources()));  // no such parent
  BOOST_TEST(warnings.empty());
  options.sizes.n_layers = 0;
  BOOST_TEST(!open());
  BOOST_TEST(warnings.size() == 1u);
}

// --- use -----------------------------------------------------------------------------------------

BOOST_AUTO_TEST_CASE(speeds_are_kept_for_each_fingerprint) {
  const CacheSpeeds fast{3e9, 1200}, slow{5e8, 30};
  BOOST_TEST((open()->speeds() == CacheSpeeds{}));
  open()->record_speeds(fast);
  BOOST_TEST((open()->speeds() == fast));
  {
    const auto store = open();
    store->record_speeds(slow);
    BOOST_TEST((store->speeds() == slow));  // also before they are written
  }
  BOOST_TEST((open()->speeds() == slow));
  const auto speeds = files_named(options.directory, "speeds").at(0);
  const std::string whole = read_file(speeds);
  for (size_t i = 0; i < whole.size(); ++i) {  // a damaged file is no file
    std::string bytes = whole;
    bytes[i] ^= 1;
    write_file(speeds, bytes);
    BOOST_TEST((open()->speeds() == CacheSpeeds{}));
    write_file(speeds, whole.substr(0, i));
    BOOST_TEST((open()->speeds() == CacheSpeeds{}));
  }
  open()->record_speeds({-1, 1e300});
  BOOST_TEST((open()->speeds() == CacheSpeeds{}));
  options.sizes.fingerprint[0] ^= 1;
  BOOST_TEST((open()->speeds() == CacheSpeeds{}));
  BOOST_TEST(warnings.empty());
}

BOOST_AUTO_TEST_CASE(uses_are_counted_in_logical_time_across_processes) {
  uint64_t last = 0;
  for (int round = 1; round <= 5; ++round) {
    const auto store = open();
    store_prompt(*store, make_prompt({1}));
    std::vector<Hash256> ids = {store->segments()[0].chain};
    store->record_use(ids);
    store->record_use(ids);
    const UseRecord use = store->segments()[0].use;
    BOOST_TEST(use.n_hits == static_cast<uint64_t>(3 * round - 1));
    BOOST_TEST(use.last_use > last);
    BOOST_TEST(use.created <= use.last_use);
    last = use.last_use;
    store->record_use(ids);  // written when the store is closed
  }
}

// T12: a use is later than all that are known, whatever the clock says meanwhile.
BOOST_AUTO_TEST_CASE(clocks_that_jump_do_not_change_the_order_of_uses) {
  using std::filesystem::file_time_type;
  store_prompt(*open(), make_prompt({1}));
  const auto path = segment_files().at(0);
  const auto year = std::chrono::hours(24 * 365);
  const auto now = std::chrono::file_clock::now();
  for (const file_time_type time : {now + 70 * year, now - 70 * year, now + 280 * year, now}) {
    std::filesystem::last_write_time(path, time);
    const auto store = open();
    const UseRecord before = store->segments()[0].use;
    std::vector<Hash256> ids = {store->segments()[0].chain};
    store->record_use(ids);
    BOOST_TEST(store->segments()[0].use.last_use > before.last_use);
    BOOST_TEST(store->segments()[0].use.n_hits == before.n_hits + 1);
    store_prompt(*store, make_prompt({2}));
    const auto segments = store->segments();
    for (const StoredSegment& segment : segments)
      if (segment.tokens == make_prompt({2})) BOOST_TEST(segment.use.last_use > before.last_use);
    store->discard(segments[0].tokens == make_prompt({2}) ? segments[0].chain : segments[1].chain);
  }
}

// The count of uses shares its number with the time, and does not run over into it.
BOOST_AUTO_TEST_CASE(uses_are_counted_to_999) {
  const auto store = open();
  store_prompt(*store, make_prompt({1}));
  std::vector<Hash256> ids = {store->segments()[0].chain};
  for (int i = 0; i < 2100; ++i) store->record_use(ids);
  BOOST_TEST(store->segments()[0].use.n_hits == 999u);
  store->record_use(ids);
  BOOST_TEST(store->segments()[0].use.n_hits == 999u);
}

// --- threads and amounts -------------------------------------------------------------------------

BOOST_AUTO_TEST_CASE(threads_load_while_one_stores) {
  const auto store = open();
  const auto prompt = make_prompt({1, 2, 3, 4, 5, 6, 7, 8});
  store_prompt(*store, prompt);
  const auto segments = store->segments();
  std::atomic<int> n_wrong{0}, n_loaded{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      PageMemory expected({}, 1), loaded({}, 1);
      for (int i = 0; i < 200; ++i) {
        const StoredSegment& segment = segments[static_cast<size_t>(i * 7 + t) % segments.size()];
        expected.fill(prompt, segment.first_page);
        n_loaded += store->load_pages({segment.chain, 0}, loaded.targets());
        n_wrong += !(loaded == expected);
        store->record_use({&segment.chain, 1});
      }
    });
  for (int i = 20; i < 60; ++i) store_prompt(*store, make_prompt({1, i}));
  for (std::thread& thread : threads) thread.join();
  BOOST_TEST(n_loaded == 800);
  BOOST_TEST(n_wrong == 0);
  uint64_t n_hits = 0;
  for (const StoredSegment& segment : store->segments()) n_hits += segment.use.n_hits;
  BOOST_TEST(n_hits == 800u);
}

// T20: with the sizes of V3.2, what the process writes against what is cached.
BOOST_AUTO_TEST_CASE(little_more_is_written_than_is_cached) {
  const PageSizes sizes{61, 40960, 8704};
  const TempDir disk;
  options = store_options(disk.file("large"), sizes);
  const auto bytes_written = [] {
    std::ifstream io("/proc/self/io");
    std::string name;
    uint64_t n_bytes = 0;
    while (io >> name >> n_bytes)
      if (name == "wchar:") return n_bytes;
    return uint64_t{0};
  };
  const auto store = open();
  const auto prompt = make_prompt({1}, 32);
  const uint64_t before = bytes_written();
  BOOST_TEST(store_prompt(*store, prompt, 16, sizes) == 2);
  const double ratio = static_cast<double>(bytes_written() - before) / (32.0 * 61 * (40960 + 8704));
  BOOST_TEST(ratio > 0.99);
  BOOST_TEST(ratio < 1.01);
  BOOST_TEST(load_all(*store, sizes).has(prompt));
}

BOOST_AUTO_TEST_SUITE_END()
