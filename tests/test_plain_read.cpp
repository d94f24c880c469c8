// cli/plain_read.h: every byte is read, once, whatever the length and the number of threads. A byte that is
// left out or read twice changes the sum, because no byte is zero.
#include <boost/test/unit_test.hpp>

#include <cstring>
#include <random>
#include <vector>

#include "tests/tools/lab/plain_read.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(plain_read_)

BOOST_AUTO_TEST_CASE(the_sum_is_that_of_all_words) {
  std::mt19937 random(5);
  for (const size_t n_bytes : {0, 1, 7, 8, 63, 64, 65, 2047, 2048, 4096, 6151, 50000, 262144, 262143}) {
    std::vector<uint8_t> bytes(n_bytes + 1);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(1 + random() % 255);
    uint64_t expected = 0;
    for (size_t i = 0; i < n_bytes; i += 8) {
      uint64_t word = 0;
      std::memcpy(&word, bytes.data() + i, std::min<size_t>(8, n_bytes - i));
      expected += word;
    }
    for (const int n_threads : {1, 2, 3}) {
      WorkerPool workers(n_threads);
      for (const ReadPattern pattern : {ReadPattern::in_order, ReadPattern::by_streams})
        BOOST_TEST(plain_read(bytes.data(), n_bytes, pattern, workers) == expected,
                   n_bytes << " bytes, " << n_threads);
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
