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
  const auto prompt = make_prompt({1, 2, 3}, 4), branch = make_prompt({1, 4}, 4);
  {
    const auto store = open();
    BOOST_REQUIRE(store);
    BOOST_TEST(store->can_write());
    BOOST_TEST(store->n_pages() == 0);
    BOOST_TEST(store_prompt(*store, prompt, 5) == 12);
    BOOST_TEST(store_prompt(*store, branch, 8) == 8);
    BOOST_TEST(load_all(*store, options).has(prompt));
  }
  BOOST_TEST(open()->n_pages() == 16);
  const auto found = load_all(options);
  BOOST_REQUIRE(found);
  BOOST_TEST(found->prompts.size() == 16u);
  BOOST_TEST(found->has(prompt));
  BOOST_TEST(found->has(branch));
  BOOST_TEST(found->n_wrong + found->n_missed == 0);
  BOOST_TEST(warnings.empty());
}

BOOST_AUTO_TEST_CASE(names_say_which_pages_follow_which) {
  store_prompt(*open(), make_prompt({1, 2}));
  const std::vector<PageName> names = names_of(make_prompt({1, 2}));
  BOOST_TEST((names[0].parent == PageHash{}));
  BOOST_TEST((names[1].parent == names[0].own));
  for (const PageName& name : names) {
    BOOST_TEST(std::filesystem::exists(path_of(name)));
    BOOST_TEST((PageName::parse(name.file())->own == name.own));
    BOOST_TEST(!PageName::parse(name.file() + "0"));
    BOOST_TEST(!PageName::parse("A" + name.file().substr(1)));
    BOOST_TEST(!PageName::parse(name.file().substr(0, 64) + "g"));
  }
  BOOST_TEST(pages().size() == 2u);
}

BOOST_AUTO_TEST_CASE(pages_of_any_size_are_stored_and_read) {
  const TempDir disk;  // O_DIRECT is another thing where there is a disk
  for (const PageSizes sizes :
       {PageSizes{2, 256, 96}, PageSizes{3, 8192, 4096}, PageSizes{3, 4096, 1000}, PageSizes{1, 4097, 1},
        PageSizes{2, 4096, 0}, PageSizes{61, 512, 136}, PageSizes{61, 4096, 136}}) {
    options = store_options(
        disk.file(format("cache_%ld_%ld_%ld", sizes.n_layers, sizes.rows_page_bytes, sizes.keys_page_bytes)),
        sizes);
    const auto store = open();
    const auto prompt = make_prompt({5}, 4);
    BOOST_REQUIRE(store_prompt(*store, prompt, 4) == 4);
    BOOST_TEST(load_all(*store, options).has(prompt));
    PageMemory memory(sizes, 1);
    BOOST_TEST(!store->load(PageHash{99}, std::span(prompt).first(64), memory.at(0)));
    BOOST_TEST(std::filesystem::file_size(pages()[0]) == page_bytes());
    BOOST_TEST(page_bytes() % 4096 == 0u);
  }
  BOOST_TEST(warnings.empty());
}

// Hashes only find: a page is taken for the tokens that it was stored for and no others.
BOOST_AUTO_TEST_CASE(other_tokens_under_a_pages_name_are_a_miss) {
  store_prompt(*open(), make_prompt({1}));
  const auto store = open();
  PageMemory memory({}, 1);
  BOOST_TEST(!store->load(names_of(make_prompt({1}))[0].own, make_prompt({2}), memory.at(0)));
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
    BOOST_TEST(load_all(*store, options).has(prompt));
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
  BOOST_TEST(pages().size() == 2u);
  BOOST_TEST(load_all(*other, options).has(prompt));
}

BOOST_AUTO_TEST_CASE(another_fingerprint_sees_nothing) {
  const auto prompt = make_prompt({1, 2});
  store_prompt(*open(), prompt);
  const StoreOptions first = options;
  options.format.fingerprint[31] ^= 1;
  BOOST_TEST(load_all(options)->prompts.empty());
  store_prompt(*open(), make_prompt({3}));
  options = first;
  options.format.rows_page_bytes += 64;  // what a fingerprint must rule out is still not believed
  PageMemory memory({2, 320, 96}, 1);
  BOOST_TEST(!open()->load(names_of(prompt)[0].own, std::span(prompt).first(64), memory.at(0)));
  options = first;
  store_prompt(*open(), prompt);
  const auto found = load_all(first);
  BOOST_TEST(found->prompts.size() == 2u);
  BOOST_TEST(found->has(prompt));
}

BOOST_AUTO_TEST_CASE(what_continues_nothing_is_not_stored) {
  const auto prompt = make_prompt({1, 2});
  PageMemory memory({}, 1);
  const NewPage child{names_of(prompt)[1], std::span(prompt).subspan(64), memory.at(0)};
  BOOST_TEST(open()->store({&child, 1}) == 0);
  BOOST_TEST(pages().empty());
  BOOST_TEST(warnings.empty());
}

// --- use -----------------------------------------------------------------------------------------

// Parents are used last.
BOOST_AUTO_TEST_CASE(uses_are_the_files_times) {
  const auto prompt = make_prompt({1, 2, 3});
  store_prompt(*open(), prompt);
  const auto time_of = [&](size_t page) {
    return std::filesystem::last_write_time(path_of(names_of(prompt)[page]));
  };
  const auto year = std::chrono::hours(24 * 365);
  for (const auto& page : pages())
    std::filesystem::last_write_time(page, std::chrono::file_clock::now() - year);
  const auto before = time_of(2);
  const auto store = open();
  std::vector<PageHash> path;
  for (const PageName& name : names_of(prompt)) path.push_back(name.own);
  for (const size_t n_used : {2, 3}) {
    store->record_use(std::span(path).first(n_used));
    BOOST_TEST((time_of(0) > time_of(1) && time_of(1) > before));
    BOOST_TEST((time_of(2) > before) == (n_used == 3));
    if (n_used == 3) BOOST_TEST((time_of(1) > time_of(2)));
  }
}

// --- threads and amounts -------------------------------------------------------------------------

BOOST_AUTO_TEST_CASE(threads_load_while_one_stores) {
  const auto store = open();
  const auto prompt = make_prompt({1, 2, 3, 4, 5, 6, 7, 8});
  store_prompt(*store, prompt);
  const std::vector<PageName> names = names_of(prompt);
  std::atomic<int> n_wrong{0}, n_loaded{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      PageMemory expected({}, 1), loaded({}, 1);
      for (int i = 0; i < 200; ++i) {
        const size_t page = static_cast<size_t>(i * 7 + t) % names.size();
        expected.fill(prompt, static_cast<int64_t>(page));
        n_loaded += store->load(names[page].own, std::span(prompt).subspan(page * 64, 64), loaded.at(0));
        n_wrong += !(loaded == expected);
        store->record_use({&names[page].own, 1});
      }
    });
  for (int i = 20; i < 60; ++i) store_prompt(*store, make_prompt({1, i}));
  for (std::thread& thread : threads) thread.join();
  BOOST_TEST(n_loaded == 800);
  BOOST_TEST(n_wrong == 0);
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
  BOOST_TEST(store_prompt(*store, prompt, 16) == 32);
  const double ratio = static_cast<double>(bytes_written() - before) / (32.0 * 61 * (40960 + 8704));
  BOOST_TEST(ratio > 0.99);
  BOOST_TEST(ratio < 1.01);
  BOOST_TEST(load_all(*store, options).has(prompt));
}

BOOST_AUTO_TEST_SUITE_END()
