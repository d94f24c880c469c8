// Which segments leave the prefix store when there is no room, and what a user can do to it.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <fstream>

#include "prefix/cache_directory.h"
#include "tests/support/contains.h"
#include "tests/support/store_fixture.h"

using namespace dsv32;

BOOST_FIXTURE_TEST_SUITE(prefix_store_eviction, StoreFixture)

BOOST_AUTO_TEST_CASE(leaves_go_in_the_order_of_the_policy) {
  const auto one = make_prompt({1}), two = make_prompt({2}), three = make_prompt({3}),
             four = make_prompt({4});
  struct Case {
    const char* name;
    EvictionPolicy policy;
    std::vector<int32_t> victim;
  };
  // Used: two thrice, then one, then three twice.
  for (const Case& c : {Case{"fifo", EvictionPolicy::fifo, one}, Case{"lru", EvictionPolicy::lru, two},
                        Case{"lfu", EvictionPolicy::lfu, one}, Case{"slru", EvictionPolicy::slru, one}}) {
    options = store_options(dir->file(c.name));
    options.limits.policy = c.policy;
    const auto store = open();
    std::vector<Hash256> ids;
    for (const auto& prompt : {one, two, three}) {
      PageMemory memory({}, 1);
      memory.fill(prompt, 0);
      ids.push_back(*store->store({}, 0, prompt, memory.sources()));
    }
    for (const int i : {1, 1, 1, 0, 2, 2}) store->record_use({&ids[static_cast<size_t>(i)], 1});
    BOOST_TEST(store->segments().size() == 3u);
    options.limits.max_bytes = bytes_below(options.directory) + segment_bytes() / 2;
    const auto tight = open();
    store_prompt(*tight, four);
    const Contents left = load_all(*tight);
    BOOST_TEST(left.prompts.size() == 3u);
    BOOST_TEST(!left.has(c.victim), "the wrong one left under " << c.name);
    BOOST_TEST(left.has(four));
    BOOST_TEST(left.n_missed == 0);
  }
}

BOOST_AUTO_TEST_CASE(a_parent_stays_while_it_has_children) {
  const auto store = open();
  store_prompt(*store, make_prompt({1, 2, 3, 4}));
  const auto entry_bytes = segment_bytes();
  options.limits.max_bytes = bytes_below(options.directory) - entry_bytes / 2;
  const Contents left = load_all(*open());
  BOOST_TEST(left.prompts.size() == 3u);
  BOOST_TEST(left.has(make_prompt({1, 2, 3})));
}

BOOST_AUTO_TEST_CASE(the_parent_of_what_is_stored_stays) {
  store_prompt(*open(), make_prompt({1, 2}));
  options.limits.max_bytes = bytes_below(options.directory) + segment_bytes() / 2;
  const auto store = open();
  const auto segments = store->segments();
  PageMemory memory({}, 1);
  memory.fill(make_prompt({1, 2, 3}), 2);
  // The one leaf there is is the parent: nothing can leave.
  BOOST_TEST(!store->store(segments[1].chain, 2, make_prompt({3}), memory.sources()));
  BOOST_TEST(warnings.size() == 1u);
  BOOST_TEST(store_prompt(*store, make_prompt({9})) == 1);
  BOOST_TEST(!load_all(*store).has(make_prompt({1, 2})));
  BOOST_TEST(load_all(*store).has(make_prompt({1})));
}

BOOST_AUTO_TEST_CASE(what_another_process_evicted_is_a_quiet_miss) {
  const auto reader = open();
  store_prompt(*reader, make_prompt({1}));
  store_prompt(*reader, make_prompt({2}));
  store_prompt(*reader, make_prompt({3}));
  const auto segments = reader->segments();
  PageMemory memory({}, 1);
  BOOST_TEST(reader->load_pages({segments[0].chain, 0}, memory.targets()));
  const auto cache = open_directory();
  BOOST_TEST(prune(*cache, 0).n_bytes >= 2 * segment_bytes());
  BOOST_TEST(reader->load_pages({segments[0].chain, 0}, memory.targets()));  // its file is still open here
  BOOST_TEST(!reader->load_pages({segments[1].chain, 0}, memory.targets()));
  BOOST_TEST(!reader->store(segments[2].chain, 1, make_prompt({5}), memory.sources()));  // a child of nothing
  BOOST_TEST(segment_files().empty());
  BOOST_TEST(reader->segments().empty());
  BOOST_TEST(warnings.empty());
}

// Segments behind one that is gone cannot be reached: they leave first, and come back with their parent.
BOOST_AUTO_TEST_CASE(orphans_are_not_shown_come_back_with_their_parent_and_leave_first) {
  store_prompt(*open(), make_prompt({1, 2, 3}));
  const auto store = open();
  store->discard(store->segments()[0].chain);
  BOOST_TEST(load_all(*store).prompts.empty());
  BOOST_TEST(load_all(options)->prompts.empty());
  BOOST_TEST(segment_files().size() == 2u);
  store_prompt(*store, make_prompt({1}));
  BOOST_TEST(load_all(options)->has(make_prompt({1, 2, 3})));

  // Used most recently, of two the orphan goes nevertheless.
  const auto again = open();
  store_prompt(*again, make_prompt({7}));
  const std::vector<StoredSegment> all = again->segments();
  const auto leaf = std::ranges::find(all, 2, &StoredSegment::first_page);
  again->record_use({&leaf->chain, 1});
  again->discard(leaf->parent);
  BOOST_TEST(again->segments().size() == 2u);
  options.limits.max_bytes = bytes_below(options.directory) - segment_bytes() / 2;
  const auto left = load_all(options);
  BOOST_TEST(left->has(make_prompt({7})));
  BOOST_TEST(left->has(make_prompt({1})));
  BOOST_TEST(segment_files().size() == 2u);
}

