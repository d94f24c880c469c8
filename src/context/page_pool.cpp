#include "context/page_pool.h"

#include <numeric>

namespace dsv32 {

// The lowest number is taken first.
PagePool::PagePool(int64_t n_pages)
    : free_(static_cast<size_t>(n_pages)), n_users_(static_cast<size_t>(n_pages)) {
  std::iota(free_.rbegin(), free_.rend(), 0);
}

int32_t PagePool::take() {
  const int32_t page = free_.back();
  free_.pop_back();
  retain(page);
  return page;
}

void PagePool::release(int32_t page) {
  if (--n_users_[static_cast<size_t>(page)] == 0) free_.push_back(page);
}

void PagePool::resize(std::vector<int32_t>& table, int64_t n_pages) {
  while (static_cast<int64_t>(table.size()) < n_pages) table.push_back(take());
  for (; static_cast<int64_t>(table.size()) > n_pages; table.pop_back()) release(table.back());
}

}  // namespace dsv32
