// How long a start takes with a full cache: 20 480 pages, 62 GB of V3.2's.
#include <boost/test/unit_test.hpp>
#include <ctime>

#include "base/error.h"
#include "tests/support/plain_files.h"
#include "tests/support/sanitized.h"
#include "tests/support/store_fixture.h"

using namespace dsv32;

BOOST_FIXTURE_TEST_SUITE(prefix_store_start, StoreFixture)

// Names alone are read, so empty files do.
BOOST_AUTO_TEST_CASE(a_full_cache_is_known_at_once) {
  const TempDir disk;
  options.directory = disk.file("cache");
  store_prompt(*open(), make_prompt({0}));
  for (int i = 0; i < 10; ++i)
    for (const PageName& name : names_of(make_prompt({i + 1}, 2048))) write_file(path_of(name), "");
  double best = 1e9;
  for (int round = 0; round < 3; ++round) {
    const std::clock_t start = std::clock();  // of the CPU: neighbours of this core do not count
    const auto store = PageStore::open(options, options.format);
    BOOST_TEST(store->n_pages() == 20'481);
    best = std::min(best, static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
  }
  BOOST_TEST_MESSAGE(format("20 480 pages: %.3f s", best));
  BOOST_TEST(best < (kIsSanitized ? 2 : 0.2));
}

BOOST_AUTO_TEST_SUITE_END()
