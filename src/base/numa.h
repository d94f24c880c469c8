// The NUMA nodes of the machine: each has some of the cores and memory that is nearer to them.
//
// begin() divides threads, rows and bytes of rows over the nodes in proportion to their cores, so a node's
// threads compute the rows that lie on it. Memory lies on the node whose thread touches it first: a memory
// policy for each expert would take more mappings than a process may have.
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
  // The nodes that have some of these cores, in the order of their numbers; one node if the folder, laid
  // out as /sys/devices/system/node, has fewer than two.
  NumaNodes(const std::string& folder, const cpu_set_t& cores);
  // This machine's nodes, with the cores that this process may use.
  static NumaNodes of_machine();

  int64_t n() const { return static_cast<int64_t>(n_cores_before_.size()) - 1; }
  // Node's part of [0, n_things) is [begin(node, n_things), begin(node + 1, n_things)).
  int64_t begin(int64_t node, int64_t n_things) const {
    return n_things * n_cores_before_[static_cast<size_t>(node)] / n_cores_before_.back();
  }
  // The node that has thing i of n_things.
  int64_t node_of(int64_t i, int64_t n_things) const;
  // Orders the things of n_lists lists, n_things each, by node, then by list. For the i-th in this order: its
  // list, and its index in the list.
  std::pair<int64_t, int64_t> place_of(int64_t i, int64_t n_lists, int64_t n_things) const;

  // Binds the calling thread to that node's cores, or to those of all nodes. Does nothing where the system
  // forbids it, and with one node.
  void bind_thread(int64_t node) const;
  void unbind_thread() const;

 private:
  struct Cores {  // nvcc fails on a vector of a type that has no name
    cpu_set_t set;
  };
  std::vector<Cores> cores_;                   // of each node; read only when there are several
  std::vector<int64_t> n_cores_before_{0, 1};  // of all nodes before this one
};

// The ranges of memory that belong to a node when every n_part_bytes of it are divided over the nodes;
// adjacent ranges are joined. Blocks of n_whole_bytes, a power of two, stay whole: the node that has a
// block's middle has all of it.
std::vector<std::span<uint8_t>> ranges_of(const NumaNodes& nodes, int64_t node, std::span<uint8_t> memory,
                                          size_t n_part_bytes, size_t n_whole_bytes);

}  // namespace dsv32
