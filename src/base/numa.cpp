#include "base/numa.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <system_error>

namespace dsv32 {
namespace {

// Reads a list such as "0-3,8-11", of cores or of nodes; skips what is malformed.
cpu_set_t read_list(const std::string& path) {
  cpu_set_t numbers;
  CPU_ZERO(&numbers);
  std::ifstream list(path);
  for (std::string range; std::getline(list, range, ',');) {
    size_t first = 0, last = 0;
    const char* const end = range.data() + range.size();
    auto at = std::from_chars(range.data(), end, first);
    last = first;
    if (at.ec == std::errc{} && at.ptr != end && *at.ptr == '-') at = std::from_chars(at.ptr + 1, end, last);
    if (at.ec != std::errc{}) continue;
    for (size_t number = first; number <= last && number < CPU_SETSIZE; ++number) CPU_SET(number, &numbers);
  }
  return numbers;
}

}  // namespace

NumaNodes::NumaNodes(const std::string& folder, const cpu_set_t& cores) {
  const cpu_set_t nodes = read_list(folder + "/online");
  std::vector<int64_t> n_before{0};
  for (size_t node = 0; node < CPU_SETSIZE; ++node) {
    if (!CPU_ISSET(node, &nodes)) continue;
    cpu_set_t usable = read_list(folder + "/node" + std::to_string(node) + "/cpulist");
    CPU_AND(&usable, &usable, &cores);
    if (CPU_COUNT(&usable) == 0) continue;
    cores_.push_back({usable});
    n_before.push_back(n_before.back() + CPU_COUNT(&usable));
  }
  if (cores_.size() > 1) n_cores_before_ = std::move(n_before);
}

NumaNodes NumaNodes::of_machine() {
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof cores, &cores) != 0) return {};
  return {"/sys/devices/system/node", cores};
}

int64_t NumaNodes::node_of(int64_t i, int64_t n_things) const {
  int64_t node = 0;
  while (node + 1 < n() && i >= begin(node + 1, n_things)) ++node;
  return node;
}

std::pair<int64_t, int64_t> NumaNodes::place_of(int64_t i, int64_t n_lists, int64_t n_things) const {
  const int64_t node = node_of(i / n_lists, n_things);
  const int64_t first = begin(node, n_things), n_own = begin(node + 1, n_things) - first;
  const int64_t at = i - n_lists * first;
  return {at / n_own, first + at % n_own};
}

void NumaNodes::bind_thread(int64_t node) const {
  if (n() > 1) sched_setaffinity(0, sizeof(cpu_set_t), &cores_[static_cast<size_t>(node)].set);
}

void NumaNodes::unbind_thread() const {
  if (n() == 1) return;
  cpu_set_t all;
  CPU_ZERO(&all);
  for (const Cores& cores : cores_) CPU_OR(&all, &all, &cores.set);
  sched_setaffinity(0, sizeof all, &all);
}

std::vector<std::span<uint8_t>> ranges_of(const NumaNodes& nodes, int64_t node, std::span<uint8_t> memory,
                                          size_t n_part_bytes, size_t n_whole_bytes) {
  std::vector<std::span<uint8_t>> ranges;
  const auto part = static_cast<int64_t>(n_part_bytes);
  const size_t before = reinterpret_cast<uintptr_t>(memory.data()) % n_whole_bytes;
  for (size_t at = 0, end; at < memory.size(); at = end) {
    end = std::min((before + at) / n_whole_bytes * n_whole_bytes + n_whole_bytes - before, memory.size());
    const auto middle = static_cast<int64_t>((at + end) / 2);
    if (nodes.node_of(middle % part, part) != node) continue;
    const bool follows = !ranges.empty() && ranges.back().data() + ranges.back().size() == &memory[at];
    if (follows)
      ranges.back() = {ranges.back().data(), ranges.back().size() + end - at};
    else
      ranges.push_back(memory.subspan(at, end - at));
  }
  return ranges;
}

}  // namespace dsv32
