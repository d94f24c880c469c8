// The numbers of a pool's pages, with their user counts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

namespace dsv32 {

// A page of tokens: its number is the same in the pool of rows, on the host, and in that of keys, on the
// device.
struct PoolPage {
  int32_t number = -1;
  bool is_there() const { return number >= 0; }
  bool operator==(const PoolPage&) const = default;
};

// The owner of the pools' pages counts their users. Neither function may call back.
class PagePins {
 public:
  virtual ~PagePins() = default;
  virtual void retain(const PoolPage& page) = 0;
  virtual void release(const PoolPage& page) = 0;
};

class PagePool {
 public:
  // The lowest number is taken first.
  explicit PagePool(int64_t n_pages = 0)
      : free_(static_cast<size_t>(n_pages)), n_users_(static_cast<size_t>(n_pages)) {
    std::iota(free_.rbegin(), free_.rend(), 0);
  }
  int64_t n_free() const { return std::ssize(free_); }
  int32_t n_users(int32_t page) const { return n_users_[static_cast<size_t>(page)]; }
  // Takes a free page, which must exist; the caller is its first user.
  int32_t take() {
    const int32_t page = free_.back();
    free_.pop_back();
    retain(page);
    return page;
  }
  void retain(int32_t page) { ++n_users_[static_cast<size_t>(page)]; }
  void release(int32_t page) {
    if (--n_users_[static_cast<size_t>(page)] == 0) free_.push_back(page);
  }
  // Changes a table's length: takes or releases pages at its end.
  void resize(std::vector<int32_t>& table, int64_t n_pages) {
    while (std::ssize(table) < n_pages) table.push_back(take());
    for (; std::ssize(table) > n_pages; table.pop_back()) release(table.back());
  }

 private:
  std::vector<int32_t> free_, n_users_;
};

// Calls visit(begin, end) for each longest part of [0, n) in which follows(i) holds for all i but the first.
// Each such part can be copied at once.
template <typename Follows, typename Visit>
void for_runs(size_t n, const Follows& follows, const Visit& visit) {
  for (size_t begin = 0, end = 0; begin < n; begin = end) {
    for (end = begin + 1; end < n && follows(end);) ++end;
    visit(begin, end);
  }
}

// The same for pages whose numbers ascend by one.
template <typename Visit>
void for_page_runs(std::span<const PoolPage> pages, const Visit& visit) {
  for_runs(
      pages.size(), [&](size_t i) { return pages[i].number == pages[i - 1].number + 1; }, visit);
}

}  // namespace dsv32
