// How PrefixCache reads: from what a prompt lacks in the pool to pages in the tree.
//
//   begin_reading   reserves pages of the pool and asks the disk
//   receive         waits, as long as the policy says; what has come joins the tree
//   end_reading     gives back what has not: at once, or when the reads that are in progress end
#include <algorithm>
#include <utility>

#include "engine/prefix_cache.h"

namespace dsv32 {

void PrefixCache::prefetch(std::span<const int32_t> tokens) {
  if (!tokens.empty()) begin_reading(tokens.first(tokens.size() - 1), 0);
}

// Asks the disk for the pages that the pool lacks, as far as the pool has room for them.
void PrefixCache::begin_reading(std::span<const int32_t> wanted, int64_t n_held) {
  if (!store_ || reading_) return;
  take_back_reads();
  const PrefixTree::Match match = tree_.match(wanted);
  const int64_t n_pages = std::ssize(match.pages), first_page = n_in_pool(match);
  if (first_page == n_pages || match.n_tokens <= n_held) return;
  if (!is_worth_reading(match.n_tokens - std::max(n_held, first_page * kPageTokens), n_pages - first_page))
    return;
  auto reading = std::make_unique<Reading>();
  reading->lock = tree_.lock(match);
  reading->tokens = tree_.tokens_of(match);
  reading->first_page = first_page;
  reading->job = std::make_shared<ReadJob>();
  for (int64_t i = first_page; i < n_pages && !match.pages[static_cast<size_t>(i)].pool.is_there(); ++i) {
    const std::optional<PoolPage> taken = pool_.take_page();
    if (!taken) break;
    PageRead& read = reading->job->pages.emplace_back();
    read.from = match.pages[static_cast<size_t>(i)].disk, read.pool = *taken;
    for (int64_t layer = 0; layer < pool_.plan().n_layers; ++layer)
      read.rows.push_back(pool_.page_rows(*taken, layer));
  }
  reader_->start(reading->job);
  reading_ = std::move(reading);
}

// Takes what comes before the deadline of the pages that `wanted` has in common with what is read.
void PrefixCache::receive(std::span<const int32_t> wanted) {
  if (!reading_) return;
  const ReadJob& job = *reading_->job;
  const int64_t n_common = std::ranges::mismatch(reading_->tokens, wanted).in1 - reading_->tokens.begin();
  const int64_t n_wanted =
      std::min((n_common + kPageTokens - 1) / kPageTokens - reading_->first_page, std::ssize(job.pages));
  const auto until = deadline(n_wanted * kPageTokens);
  PageReader::Progress progress;
  for (int64_t n_known = -1; progress.n_there < n_wanted && progress.n_there > n_known;) {
    n_known = progress.n_there;
    progress = reader_->wait(job, n_known, until);
    publish(n_known, progress.n_there);
    if (progress.is_over) break;
  }
  if (progress.n_there > 0) insert_received(progress.n_there);
  const DiskPage failed =
      progress.has_failed ? job.pages[static_cast<size_t>(progress.n_there)].from : DiskPage();
  end_reading();
  if (failed.is_there()) tree_.forget_segment(failed.segment);  // nor is the rest of it asked for again
}

// Pages of the read become what the device sees.
void PrefixCache::publish(int64_t begin, int64_t end) {
  if (begin == end) return;
  std::vector<PoolPage> pages;
  for (int64_t i = begin; i < end; ++i) pages.push_back(reading_->job->pages[static_cast<size_t>(i)].pool);
  pool_.publish(pages, reader_->take_keys(*reading_->job, begin, end));
}

// The first n_pages of the read join the tree.
void PrefixCache::insert_received(int64_t n_pages) {
  const std::span<const int32_t> path = first_pages(reading_->tokens, reading_->first_page + n_pages);
  std::vector<PrefixPage> known = tree_.match(path).pages;
  known.resize(path.size() / kPageTokens);  // a segment may have been forgotten meanwhile
  for (int64_t i = 0; i < n_pages; ++i)
    known[static_cast<size_t>(reading_->first_page + i)].pool =
        reading_->job->pages[static_cast<size_t>(i)].pool;
  tree_.insert(path, known);
}

void PrefixCache::end_reading() {
  if (!reading_) return;
  std::shared_ptr<ReadJob> job = std::move(reading_->job);
  reading_.reset();
  for (const size_t place : reader_->give_up(*job)) pool_.release(std::exchange(job->pages[place].pool, {}));
  ended_reads_.push_back(std::move(job));
  take_back_reads();
}

// Sequences and the tree have their own shares of the pages that came.
void PrefixCache::take_back_reads() {
  std::erase_if(ended_reads_, [this](const std::shared_ptr<ReadJob>& job) {
    if (!reader_->is_idle(*job)) return false;
    for (const PageRead& page : job->pages)
      if (page.pool.is_there()) pool_.release(page.pool);
    return true;
  });
}

}  // namespace dsv32
