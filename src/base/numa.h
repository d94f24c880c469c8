// The NUMA nodes of the machine: each has some of the cores and memory that is nearer to them.
//
// One function divides whatever is divided over the nodes (threads, rows, bytes of rows) in proportion to
// their cores, so a node's threads and the rows that they compute meet. Memory lies on the node whose thread
// touches it first: a policy for each expert would cut the memory into more mappings than a process may have.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <sched.h>

namespace dsv32 {

class NumaNodes {
 public:
  // One node: nothing is divided and nothing bound.
  NumaNodes() = default;
  // Those that have some of these cores, in the order of their numbers; one where the folder names no two.
  NumaNodes(const std::string& folder, const cpu_set_t& cores);
  // Those of this machine with the cores that this process may use.
  static NumaNodes of_machine();

  int64_t n() const { return static_cast<int64_t>(n_cores_before_.size()) - 1; }
  // Node's part of [0, n_things) is [begin(node, n_things), begin(node + 1, n_things)).
  int64_t begin(int64_t node, int64_t n_things) const {
    return n_things * n_cores_before_[static_cast<size_t>(node)] / n_cores_before_.back();
  }
  // The node that has thing i of n_things.
  int64_t node_of(int64_t i, int64_t n_things) const;
  // Thing i of n_lists * n_things, where the first node's parts of all lists come first, list after list:
  // which list, and which thing of it.
  std::pair<int64_t, int64_t> place_of(int64_t i, int64_t n_lists, int64_t n_things) const;

  // The calling thread runs on that node's cores, or on those of all nodes. Where the system forbids it, and
  // with one node, it stays as it was.
  void bind_thread(int64_t node) const;
  void unbind_thread() const;

 private:
  struct Cores {  // nvcc fails on a vector of a type that has no name
    cpu_set_t set;
  };
  std::vector<Cores> cores_;                   // of each node; empty with one
  std::vector<int64_t> n_cores_before_{0, 1};  // of all nodes before this one
};

// The parts of memory that belong to a node when each n_part_bytes of it are divided, neighbours as one.
// n_whole_bytes, a power of two, stay whole: the node that has the middle of them has them all.
std::vector<std::span<uint8_t>> ranges_of(const NumaNodes& nodes, int64_t node, std::span<uint8_t> memory,
                                          size_t n_part_bytes, size_t n_whole_bytes);

}  // namespace dsv32
