// The instrument that lets allocations fail does what it says.
#include <boost/test/unit_test.hpp>
#include <memory>
#include <new>
#include <thread>
#include <vector>

#include "tests/support/failing_allocations.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(failing_allocations)

namespace {

// Of ten allocations, how many fail.
int n_failing(int64_t n, bool lasts) {
  std::vector<std::unique_ptr<int64_t[]>> made(10);
  int n_failed = 0;
  FailingAllocations failing(n, lasts);
  for (auto& memory : made) try {
      memory = std::make_unique<int64_t[]>(100);
    } catch (const std::bad_alloc&) {
      ++n_failed;
    }
  return failing.stop() == (n_failed > 0) ? n_failed : -1;
}

}  // namespace

BOOST_AUTO_TEST_CASE(the_one_named_fails_or_all_from_it_on) {
  BOOST_TEST(n_failing(0, false) == 1);
  BOOST_TEST(n_failing(9, false) == 1);
  BOOST_TEST(n_failing(10, false) == 0);
  BOOST_TEST(n_failing(4, true) == 6);
  BOOST_TEST(n_failing(10, true) == 0);
}

BOOST_AUTO_TEST_CASE(allocations_of_other_threads_and_with_an_alignment_count) {
  constexpr std::align_val_t kAlignment{128};
  bool has_failed = false;
  std::thread thread([&] {
    FailingAllocations failing(0);
    try {
      ::operator delete(::operator new(128, kAlignment), kAlignment);
    } catch (const std::bad_alloc&) {
      has_failed = true;
    }
  });
  thread.join();
  BOOST_TEST(has_failed);
  void* memory = ::operator new(100, kAlignment);
  BOOST_TEST(reinterpret_cast<uintptr_t>(memory) % 128 == 0u);
  ::operator delete(memory, kAlignment);
}

BOOST_AUTO_TEST_SUITE_END()
