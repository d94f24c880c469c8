// The bits of the GPU's rows and keys beside those that were written down, as tests/test_row_digests.cpp has
// the CPU's. Prints the line for tests/golden/row_digests.txt.
#include <cstdio>

#include "engine/engine.h"
#include "tests/gpu/gpu_test.h"
#include "tests/support/row_digests.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(cuda_row_digests)

namespace {

const RowDigest& found_here() {
  static const RowDigest found = row_digest("cuda");
  return found;
}

boost::test_tools::assertion_result is_written_down(boost::unit_test::test_unit_id id) {
  if (boost::test_tools::assertion_result has_gpu = needs_gpu(id); !has_gpu) return has_gpu;
  std::printf("%s %s\n", found_here().numerics.c_str(), found_here().digest.c_str());
  boost::test_tools::assertion_result result(expected_row_digest(found_here().numerics).has_value());
  if (!result) result.message() << "no digest is written down for " << found_here().numerics;
  return result;
}

}  // namespace

BOOST_AUTO_TEST_CASE(rows_are_as_written_down, *boost::unit_test::precondition(is_written_down)) {
  BOOST_TEST(expected_row_digest(found_here().numerics).value() == found_here().digest,
             found_here().numerics << " gives " << found_here().digest << ": the epoch must rise");
}

BOOST_AUTO_TEST_SUITE_END()
