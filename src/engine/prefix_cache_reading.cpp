// How PrefixCache reads: from what a prompt lacks in the pool to pages in the tree.
//
//   begin_reading         asks the disk, and reserves the pages of the pool
//   receive_first_layers  waits for the slab without which nothing can be computed
//   keep_arriving         a sequence holds the pages, and its step asks before each layer: wait_for_layer
//   finish_reading        all is there: the pages join the tree
//   abandon               or it did not come: the sequence gives them up
#include <algorithm>
#include <utility>

#include "base/stopwatch.h"
#include "engine/prefix_cache.h"

namespace dsv32 {
namespace {

int64_t n_in_pool(const PrefixTree::Match& match) {
  const auto missing =
      std::ranges::find_if(match.pages, [](const PrefixPage& page) { return !page.pool.is_there(); });
  return missing - match.pages.begin();
}

}  // namespace

void PrefixCache::prefetch(std::span<const int32_t> tokens) { begin_reading(tokens, 0); }

// Asks the disk for the pages that the pool lacks, as far as the pool has room for them.
void PrefixCache::begin_reading(std::span<const int32_t> tokens, int64_t n_held) {
  if (!store_ || reading_ || tokens.size() < 2) return;
  take_back_reads();
  const PrefixTree::Match match = tree_.match(tokens.first(tokens.size() - 1));
  const int64_t n_pages = std::ssize(match.pages), first_page = n_in_pool(match);
  if (first_page == n_pages || match.n_tokens <= n_held) return;
  if (!is_worth_reading(match.n_tokens - std::max(n_held, first_page * kPageTokens), n_pages - first_page))
    return;
  std::vector<DiskPage> wanted;
  for (int64_t i = first_page; i < n_pages && !match.pages[static_cast<size_t>(i)].pool.is_there(); ++i)
    wanted.push_back(match.pages[static_cast<size_t>(i)].disk);
  auto reading = std::make_unique<Reading>();
  reading->lock = tree_.lock(match);
  reading->tokens = tree_.tokens_of(match);
  reading->first_page = first_page, reading->begun = Clock::now();
  const SegmentInfo& sizes = store_->sizes();
  const bool is_left_in_page =
      match.n_tokens % kPageTokens != 0 && first_page + std::ssize(wanted) == n_pages;
  const size_t n_layered = wanted.size() - (is_left_in_page && sizes.n_slabs() > 1 ? 1 : 0);
  const std::span<const DiskPage> all(wanted);
  reading->pages = std::make_unique<PageArrival>(pool_, *reader_, sizes, all.first(n_layered));
  if (reading->pages->n_pages() == static_cast<int64_t>(n_layered) && n_layered < all.size()) {
    reading->last = std::make_unique<PageArrival>(pool_, *reader_, sizes, all.subspan(n_layered));
    reading->last->start();
  }
  reading->pages->start();
  reading_ = std::move(reading);
}

// Takes what comes before the deadline: the pages whose first layers are there. If all that is wanted of them
// is there, they join the tree.
void PrefixCache::receive_first_layers() {
  if (!reading_) return;
  PageArrival& pages = *reading_->pages;
  std::unique_ptr<PageArrival>& last = reading_->last;
  const int64_t n_slabs = store_->sizes().n_slabs(), n_all = pages.n_pages();
  const auto until = deadline((n_all + (last ? 1 : 0)) * kPageTokens);
  pages.cut(pages.receive(0, until));
  for (int64_t slab = 1; slab < n_slabs; ++slab) pages.receive(slab, Clock::now());
  if (options_.prefetch == PrefetchPolicy::best_effort) pages.cut(pages.n_whole());
  for (int64_t slab = 0; slab < n_slabs && last && pages.n_pages() == n_all; ++slab)
    last->receive(slab, until);
  drop_failed(pages.failed());
  if (last) drop_failed(last->failed());
  if (last && (pages.n_pages() < n_all || !last->is_whole())) end(std::move(last));
  if (pages.is_whole()) finish_reading();
}

// The other pages of a segment that failed will not come either, and it is not asked again.
void PrefixCache::drop_failed(const DiskPage& failed) {
  if (!failed.is_there()) return;
  PageArrival& pages = *reading_->pages;
  int64_t n = pages.n_whole();
  while (n < pages.n_pages() && pages.page(n).disk.segment != failed.segment) ++n;
  pages.cut(n);
  tree_.forget_segment(failed.segment);
}

// What is still wanted, from first_page on.
std::vector<PrefixPage> PrefixCache::Reading::wanted() const {
  std::vector<PrefixPage> wanted;
  for (const PageArrival* arrival : {pages.get(), last.get()})
    for (int64_t i = 0; arrival && i < arrival->n_pages(); ++i) wanted.push_back(arrival->page(i));
  return wanted;
}

// All that is wanted is there: the pages join the tree.
void PrefixCache::finish_reading() {
  const std::vector<PrefixPage> came = reading_->wanted();
  const int64_t n_pages = reading_->first_page + std::ssize(came);
  const std::span<const int32_t> path = first_pages(reading_->tokens, n_pages);
  std::vector<PrefixPage> known = tree_.match(path).pages;
  known.resize(static_cast<size_t>(n_pages));  // a segment may have been forgotten meanwhile
  for (size_t i = 0; i < came.size(); ++i)
    known[static_cast<size_t>(reading_->first_page) + i].pool = came[i].pool;
  tree_.insert(path, known);
  end_reading();
}

void PrefixCache::end_reading() {
  if (!reading_) return;
  end(std::move(reading_->pages));
  if (reading_->last) end(std::move(reading_->last));
  reading_.reset();
  take_back_reads();
}

void PrefixCache::end(std::unique_ptr<PageArrival> arrival) {
  arrival->cut(0);
  ended_reads_.push_back(std::move(arrival));
}

// Sequences and the tree have their own shares of the pages that came.
void PrefixCache::take_back_reads() {
  std::erase_if(ended_reads_, [](const auto& arrival) { return arrival->is_idle(); });
}

// --- a step that waits -----------------------------------------------------------------------------

// The match's pages from the front that are in the pool, or whose first layers are. A page that the match
// ends in must be there as a whole.
std::vector<PoolPage> PrefixCache::usable_pages(const PrefixTree::Match& match) const {
  const std::vector<PrefixPage> arriving = reading_ ? reading_->wanted() : std::vector<PrefixPage>();
  std::vector<PoolPage> usable;
  for (const PrefixPage& page : match.pages) {
    PoolPage pool = page.pool;
    if (!pool.is_there()) {
      const int64_t i = std::ssize(usable) - (reading_ ? reading_->first_page : 0);
      if (i < 0 || i >= std::ssize(arriving) || arriving[static_cast<size_t>(i)].disk != page.disk) break;
      const bool ends_here = (std::ssize(usable) + 1) * kPageTokens > match.n_tokens;
      if (ends_here && i < reading_->pages->n_pages()) break;
      pool = arriving[static_cast<size_t>(i)].pool;
    }
    usable.push_back(pool);
  }
  return usable;
}

// The sequence's next step waits for the layers that are missing of its pages.
void PrefixCache::keep_arriving(Sequence& sequence, std::span<const PoolPage> held) {
  if (!reading_) return;
  PageArrival& pages = *reading_->pages;
  const auto first = static_cast<size_t>(reading_->first_page);
  int64_t n_used = 0;
  for (size_t i = first; i < held.size() && n_used < pages.n_pages(); ++i, ++n_used)
    if (held[i] != pages.page(n_used).pool) break;
  if (n_used == 0) return end_reading();
  if (n_used < pages.n_pages() && reading_->last) end(std::move(reading_->last));
  pages.cut(n_used);
  reading_->reader = &sequence;
  reading_->patience = timeout_seconds(pages.n_pages() * kPageTokens);
}

// What the step computes meanwhile does not count as waiting.
void PrefixCache::wait_for_layer(int64_t layer) {
  if (!is_arriving()) return;
  PageArrival& pages = *reading_->pages;
  for (int64_t slab = 1; slab <= layer / store_->sizes().layers_per_slab; ++slab) {
    const Clock::time_point start = Clock::now();
    std::optional<Clock::time_point> until;
    if (options_.prefetch != PrefetchPolicy::wait_complete)
      until = start +
              std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(reading_->patience));
    if (pages.receive(slab, until) < pages.n_pages()) throw LayersLost();
    reading_->patience = std::max(0.0, reading_->patience - seconds_since(start));
  }
  if (pages.is_whole()) finish_reading();
}

int64_t PrefixCache::abandon(Sequence& sequence, int64_t n_held) {
  if (!reading_ || reading_->reader != &sequence) return n_held;
  pool_.download_keys({});  // what the step began may still write to its pages
  const DiskPage failed = reading_->pages->failed();
  const int64_t n_left = reading_->first_page * kPageTokens;
  pool_.truncate(sequence, n_left);
  lock(sequence, first_pages(reading_->tokens, reading_->first_page));
  end_reading();
  if (failed.is_there()) tree_.forget_segment(failed.segment);
  return n_left;
}

}  // namespace dsv32
