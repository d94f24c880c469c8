// Which pages leave the disk when there is no room.
#include <algorithm>
#include <boost/test/unit_test.hpp>

#include "tests/support/store_fixture.h"

using namespace dsv32;

BOOST_FIXTURE_TEST_SUITE(prefix_store_eviction, StoreFixture)

BOOST_AUTO_TEST_CASE(the_least_recently_used_leaf_goes_first) {
  const auto one = make_prompt({1}), two = make_prompt({2}), three = make_prompt({3}),
             four = make_prompt({4});
  const auto store = open();
  for (const auto& prompt : {one, two, three}) store_prompt(*store, prompt);
  for (const auto& prompt : {two, one, three}) store->record_use({&names_of(prompt)[0].own, 1});
  options.limits.max_bytes = bytes_below(options.directory) + page_bytes() / 2;
  store_prompt(*store, three);  // writes the uses
  const auto tight = open();
  BOOST_TEST(store_prompt(*tight, four) == 1);
  const Contents left = load_all(*tight, options);
  BOOST_TEST(left.prompts.size() == 3u);
  BOOST_TEST(!left.has(two));
  BOOST_TEST(left.has(four));
  BOOST_TEST(left.n_missed == 0);
}

BOOST_AUTO_TEST_CASE(a_parent_stays_while_it_has_children) {
  store_prompt(*open(), make_prompt({1, 2, 3, 4}));
  options.limits.max_bytes = bytes_below(options.directory) - page_bytes() / 2;
  const Contents left = *load_all(options);
  BOOST_TEST(left.prompts.size() == 3u);
  BOOST_TEST(left.has(make_prompt({1, 2, 3})));
}

BOOST_AUTO_TEST_CASE(the_parent_of_what_is_stored_stays) {
  store_prompt(*open(), make_prompt({1, 2}));
  options.limits.max_bytes = bytes_below(options.directory) + page_bytes() / 2;
  const auto store = open();
  // The one leaf there is is the parent: nothing can leave.
  BOOST_TEST(store_prompt(*store, make_prompt({1, 2, 3})) == 2);
  BOOST_TEST(warnings.size() == 1u);
  BOOST_TEST(store_prompt(*store, make_prompt({9})) == 1);
  BOOST_TEST(!load_all(*store, options).has(make_prompt({1, 2})));
  BOOST_TEST(load_all(*store, options).has(make_prompt({1})));
}

BOOST_AUTO_TEST_CASE(what_another_process_evicted_is_a_quiet_miss) {
  const auto prompt = make_prompt({1, 2});
  const auto reader = open();
  store_prompt(*reader, prompt);
  prune(0);
  BOOST_TEST(pages().empty());
  PageMemory memory({}, 1);
  BOOST_TEST(!reader->load(names_of(prompt)[0].own, std::span(prompt).first(64), memory.at(0)));
  memory.fill(prompt, 1);
  const NewPage child{names_of(prompt)[1], std::span(prompt).subspan(64), memory.at(0)};
  BOOST_TEST(reader->store({&child, 1}) == 0);  // a child of nothing
  BOOST_TEST(pages().empty());
  BOOST_TEST(store_prompt(*reader, prompt) == 2);
  BOOST_TEST(load_all(options)->has(prompt));
  BOOST_TEST(warnings.empty());
}

// Pages behind one that is gone cannot be reached: they leave first, and come back with their parent.
BOOST_AUTO_TEST_CASE(orphans_come_back_with_their_parent_and_leave_first) {
  const auto prompt = make_prompt({1, 2, 3});
  store_prompt(*open(), prompt);
  std::filesystem::remove(path_of(names_of(prompt)[0]));
  BOOST_TEST(load_all(options)->prompts.empty());
  BOOST_TEST(pages().size() == 2u);
  store_prompt(*open(), make_prompt({1}));
  BOOST_TEST(load_all(options)->has(prompt));

  // Used most recently, the orphans go nevertheless.
  store_prompt(*open(), make_prompt({7, 8}));
  std::filesystem::remove(path_of(names_of(prompt)[0]));
  open()->record_use(std::vector{names_of(prompt)[1].own, names_of(prompt)[2].own});
  options.limits.max_bytes = bytes_below(options.directory) - page_bytes() * 3 / 2;
  const auto left = load_all(options);
  BOOST_TEST(left->has(make_prompt({7, 8})));
  BOOST_TEST(pages().size() == 2u);
}

