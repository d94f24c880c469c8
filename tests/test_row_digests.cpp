// The bits of rows and keys on every instruction set of this machine, beside those that were written down: a
// change of bits must come with a new epoch (Backend::numerics), or caches would mix old rows and new ones.
#include <boost/test/unit_test.hpp>

#include <hwy/highway.h>

#include <map>
#include <string>

#include "backend/cpu_backend.h"
#include "tests/support/row_digests.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(row_digests)

namespace ut = boost::unit_test;

namespace {

// Highway's targets in the order of their bits, the best first; a case for each.
const std::map<std::string, int64_t> kTargets = {
    {"scalar", HWY_SCALAR},
#if HWY_ARCH_X86
    {"sse4", HWY_SSE4},     {"avx2", HWY_AVX2}, {"avx3", HWY_AVX3}, {"avx3_dl", HWY_AVX3_DL},
#endif
};

// As on a machine whose best set is `target` (0: this machine), until this goes out of scope.
struct UseTarget {
  explicit UseTarget(int64_t target) {
    if (target != 0) set(target == HWY_SCALAR ? target : hwy::SupportedTargets() & ~(target - 1));
  }
  ~UseTarget() { set(0); }
  static void set(int64_t targets) {
    hwy::SetSupportedTargetsForTest(targets);
    hwy::GetChosenTarget().DeInit();
  }
};

int64_t target_of(ut::test_unit_id id) {
  const auto found = kTargets.find(ut::framework::get(id, ut::TUT_CASE).p_name);
  return found == kTargets.end() ? 0 : found->second;
}

// Skips a case whose instruction set this machine lacks, or for which no digest is written down: another C
// library, or a sanitized build, which has code for one set alone.
boost::test_tools::assertion_result is_written_down(ut::test_unit_id id) {
  const int64_t target = target_of(id);
  boost::test_tools::assertion_result no(false);
  if (target != 0 && target != HWY_SCALAR && (hwy::SupportedTargets() & target) == 0) {
    no.message() << "this CPU does not have it";
    return no;
  }
  const UseTarget use(target);
  const std::string numerics = CpuBackend(0).numerics();
  if (expected_row_digest(numerics)) return true;
  no.message() << "no digest is written down for " << numerics;
  return no;
}

void check_rows() {
  const UseTarget use(target_of(ut::framework::current_test_case_id()));
  const RowDigest found = row_digest("cpu");
  BOOST_TEST_MESSAGE(found.numerics << " " << found.digest);
  BOOST_TEST(expected_row_digest(found.numerics).value() == found.digest,
             found.numerics << " gives " << found.digest << ": the epoch must rise");
}

}  // namespace

BOOST_AUTO_TEST_CASE(this_machine, *ut::precondition(is_written_down)) { check_rows(); }
BOOST_AUTO_TEST_CASE(avx3_dl, *ut::precondition(is_written_down)) { check_rows(); }
BOOST_AUTO_TEST_CASE(avx3, *ut::precondition(is_written_down)) { check_rows(); }
BOOST_AUTO_TEST_CASE(avx2, *ut::precondition(is_written_down)) { check_rows(); }
BOOST_AUTO_TEST_CASE(sse4, *ut::precondition(is_written_down)) { check_rows(); }
BOOST_AUTO_TEST_CASE(scalar, *ut::precondition(is_written_down)) { check_rows(); }

// Digests of another machine, or of a new epoch, for tests/golden/row_digests.txt.
BOOST_AUTO_TEST_CASE(print_row_digests, *ut::disabled()) {
  for (const auto& [name, target] : kTargets) {
    if (target != HWY_SCALAR && (hwy::SupportedTargets() & target) == 0) continue;
    const UseTarget use(target);
    const RowDigest found = row_digest("cpu");
    std::printf("%s %s\n", found.numerics.c_str(), found.digest.c_str());
  }
}

BOOST_AUTO_TEST_SUITE_END()
