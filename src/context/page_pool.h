// The numbers of a pool's pages, and who uses them; and the two numbers that a page of tokens has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace dsv32 {

// A page of tokens in the two pools of memory: latent rows on the host, index keys on the device.
struct PoolPage {
  int32_t row = -1, key = -1;
  bool is_there() const { return row >= 0 && key >= 0; }
  bool operator==(const PoolPage&) const = default;
};

// Who owns the pools' pages counts their users. Neither function may call back.
class PagePins {
 public:
  virtual ~PagePins() = default;
  virtual void retain(const PoolPage& page) = 0;
  virtual void release(const PoolPage& page) = 0;
};

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
