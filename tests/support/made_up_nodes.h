// NUMA nodes that the machine does not have, described in a folder as the system describes its own.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/numa.h"
#include "tests/support/temp_dir.h"

namespace dsv32 {

// The cores that this process may use.
inline cpu_set_t usable_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  sched_getaffinity(0, sizeof cores, &cores);
  return cores;
}

inline cpu_set_t all_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  for (size_t core = 0; core < CPU_SETSIZE; ++core) CPU_SET(core, &cores);
  return cores;
}

// lists[i]: the cores of node i.
inline NumaNodes made_up_nodes(const std::vector<std::string>& lists, const cpu_set_t& cores = all_cores()) {
  const TempDir folder;
  for (size_t i = 0; i < lists.size(); ++i) {
    const std::string node = folder.file("node" + std::to_string(i));
    std::filesystem::create_directory(node);
    std::ofstream(node + "/cpulist") << lists[i] << '\n';
  }
  if (!lists.empty()) std::ofstream(folder.file("online")) << "0-" << lists.size() - 1 << '\n';
  return {folder.file(""), cores};
}

// Deals the usable cores out to the nodes in turn, so that threads can be bound on any machine.
inline NumaNodes usable_nodes(size_t n_nodes) {
  const cpu_set_t cores = usable_cores();
  std::vector<std::string> lists(n_nodes);
  size_t n = 0;
  for (size_t core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &cores)) lists[n++ % n_nodes] += std::to_string(core) + ",";
  for (size_t i = n; i < n_nodes; ++i) lists[i] = lists[i % n];  // nodes that share a core
  return made_up_nodes(lists);
}

}  // namespace dsv32
