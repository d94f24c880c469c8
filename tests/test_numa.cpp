// base/numa.h: nodes read from folders that the machine does not have, and what is divided over them.
#include <boost/test/unit_test.hpp>
#include <cstdint>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "base/numa.h"
#include "tests/support/made_up_nodes.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(numa)

namespace {

const std::vector<std::vector<std::string>> kMachines = {
    {"0-7"}, {"0-3", "4-7"}, {"0-15,32-47", "16-31,48-63"}, {"0", "1-6", "7-8"}, {"0-1", "2-3", "4-5", "6-7"},
};

// Where node's parts of n things begin, and n at the end.
std::vector<int64_t> begins(const NumaNodes& nodes, int64_t n) {
  std::vector<int64_t> all;
  for (int64_t node = 0; node <= nodes.n(); ++node) all.push_back(nodes.begin(node, n));
  return all;
}

}  // namespace

BOOST_AUTO_TEST_CASE(nodes_are_read_from_the_folder) {
  BOOST_TEST(begins(made_up_nodes({"0-3", "4-5,8"}), 70) == (std::vector<int64_t>{0, 40, 70}));
  BOOST_TEST(begins(made_up_nodes({"0-15,32-47", "16-31", "48-63"}), 64) ==
             (std::vector<int64_t>{0, 32, 48, 64}));
}

BOOST_AUTO_TEST_CASE(cores_that_the_process_may_not_use_do_not_count) {
  cpu_set_t some;
  CPU_ZERO(&some);
  for (const size_t core : {0u, 1u, 2u, 4u}) CPU_SET(core, &some);
  BOOST_TEST(begins(made_up_nodes({"0-3", "4-7", "8-11"}, some), 4) == (std::vector<int64_t>{0, 3, 4}));
  BOOST_TEST(made_up_nodes({"0-7", "8-15"}, some).n() == 1);
}

BOOST_AUTO_TEST_CASE(without_two_nodes_there_is_one) {
  BOOST_TEST(NumaNodes().n() == 1);
  BOOST_TEST(NumaNodes("/no/such/folder", all_cores()).n() == 1);
  BOOST_TEST(made_up_nodes({}).n() == 1);
  BOOST_TEST(made_up_nodes({"0-7", ""}).n() == 1);  // memory alone
  BOOST_TEST(made_up_nodes({"0-7", "what?"}).n() == 1);
  BOOST_TEST(made_up_nodes({"0-7", "5-,9999999999999999999999-3"}).n() == 1);
  BOOST_TEST(made_up_nodes({"0-7", "7000-8000"}).n() == 1);
  BOOST_TEST(begins(NumaNodes(), 17) == (std::vector<int64_t>{0, 17}));
  BOOST_TEST(NumaNodes::of_machine().n() >= 1);
}

BOOST_AUTO_TEST_CASE(every_thing_has_one_node) {
  for (const auto& lists : kMachines) {
    const NumaNodes nodes = made_up_nodes(lists);
    for (const int64_t n : {0, 1, 2, 3, 7, 64, 224, 1000}) {
      const std::vector<int64_t> all = begins(nodes, n);
      BOOST_TEST(all.front() == 0);
      BOOST_TEST(all.back() == n);
      for (int64_t node = 0; node < nodes.n(); ++node) {
        BOOST_TEST(nodes.begin(node, n) <= nodes.begin(node + 1, n));
        for (int64_t i = nodes.begin(node, n); i < nodes.begin(node + 1, n); ++i)
          BOOST_TEST(nodes.node_of(i, n) == node);
      }
    }
  }
}

