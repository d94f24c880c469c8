// The test program: Boost.Test, plus one line "tally: P F S" at the end for tests/run.sh to add up.
//
// A case that cannot run here (it needs a GPU or a file that is not made) is skipped by a precondition and
// counted so.
#define BOOST_TEST_MODULE dsv32
#include <boost/test/results_collector.hpp>
#include <boost/test/tree/traverse.hpp>
#include <boost/test/tree/visitor.hpp>
#include <boost/test/unit_test.hpp>

#include <cstdio>
#include <cstdlib>

namespace {

namespace ut = boost::unit_test;

// A suite that was skipped as a whole leaves its cases unmarked.
bool is_skipped(const ut::test_unit& unit) {
  if (ut::results_collector.results(unit.p_id).p_skipped || !unit.is_enabled()) return true;
  const ut::test_unit_id parent = unit.p_parent_id;
  return parent != ut::INV_TEST_UNIT_ID && is_skipped(ut::framework::get(parent, ut::TUT_SUITE));
}

// What --run_test leaves to another process, which then counts it.
bool is_left_out(const ut::test_unit& unit) {
  if (unit.p_default_status == ut::test_unit::RS_ENABLED && !unit.is_enabled()) return true;
  const ut::test_unit_id parent = unit.p_parent_id;
  return parent != ut::INV_TEST_UNIT_ID && is_left_out(ut::framework::get(parent, ut::TUT_SUITE));
}

struct Tally : ut::test_tree_visitor {
  int n_passed = 0, n_failed = 0, n_skipped = 0;
  void visit(const ut::test_case& test) override {
    const ut::test_results& result = ut::results_collector.results(test.p_id);
    if (is_left_out(test)) return;
    if (is_skipped(test))
      ++n_skipped;
    else if (result.passed())
      ++n_passed;
    else
      ++n_failed;
  }
};

// What the user has set must not change a test.
struct NoSettings {
  NoSettings() { setenv("XDG_CONFIG_HOME", "/nonexistent", 1); }
};

// A global fixture is torn down after the last case, when every result is in.
struct PrintTally {
  ~PrintTally() {
    Tally tally;
    ut::traverse_test_tree(ut::framework::master_test_suite(), tally, true);
    std::printf("tally: %d %d %d\n", tally.n_passed, tally.n_failed, tally.n_skipped);
  }
};

}  // namespace

BOOST_TEST_GLOBAL_FIXTURE(NoSettings);
BOOST_TEST_GLOBAL_FIXTURE(PrintTally);
