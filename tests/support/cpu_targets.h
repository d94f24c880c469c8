// The instruction sets that a test can choose for its products.
#pragma once

#include <hwy/highway.h>

#include <boost/test/unit_test.hpp>

#include <cstdint>
#include <vector>

#include "tests/support/sanitized.h"

namespace dsv32 {

// The instruction sets of this machine that the program has code for.
inline std::vector<int64_t> available_targets() {
  std::vector<int64_t> targets;
#if HWY_ARCH_X86
  for (const int64_t target : {HWY_AVX3_DL, HWY_AVX3, HWY_AVX2, HWY_SSE4})
    if (hwy::SupportedTargets() & target) targets.push_back(target);
#else
  targets.push_back(0);
#endif
  targets.push_back(HWY_SCALAR);
  return targets;
}

// Whether products were compiled for several instruction sets: with sanitizers they are only for one.
inline boost::test_tools::assertion_result has_several_targets(boost::unit_test::test_unit_id) {
  boost::test_tools::assertion_result result(!kIsSanitized);
  result.message() << "this build has one instruction set";
  return result;
}

// Until this goes out of scope, products run only on `target` (0: on the best one).
struct UseTarget {
  explicit UseTarget(int64_t target) { set(target); }
  ~UseTarget() { set(0); }
  static void set(int64_t target) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().DeInit();
  }
};

}  // namespace dsv32
