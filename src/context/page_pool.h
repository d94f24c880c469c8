// The numbers of a pool's pages, and who uses them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace dsv32 {

// The numbers of one pool's pages: which are free, and how many use each of the others.
class PagePool {
 public:
  explicit PagePool(int64_t n_pages = 0);
  int64_t n_free() const { return static_cast<int64_t>(free_.size()); }
  int32_t n_users(int32_t page) const { return n_users_[static_cast<size_t>(page)]; }
  int32_t take();  // the caller is its first user; there is a free one
  void retain(int32_t page) { ++n_users_[static_cast<size_t>(page)]; }
  void release(int32_t page);
  // Changes a table's length, taking pages at its end or giving them back.
  void resize(std::vector<int32_t>& table, int64_t n_pages);

 private:
  std::vector<int32_t> free_, n_users_;
};

}  // namespace dsv32
