#include "engine/page_arrival.h"

#include <algorithm>
#include <utility>

namespace dsv32 {

PageArrival::PageArrival(LatentCache& pool, PageReader& reader, const SegmentInfo& sizes,
                         std::span<const DiskPage> pages)
    : pool_(pool),
      reader_(reader),
      sizes_(sizes),
      job_(std::make_shared<ReadJob>()),
      n_received_(static_cast<size_t>(sizes.n_slabs())) {
  for (const DiskPage& page : pages) {
    const std::optional<PoolPage> taken = pool_.take_page();
    if (!taken) break;
    PageRead& read = job_->pages.emplace_back();
    read.from = page, read.pool = *taken;
    for (int64_t layer = 0; layer < sizes.n_layers; ++layer)
      read.rows.push_back(pool_.page_rows(*taken, layer));
  }
  job_->n_wanted = job_->pages.size();
}

PageArrival::~PageArrival() {
  if (!is_idle()) return;
  for (const PageRead& page : job_->pages)
    if (page.pool.is_there()) pool_.release(page.pool);
}

void PageArrival::start() { reader_.start(job_); }

PrefixPage PageArrival::page(int64_t i) const {
  const PageRead& read = job_->pages[static_cast<size_t>(i)];
  return {read.pool, read.from};
}

int64_t PageArrival::receive(int64_t slab, std::optional<std::chrono::steady_clock::time_point> deadline) {
  int64_t& n_received = n_received_[static_cast<size_t>(slab)];
  while (n_received < n_pages()) {
    const PageReader::Progress progress = reader_.wait(*job_, slab, n_received, deadline);
    if (progress.has_failed) failed_ = page(progress.n_there).disk;
    const int64_t n_known = std::exchange(n_received, progress.n_there);
    publish(slab, n_known, n_received);
    if (progress.is_over || n_received == n_known) break;
  }
  return n_received;
}

void PageArrival::publish(int64_t slab, int64_t begin, int64_t end) {
  if (begin == end) return;
  std::vector<PoolPage> pages;
  for (int64_t i = begin; i < end; ++i) pages.push_back(page(i).pool);
  pool_.publish(pages, sizes_.first_layer(slab), sizes_.n_layers_of(slab),
                reader_.take_keys(*job_, slab, begin, end));
}

int64_t PageArrival::n_whole() const { return *std::ranges::min_element(n_received_); }

void PageArrival::cut(int64_t n_pages) {
  for (const size_t place : reader_.cut(*job_, n_pages))
    if (PoolPage& pool = job_->pages[place].pool; pool.is_there()) pool_.release(std::exchange(pool, {}));
  for (int64_t& n_received : n_received_) n_received = std::min(n_received, this->n_pages());
}

}  // namespace dsv32
