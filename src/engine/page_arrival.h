// A run of stored pages on its way into the pool, layer by layer.
//
// The one idea: pages arrive slab by slab, and what has arrived of a layer can be computed with while later
// layers are still being read. Slabs are received in their order; receiving one publishes it, so that the
// device sees its rows and keys. The pool's pages are retained until the arrival goes.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "context/latent_cache.h"
#include "engine/page_reader.h"

namespace dsv32 {

class PageArrival {
 public:
  // Takes a page of the pool for each of `pages`, from the front, as far as there is room. `sizes`: of the
  // store. Pool and reader must outlive it.
  PageArrival(LatentCache& pool, PageReader& reader, const SegmentInfo& sizes,
              std::span<const DiskPage> pages);
  // Gives the pool's pages back, but those that a read may still write to.
  ~PageArrival();
  PageArrival(const PageArrival&) = delete;
  PageArrival& operator=(const PageArrival&) = delete;

  void start();

  int64_t n_pages() const { return static_cast<int64_t>(job_->n_wanted); }  // that are still wanted
  PrefixPage page(int64_t i) const;

  // Waits until a slab of all pages has come, or one has failed, or until `deadline` (nothing: none).
  // Returns of how many pages, from the front, the slab is there.
  int64_t receive(int64_t slab, std::optional<std::chrono::steady_clock::time_point> deadline);
  // The pages, from the front, of which all slabs have been received.
  int64_t n_whole() const;
  bool is_whole() const { return n_whole() == n_pages(); }
  // The page that could not be read, where receive() met one.
  DiskPage failed() const { return failed_; }

  // Only the first n_pages are wanted any more.
  void cut(int64_t n_pages);
  bool is_idle() const { return reader_.is_idle(*job_); }

 private:
  void publish(int64_t slab, int64_t begin, int64_t end);

  LatentCache& pool_;
  PageReader& reader_;
  const SegmentInfo sizes_;
  std::shared_ptr<ReadJob> job_;
  std::vector<int64_t> n_received_;  // [n_slabs] pages
  DiskPage failed_;
};

}  // namespace dsv32