// Each thing of each list once; what is divided as one list has its nodes, too. One node goes list by list.
BOOST_AUTO_TEST_CASE(lists_are_passed_node_by_node) {
  for (const auto& lists : kMachines) {
    const NumaNodes nodes = made_up_nodes(lists);
    for (const int64_t n_lists : {1, 2, 8})
      for (const int64_t n : {1, 2, 5, 64, 576}) {
        std::set<std::pair<int64_t, int64_t>> seen;
        for (int64_t i = 0; i < n_lists * n; ++i) {
          const auto [list, thing] = nodes.place_of(i, n_lists, n);
          BOOST_TEST((list >= 0 && list < n_lists && thing >= 0 && thing < n));
          seen.insert({list, thing});
          if (nodes.n() == 1) BOOST_TEST((list == i / n && thing == i % n));
          if (n == 576) BOOST_TEST(nodes.node_of(thing, n) == nodes.node_of(i, n_lists * n));
        }
        BOOST_TEST(std::ssize(seen) == n_lists * n);
      }
  }
}

// Whatever the memory's beginning and the parts: each unit goes once, to a node that has some of it.
BOOST_AUTO_TEST_CASE(memory_is_divided_in_whole_units) {
  constexpr size_t kUnit = 4096;
  std::vector<uint8_t> bytes(100 * kUnit);
  for (const auto& lists : kMachines)
    for (const size_t first : {size_t{0}, size_t{1}, size_t{1000}})
      for (const size_t part : {kUnit, 5 * kUnit, 7 * kUnit + 100, 40 * kUnit}) {
        const NumaNodes nodes = made_up_nodes(lists);
        const std::span memory(bytes.data() + first, bytes.size() - 2000);
        std::vector<int64_t> node_of(memory.size(), -1);
        int64_t n_twice = 0, n_foreign = 0, n_cut = 0;
        for (int64_t node = 0; node < nodes.n(); ++node)
          for (const std::span range : ranges_of(nodes, node, memory, part, kUnit))
            for (uint8_t& byte : range) {
              int64_t& of = node_of[static_cast<size_t>(&byte - memory.data())];
              n_twice += of != -1, of = node;
            }
        const auto own_node = [&](size_t i) {
          return nodes.node_of(static_cast<int64_t>(i % part), static_cast<int64_t>(part));
        };
        for (size_t i = 0, end; i < memory.size(); i = end) {
          bool has_some = false;
          for (end = i;
               end == i || (end < memory.size() && reinterpret_cast<uintptr_t>(&memory[end]) % kUnit != 0);
               ++end) {
            has_some = has_some || own_node(end) == node_of[i];
            n_cut += node_of[end] != node_of[i];
          }
          n_foreign += !has_some;
        }
        BOOST_TEST(n_twice == 0);
        BOOST_TEST(n_cut == 0);
        BOOST_TEST(n_foreign == 0);
      }
}

BOOST_AUTO_TEST_CASE(a_thread_is_bound_and_let_go) {
  const NumaNodes nodes = usable_nodes(2);
  const cpu_set_t before = usable_cores();
  std::thread([&] {
    cpu_set_t both;
    CPU_ZERO(&both);
    for (int64_t node = 0; node < 2; ++node) {
      nodes.bind_thread(node);
      const cpu_set_t bound = usable_cores();
      BOOST_TEST(CPU_COUNT(&bound) >= 1);
      BOOST_TEST((CPU_COUNT(&bound) < CPU_COUNT(&before) || CPU_COUNT(&before) == 1));
      CPU_OR(&both, &both, &bound);
    }
    BOOST_TEST(CPU_EQUAL(&both, &before));
    nodes.unbind_thread();
    const cpu_set_t after = usable_cores();
    BOOST_TEST(CPU_EQUAL(&after, &before));
  }).join();
}

// Cores that are not there: as a system does that forbids it.
BOOST_AUTO_TEST_CASE(a_thread_that_cannot_be_bound_goes_on) {
  const NumaNodes nodes = made_up_nodes({"1000-1001", "1002-1003"});
  BOOST_TEST(nodes.n() == 2);
  const cpu_set_t before = usable_cores();
  std::thread([&] {
    nodes.bind_thread(1);
    const cpu_set_t after = usable_cores();
    BOOST_TEST(CPU_EQUAL(&after, &before));
  }).join();
}

BOOST_AUTO_TEST_SUITE_END()
