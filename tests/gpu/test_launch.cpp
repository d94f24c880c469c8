// What every launcher gets: scratch memory, and what the card may use.
#include "base/error.h"
#include "tests/gpu/gpu_test.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(gpu_launch)

// Memory whose size is no multiple of the alignment ends within it. Needs no GPU: nothing is touched.
BOOST_AUTO_TEST_CASE(scratch_memory_ends_where_it_ends) {
  alignas(256) uint8_t memory[1000];
  cuda::Workspace workspace(memory, sizeof memory);
  BOOST_TEST(workspace.n_bytes_left() == 1000);
  BOOST_TEST(workspace.take<uint8_t>(1) == memory);
  BOOST_TEST(workspace.n_bytes_left() == 1000 - 256);
  BOOST_CHECK_THROW(workspace.take<uint8_t>(1000 - 255), Error);
  BOOST_TEST(workspace.take<uint8_t>(1000 - 256) == memory + 256);
  BOOST_TEST(workspace.n_bytes_left() == 0);
  BOOST_CHECK_THROW(workspace.take<uint8_t>(1), Error);
  BOOST_CHECK_THROW(workspace.take<uint8_t>(-1), Error);
  workspace.reset();
  BOOST_TEST(workspace.n_bytes_left() == 1000);
  BOOST_TEST(static_cast<void*>(workspace.take<double>(125)) == memory);
  BOOST_TEST(cuda::Workspace(nullptr, 0).n_bytes_left() == 0);
}

BOOST_AUTO_TEST_SUITE_END()
