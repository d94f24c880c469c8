// The members' threads: they meet, and an exception of one ends the work of all.
#include <atomic>
#include <boost/test/unit_test.hpp>
#include <stdexcept>
#include <vector>

#include "backend/team.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(team)

BOOST_AUTO_TEST_CASE(members_see_what_each_has_given) {
  constexpr int64_t kMembers = 3, kMeetings = 500;
  Team team(kMembers);
  std::vector<int64_t> sums(kMembers);
  team.run([&](int64_t member) {
    for (int64_t i = 0; i < kMeetings; ++i) {
      const int64_t own = i * kMembers + member;
      int64_t sum = 0;
      for (const void* other : team.meet(member, &own)) sum += *static_cast<const int64_t*>(other);
      team.meet(member, nullptr);
      sums[static_cast<size_t>(member)] += sum;
    }
  });
  constexpr int64_t kAll = kMeetings * kMembers;
  BOOST_TEST(sums == std::vector<int64_t>(kMembers, kAll * (kAll - 1) / 2), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_member_that_throws_ends_the_work_of_all) {
  for (const int64_t n_members : {3, 4, 8}) {
    Team team(n_members);
    for (int64_t failing = 0; failing < n_members; ++failing) {
      std::atomic<int> n_met = 0;
      BOOST_CHECK_THROW(team.run([&](int64_t member) {
        team.meet(member, nullptr);
        if (member == failing) throw std::runtime_error("one");
        team.meet(member, nullptr);
        ++n_met;
      }),
                        std::runtime_error);
      BOOST_TEST(n_met == 0);
      std::atomic<int64_t> n_worked = 0;
      team.run([&](int64_t member) {
        team.meet(member, nullptr);
        ++n_worked;
      });
      BOOST_TEST(n_worked == n_members);
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
