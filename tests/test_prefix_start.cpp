// How long a start takes on a disk that is far away, with many pages on it: as long as a few reads.
#include <atomic>
#include <boost/test/unit_test.hpp>

#include "tests/support/fault_file_system.h"
#include "tests/support/known_prompt.h"
#include "tests/support/stored_pages.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(prefix_start)

using namespace dsv32::known_prompt;

// However many pages there are, no more are read than the prompt asks for.
BOOST_AUTO_TEST_CASE(a_start_reads_no_pages_but_the_prompts) {
  constexpr int kOthers = 49;
  const TempDir dir;
  EngineOptions options = options_in(dir.file("cache"));
  fill(options.cache->directory);
  for (int i = 0; i < kOthers; ++i) store_prompt(*store_of(options), make_prompt({i}));
  FaultFileSystem files;
  std::atomic<int> n_reads = 0;
  files.on_call = [&](int64_t, FileOp op) -> std::optional<int> {
    n_reads += op == FileOp::read;
    return std::nullopt;
  };
  options.cache->files = &files;
  options.cache->write = WritePolicy::write_back;
  const GgufFile file(tiny_path());
  Engine engine(file, options);
  n_reads = 0;  // the note of the model's hashes was read
  ByHand sequence(engine);
  BOOST_TEST(sequence.sync(leaving_at(3 * kPageTokens)) == 3 * kPageTokens);
  BOOST_TEST(n_reads == 3);
  BOOST_TEST(engine.prefix_cache()->store()->n_pages() == kOthers + kBase / kPageTokens);
}

BOOST_AUTO_TEST_SUITE_END()