// T17: one limit for all models, foreign files included; sampled after every store.
BOOST_AUTO_TEST_CASE(two_models_share_one_limit) {
  options.limits.max_bytes = 40 * segment_bytes() + 150'000;
  PrefixStoreOptions other_options = options;
  other_options.sizes.fingerprint.fill(9);
  const auto one = open();
  const auto other = PrefixStore::open(other_options, real_file_system(), {});
  std::filesystem::create_directory(options.directory + "/mine");
  write_file(options.directory + "/mine/notes", std::string(50'000, 'x'));
  uint64_t most = 0;
  for (int i = 0; i < 80; ++i) {
    BOOST_TEST(store_prompt(i % 2 ? *one : *other, make_prompt({i, i + 1})) == 2);
    most = std::max(most, bytes_below(options.directory));
  }
  BOOST_TEST(most <= *options.limits.max_bytes);
  BOOST_TEST(most > *options.limits.max_bytes / 2);
  BOOST_TEST(load_all(*one).n_missed == 0);
  BOOST_TEST(load_all(*other).prompts.size() > 5u);
  BOOST_TEST(std::filesystem::file_size(options.directory + "/mine/notes") == 50'000u);
}

BOOST_AUTO_TEST_CASE(the_floor_of_free_space_is_kept_and_odd_limits_only_stop_storing) {
  store_prompt(*open(), make_prompt({1, 2}));
  options.limits.min_free_bytes = uint64_t{1} << 60;
  const auto starved = open();
  BOOST_TEST(starved->segments().empty());
  BOOST_TEST(store_prompt(*starved, make_prompt({1})) == 0);
  for (const uint64_t max_bytes : {uint64_t{0}, uint64_t{1}, segment_bytes() - 1}) {
    options.limits = {.max_bytes = max_bytes, .min_free_bytes = 0, .policy = EvictionPolicy::lru};
    const auto store = open();
    BOOST_REQUIRE(store);
    BOOST_TEST(store_prompt(*store, make_prompt({1})) == 0);
  }
  options.limits = {};  // the defaults are finite
  const auto cache = open_directory();
  BOOST_TEST(cache->max_bytes() > 0u);
  BOOST_TEST(cache->max_bytes() <= 256'000'000'000u);
}

// --- maintenance ---------------------------------------------------------------------------------

BOOST_AUTO_TEST_CASE(models_are_listed_verified_and_pruned) {
  store_prompt(*open(), make_prompt({1, 2, 3}));
  options.sizes.fingerprint.fill(8);
  store_prompt(*open(), make_prompt({1}, 4), 4);
  const auto cache = open_directory();
  const auto models = list_models(*cache);
  BOOST_REQUIRE(models.size() == 2u);
  BOOST_TEST(models[0].n_segments == 3);
  BOOST_TEST(models[0].n_pages == 3);
  BOOST_TEST(models[0].n_bytes == 3 * segment_bytes());
  BOOST_TEST(models[1].n_pages == 4);
  BOOST_TEST(list_segments(*cache, "0808").size() == 1u);
  BOOST_TEST(list_segments(*cache, models[0].fingerprint).size() == 3u);
  BOOST_TEST(list_segments(*cache, "ff").empty());

  Verification result = verify(*cache, true);
  BOOST_TEST(result.n_segments == 4);
  BOOST_TEST(result.n_pages == 7);
  BOOST_TEST(result.damaged.empty());
  const auto path = segment_files().at(0);
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(8192 + 5);
  file.put('!');
  file.close();
  result = verify(*cache, true);
  BOOST_REQUIRE(result.damaged.size() == 1u);
  BOOST_TEST(result.damaged[0].name == path.filename().string());
  BOOST_TEST(contains(result.damaged[0].reason, "page 1"));
  BOOST_TEST(result.damaged[0].is_removed);
  BOOST_TEST(verify(*cache, true).n_segments == 3);
  const std::string note = options.directory + "/model-00112233445566778899aabbccddeeff";
  write_file(note, "what is known of a model");
  prune(*cache, segment_bytes());
  BOOST_TEST(std::filesystem::exists(note));
  const Pruned pruned = prune(*cache, 0);
  BOOST_TEST(pruned.n_bytes > 0u);
  BOOST_TEST(pruned.is_done);
  BOOST_TEST(list_models(*cache).empty());
  BOOST_TEST(segment_files().empty());
  BOOST_TEST(!std::filesystem::exists(note));
}

BOOST_AUTO_TEST_SUITE_END()
