// How long a start takes with a full cache: 20 480 segments, as many as 1 TB of V3.2's would be.
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <ctime>

#include <fcntl.h>

#include "base/error.h"
#include "tests/support/store_fixture.h"

using namespace dsv32;

namespace {

// Long prompts of 128 segments of 16 pages each, written as the store would, without its turns and syncs.
void write_prompts(const PrefixStoreOptions& options, const SegmentHead& sizes, int n_prompts) {
  FileSystem& fs = real_file_system();
  std::string reason;
  const std::optional<CacheFiles> files = CacheFiles::open(options.directory, fs, reason);
  const OwnedFd folder = files->make_folder(options.sizes.fingerprint);
  PageMemory memory({}, kMaxSegmentPages);
  SegmentInfo info{sizes, {}};
  info.n_pages = kMaxSegmentPages;
  for (int prompt = 0; prompt < n_prompts; ++prompt) {
    info.parent = chain_root(options.sizes.fingerprint, options.salt);
    for (int i = 0; i < 128; ++i) {
      info.first_page = i * kMaxSegmentPages;
      info.tokens = make_prompt({prompt * 128 + i}, kMaxSegmentPages);
      info.chain = chain_next(info.parent, info.first_page, info.tokens);
      const OwnedFd fd(
          fs, fs.open_at(folder.get(), CacheFiles::segment_file(info.chain), O_RDWR | O_CREAT | O_EXCL));
      BOOST_REQUIRE(write_segment(fs, fd.get(), -1, info, memory.sources()) == 0);
      info.parent = info.chain;
    }
  }
}

}  // namespace

BOOST_FIXTURE_TEST_SUITE(prefix_store_start, StoreFixture)

BOOST_AUTO_TEST_CASE(a_full_cache_is_known_within_a_second,
                     *boost::unit_test::label("long") * boost::unit_test::disabled()) {
  write_prompts(options, open()->sizes(), 160);
  for (int round = 0; round < 3; ++round) {
    const auto start = std::chrono::steady_clock::now();
    const std::clock_t cpu_start = std::clock();
    const auto store = open();
    BOOST_TEST(store->segments().size() == 20'480u);
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    const double cpu_seconds = static_cast<double>(std::clock() - cpu_start) / CLOCKS_PER_SEC;
    BOOST_TEST_MESSAGE(format("20 480 segments: %.2f s, %.2f s of a core", taken.count(), cpu_seconds));
    BOOST_TEST(cpu_seconds < 1);  // whatever else the machine does
  }
}

BOOST_AUTO_TEST_SUITE_END()