// Names that follow each other in a ring belong to no prompt.
BOOST_AUTO_TEST_CASE(rings_of_names_leave_first) {
  store_prompt(*open(), make_prompt({1}));
  const auto ring = [&](uint8_t parent, uint8_t own) { return path_of({PageHash{parent}, PageHash{own}}); };
  for (const auto& path : {ring(1, 2), ring(2, 3), ring(3, 1)})
    write_file(path, std::string(page_bytes(), 'x'));
  prune(2 * page_bytes());
  BOOST_TEST(load_all(options)->has(make_prompt({1})));
  BOOST_TEST(pages().size() == 2u);
  prune(0);
  BOOST_TEST(pages().empty());
}

// T17: one limit for all models, foreign files included; sampled after every store.
BOOST_AUTO_TEST_CASE(two_models_share_one_limit) {
  options.limits.max_bytes = 40 * page_bytes() + 150'000;
  StoreOptions other_options = options;
  other_options.format.fingerprint.fill(9);
  const auto one = open(), other = open_store(other_options, real_file_system(), {});
  std::filesystem::create_directory(options.directory + "/mine");
  write_file(options.directory + "/mine/notes", std::string(50'000, 'x'));
  uint64_t most = 0;
  for (int i = 0; i < 80; ++i) {
    BOOST_TEST(store_prompt(i % 2 ? *one : *other, make_prompt({i, i + 1})) == 2);
    most = std::max(most, bytes_below(options.directory));
  }
  BOOST_TEST(most <= *options.limits.max_bytes);
  BOOST_TEST(most > *options.limits.max_bytes / 2);
  BOOST_TEST(load_all(*one, options).n_missed == 0);
  BOOST_TEST(load_all(*other, other_options).prompts.size() > 5u);
  BOOST_TEST(std::filesystem::file_size(options.directory + "/mine/notes") == 50'000u);
}

BOOST_AUTO_TEST_CASE(the_floor_of_free_space_is_kept_and_odd_limits_only_stop_storing) {
  store_prompt(*open(), make_prompt({1, 2}));
  options.limits.min_free_bytes = uint64_t{1} << 60;
  const auto starved = open();
  BOOST_TEST(starved->n_pages() == 0);
  BOOST_TEST(store_prompt(*starved, make_prompt({1})) == 0);
  for (const uint64_t max_bytes : {uint64_t{0}, uint64_t{1}, page_bytes() - 1}) {
    options.limits = {.max_bytes = max_bytes, .min_free_bytes = 0};
    const auto store = open();
    BOOST_REQUIRE(store);
    BOOST_TEST(store_prompt(*store, make_prompt({1})) == 0);
  }
  const uint64_t room = make_room(open_files(), {}, 0);  // the defaults are finite
  BOOST_TEST(room > 0u);
  BOOST_TEST(room <= 256'000'000'000u);
}

// A long prompt under a limit for fewer pages: its first ones are kept.
BOOST_AUTO_TEST_CASE(of_a_prompt_that_is_too_long_the_beginning_is_stored) {
  options.limits.max_bytes = 5 * page_bytes();
  const auto store = open();
  const auto prompt = make_prompt({1, 2, 3, 4, 5, 6, 7, 8});
  const int64_t n_stored = store_prompt(*store, prompt, 8);
  BOOST_TEST(n_stored >= 3);
  BOOST_TEST(n_stored <= 5);
  BOOST_TEST(load_all(options)->has(std::span(prompt).first(static_cast<size_t>(n_stored) * 64)));
}

BOOST_AUTO_TEST_SUITE_END()
