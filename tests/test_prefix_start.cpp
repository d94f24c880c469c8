// How long a start takes on a disk that is far away, with many segments on it: as long as a few reads.
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <thread>

#include "base/stopwatch.h"
#include "tests/support/fault_file_system.h"
#include "tests/support/known_prompt.h"
#include "tests/support/stored_pages.h"

using namespace dsv32;
using namespace dsv32::known_prompt;

namespace {

constexpr int kOthers = 49;

// base() and other prompts on disk, a segment each, and a disk whose reads take so long.
struct FarFixture {
  TempDir dir;
  EngineOptions options = options_in(dir.file("cache"));
  FaultFileSystem files;

  explicit FarFixture(std::chrono::milliseconds read) {
    fill(options.cache->directory);
    const std::unique_ptr<PrefixStore> store = store_of(options);
    const SegmentHead& sizes = store->sizes();
    for (int i = 0; i < kOthers; ++i)
      store_prompt(*store, make_prompt({i}), 1,
                   {sizes.n_layers, sizes.rows_page_bytes, sizes.keys_page_bytes});
    files.on_call = [read](int64_t, FileOp op) -> std::optional<int> {
      if (op == FileOp::read) std::this_thread::sleep_for(read);
      return std::nullopt;
    };
    options.cache->files = &files;
    options.cache->write = WritePolicy::write_back;
  }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(prefix_start)

BOOST_AUTO_TEST_CASE(a_start_takes_a_few_reads_however_many_segments_there_are) {
  for (const int ms : {100, 500}) {
    FarFixture far{std::chrono::milliseconds(ms)};
    const auto start = std::chrono::steady_clock::now();
    const GgufFile file(tiny_path());
    Engine engine(file, far.options);
    ByHand sequence(engine);
    BOOST_TEST(sequence.sync(leaving_at(3 * kPageTokens)) == 3 * kPageTokens);
    BOOST_TEST(seconds_since(start) < 0.5 * kOthers * ms / 1000);
    BOOST_TEST(engine.prefix_cache()->tree().n_disk_pages() == kOthers + kBase / kPageTokens);
  }
}

BOOST_AUTO_TEST_SUITE_END()
