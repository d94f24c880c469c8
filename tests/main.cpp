// The test program: Boost.Test, plus lines for tests/run.sh to add up: at the end "tally: P F S", and before
// it "skipped: N REASON" for each reason; and now and then the case that is running.
//
// A case that cannot run here (it needs a GPU or a file that is not made) is skipped by a precondition and
// counted so.
#define BOOST_TEST_MODULE dsv32
#include <boost/test/results_collector.hpp>
#include <boost/test/tree/observer.hpp>
#include <boost/test/tree/traverse.hpp>
#include <boost/test/tree/visitor.hpp>
#include <boost/test/unit_test.hpp>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

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

// A person who waits sees where it is, and at the end why something was not tested.
struct Course : ut::test_observer {
  void test_unit_start(const ut::test_unit& unit) override {
    const auto now = std::chrono::steady_clock::now();
    if (unit.p_type != ut::TUT_CASE || now - told_at < std::chrono::seconds(20)) return;
    std::printf("  at %s\n", unit.full_name().c_str());
    std::fflush(stdout);
    told_at = now;
  }
  void test_unit_skipped(const ut::test_unit& unit, ut::const_string reason) override {
    const std::string prefix = "precondition failed: ", text(reason.begin(), reason.end());
    reasons[unit.p_id] =
        text.starts_with(prefix) ? text.substr(prefix.size()) : unit.full_name() + ": " + text;
  }
  // Of a case or the suite that was skipped as a whole.
  std::string reason_of(const ut::test_unit& unit) const {
    if (unit.has_label("long")) return "make test-long runs it";
    if (unit.has_label("eval")) return "make eval runs it";
    if (const auto found = reasons.find(unit.p_id); found != reasons.end()) return found->second;
    const ut::test_unit_id parent = unit.p_parent_id;
    if (parent == ut::INV_TEST_UNIT_ID) return "not run";
    return reason_of(ut::framework::get(parent, ut::TUT_SUITE));
  }

  std::map<ut::test_unit_id, std::string> reasons;
  std::chrono::steady_clock::time_point told_at = std::chrono::steady_clock::now();
};

struct Tally : ut::test_tree_visitor {
  explicit Tally(const Course& c) : course(c) {}
  const Course& course;
  std::map<std::string, int> skipped_for;  // a reason
  int n_passed = 0, n_failed = 0, n_skipped = 0;
  void visit(const ut::test_case& test) override {
    const ut::test_results& result = ut::results_collector.results(test.p_id);
    if (is_left_out(test)) return;
    if (is_skipped(test))
      ++n_skipped, ++skipped_for[course.reason_of(test)];
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
  PrintTally() { ut::framework::register_observer(course); }
  ~PrintTally() {
    Tally tally(course);
    ut::traverse_test_tree(ut::framework::master_test_suite(), tally, true);
    for (const auto& [reason, n] : tally.skipped_for) std::printf("skipped: %d %s\n", n, reason.c_str());
    std::printf("tally: %d %d %d\n", tally.n_passed, tally.n_failed, tally.n_skipped);
    ut::framework::deregister_observer(course);
  }
  Course course;
};

}  // namespace

BOOST_TEST_GLOBAL_FIXTURE(NoSettings);
BOOST_TEST_GLOBAL_FIXTURE(PrintTally);
