// How PrefixCache stores: paths that wait become jobs of the writer, one at a time.
#include <algorithm>
#include <set>
#include <utility>

#include "prefix/prefix_cache.h"

namespace dsv32 {
namespace {

// Most pages of a job, which holds their keys in memory: 34 MB with V3.2's sizes.
constexpr int64_t kJobPages = 64;

}  // namespace

// Asks after the pages were computed, so the pages belong to the bytes that were hashed.
bool PrefixCache::may_store() {
  const std::optional<Hash256> now = is_storing_ ? identity_() : std::nullopt;
  if (now && now != fingerprint_) disown();
  return now && is_storing_;
}

void PrefixCache::stop_storing() {
  is_storing_ = false;
  to_store_.clear();
}

// Gives the writer its next job; `waits`: waits for it, and goes on until no job is left.
void PrefixCache::pump(bool waits) {
  if (!store_) return;
  for (;;) {
    take_back_write(waits);
    if (writer_->hangs()) return stop_storing();
    if (writer_->is_busy()) return;
    if (options_.write == WritePolicy::write_back && !waits) return;
    if (to_store_.empty() || !may_store()) return;
    std::unique_ptr<StoreJob> job = next_job();
    if (!job) return;
    writer_->write(std::move(job));
  }
}

// The finished job, whose pages are released here, or nothing.
std::unique_ptr<StoreJob> PrefixCache::take_back_write(bool waits) {
  std::unique_ptr<StoreJob> job = writer_->take(waits);
  if (!job) return nullptr;
  for (const PoolPage& page : job->pages) pool_->release(page);
  if (!job->is_complete) to_store_.clear();  // what the disk refuses is not offered again
  for (const StoreJob::Stored& stored : job->stored)
    tree_.attach_segment(first_pages(job->path, stored.first_page + stored.n_pages), stored.first_page,
                         stored.segment);
  return job;
}

std::unique_ptr<StoreJob> PrefixCache::next_job() {
  for (; !to_store_.empty(); to_store_.pop_front()) {
    const std::vector<PageRun> runs = tree_.unstored(to_store_.front());
    if (!runs.empty()) return make_job(to_store_.front(), runs.front());
  }
  return nullptr;
}

std::unique_ptr<StoreJob> PrefixCache::make_job(Tokens path, PageRun run) {
  auto job = std::make_unique<StoreJob>();
  run.n_pages = std::min(run.n_pages, kJobPages);
  const Tokens tokens = first_pages(path, run.first_page + run.n_pages);
  const PrefixTree::Match match = tree_.match(tokens);
  job->path.assign(tokens.begin(), tokens.end());
  job->first_page = run.first_page;
  if (run.first_page > 0) job->parent = match.pages[static_cast<size_t>(run.first_page - 1)].disk.segment;
  for (int64_t i = run.first_page; i < run.first_page + run.n_pages; ++i) {
    const PoolPage page = match.pages[static_cast<size_t>(i)].pool;
    job->pages.push_back(page);
    std::vector<const uint8_t*>& rows = job->rows.emplace_back();
    for (int64_t layer = 0; layer < pool_->plan().n_layers; ++layer)
      rows.push_back(pool_->page_rows(page, layer));
  }
  job->keys = pool_->download_keys(job->pages);
  for (const PoolPage& page : job->pages) pool_->retain(page);
  return job;
}

// Stores one path whose pages would be lost, ahead of all that wait, while the request that needs their
// memory waits. False when the disk did not take all of them.
bool PrefixCache::store_leaving(Tokens leaving) {
  std::list<std::vector<int32_t>> others{{leaving.begin(), leaving.end()}};
  others.swap(to_store_);
  pump(true);
  to_store_.splice(to_store_.end(), others);
  return tree_.unstored(leaving).empty();
}

void PrefixCache::disown() {
  is_disowned_ = true;
  stop_storing();
  if (!store_) return;
  attempt([this] {
    take_back_write(true);
    store_->take_back();
  });
}

// Pages that this run stored after damaged ones are worthless too: discards all segments of the path, and
// stores nothing more.
void PrefixCache::distrust(Tokens history) {
  stop_storing();
  if (!store_) return;
  take_back_write(true);
  std::set<Hash256> segments;
  for (const PrefixPage& page : tree_.match(history).pages)
    if (page.disk.is_there()) segments.insert(page.disk.segment);
  for (const Hash256& segment : segments) {
    store_->discard(segment);
    tree_.forget_segment(segment);
  }
}

}  // namespace dsv32
