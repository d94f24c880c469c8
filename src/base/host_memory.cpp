#include "base/host_memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

#include <sys/resource.h>
#include <unistd.h>

namespace dsv32 {
namespace {

uint64_t in_bytes(int name) {
  const long n_pages = sysconf(name), page_bytes = sysconf(_SC_PAGESIZE);
  if (n_pages <= 0 || page_bytes <= 0) return 0;
  return static_cast<uint64_t>(n_pages) * static_cast<uint64_t>(page_bytes);
}

}  // namespace

uint64_t total_host_memory() { return in_bytes(_SC_PHYS_PAGES); }

// _SC_AVPHYS_PAGES leaves out the file cache, which a mapped model fills.
uint64_t available_host_memory() {
  std::ifstream info("/proc/meminfo");
  std::string name, unit;
  for (uint64_t n_kilobytes = 0; info >> name >> n_kilobytes; std::getline(info, unit))
    if (name == "MemAvailable:") return n_kilobytes * 1024;
  return in_bytes(_SC_AVPHYS_PAGES);
}

uint64_t most_process_memory() {
  uint64_t most = std::numeric_limits<uint64_t>::max();
  for (const auto resource : {RLIMIT_AS, RLIMIT_DATA}) {
    rlimit limit{};
    if (getrlimit(resource, &limit) == 0) most = std::min<uint64_t>(most, limit.rlim_cur);
  }
  return most;
}

}  // namespace dsv32
