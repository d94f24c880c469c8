// How PrefixCache reads the pages that a prompt lacks into pool and tree.
//
//   begin_reading   reserves pages of the pool and asks the disk
//   receive         waits as long as the policy says, and inserts the pages that came into the tree
//   end_reading     releases the pages that did not come: at once, or when their reads end
#include <algorithm>
#include <utility>

#include "prefix/prefix_cache.h"

namespace dsv32 {

// A local disk lists its segments within kMoment. For a slower one, reading begins in tend(), when the list
// is complete.
void PrefixCache::prefetch(Tokens tokens, Runs decoded) {
  constexpr std::chrono::milliseconds kMoment{20};
  if (tokens.empty()) return;
  attempt([&] {
    take_heads(Clock::now() + kMoment);
    std::vector<int32_t> wanted = pool_->history(tokens.first(tokens.size() - 1), decoded);
    if (heads_)
      prefetched_ = std::move(wanted);
    else
      begin_reading(wanted, 0);
  });
}

// Begins to read the pages of `wanted` that the pool lacks, as many as it has room for.
void PrefixCache::begin_reading(Tokens wanted, int64_t n_held) {
  if (!store_ || reading_) return;
  take_back_reads();
  const PrefixTree::Match match = tree_.match(wanted);
  const int64_t n_pages = match.n_pages(), first_page = match.n_in_pool();
  if (first_page == n_pages || match.n_tokens <= n_held) return;
  if (!is_worth_reading(match.n_tokens - std::max(n_held, first_page * kPageTokens), n_pages - first_page))
    return;
  auto reading = std::make_unique<Reading>();
  reading->tokens = tree_.tokens_of(match);
  reading->lock = tree_.lock(match);
  reading->first_page = first_page;
  reading->job = reads_.emplace_back(std::make_shared<ReadJob>());
  try {
    if (ask_for(reading->job, std::span(match.pages).subspan(static_cast<size_t>(first_page))))
      reading_ = std::move(reading);
  } catch (...) {
    give_up(*reading->job);
    throw;
  }
  if (reading) give_up(*reading->job);
}

// Asks the reader for the leading `pages` that are not in the pool, as many as it has room for. False: for
// none.
bool PrefixCache::ask_for(const std::shared_ptr<ReadJob>& job, std::span<const PrefixPage> pages) {
  for (const PrefixPage& page : pages) {
    if (page.pool.is_there()) break;
    PageRead& read = job->pages.emplace_back();
    read.from = page.disk;
    read.rows.resize(static_cast<size_t>(pool_->plan().n_layers));
    const std::optional<PoolPage> taken = pool_->take_page();
    if (!taken) {
      job->pages.pop_back();
      break;
    }
    read.pool = *taken;
    for (size_t layer = 0; layer < read.rows.size(); ++layer)
      read.rows[layer] = pool_->page_rows(*taken, static_cast<int64_t>(layer));
  }
  if (!job->pages.empty() && reader_->read(job)) return true;
  why_none_ = job->pages.empty() ? "the context has no room for its stored prefix"
                                 : "the system gave no thread to read it";
  return false;
}

// How many pages of the current read `wanted` can use.
int64_t PrefixCache::n_wanted(Tokens wanted) const {
  const int64_t n_common = std::ranges::mismatch(reading_->tokens, wanted).in1 - reading_->tokens.begin();
  return std::min((n_common + kPageTokens - 1) / kPageTokens - reading_->first_page,
                  std::ssize(reading_->job->pages));
}

// Waits for more pages, at most until `until`, and publishes those that came.
PageReader::Progress PrefixCache::take(Deadline until) {
  const PageReader::Progress progress = reader_->wait_pages(*reading_->job, reading_->n_taken, until);
  publish(reading_->n_taken, progress.n_there);
  reading_->n_taken = progress.n_there;
  return progress;
}

// Whether the disk has pages of `wanted` that the pool lacks. The disk is read for one prompt at a time.
bool PrefixCache::lacks_pages(Tokens wanted) const {
  const PrefixTree::Match match = tree_.match(wanted);
  return match.n_in_pool() < match.n_pages();
}

// Takes keys as they come, because reading pauses while many wait. Leaves another prompt's read alone as long
// as that prompt may want it; a prompt that needs nothing from the disk does not wait for its turn.
PrefixCache::Readiness PrefixCache::readiness(Tokens tokens, Runs decoded) {
  Readiness readiness = Readiness::is_ready;
  attempt([&] {
    const std::vector<int32_t> wanted =
        pool_->history(tokens.first(tokens.size() - std::min<size_t>(tokens.size(), 1)), decoded);
    take_heads(Clock::now());
    if (heads_ && Clock::now() < heads_until(std::ssize(tokens))) return void(readiness = Readiness::is_read);
    begin_reading(wanted, 0);
    const int64_t n = reading_ ? n_wanted(wanted) : 0;
    if (n <= 0) {
      if (reading_ && lacks_pages(wanted)) readiness = Readiness::waits_for_it;
      return;
    }
    if (!reading_->until) reading_->until = deadline(std::ssize(reading_->job->pages) * kPageTokens);
    const PageReader::Progress progress = take(Clock::now());
    if (!progress.is_over && progress.n_there < n && Clock::now() < *reading_->until)
      readiness = Readiness::is_read;
  });
  return readiness;
}

// Takes the pages of the current read that `wanted` can use and that come before the deadline.
void PrefixCache::receive(Tokens wanted) {
  const int64_t n = reading_ ? n_wanted(wanted) : 0;
  if (n <= 0) return;
  const Deadline until = reading_->until.value_or(deadline(n * kPageTokens));
  PageReader::Progress progress;
  try {
    progress = take(Clock::now());
    for (int64_t n_known = -1; progress.n_there < n && progress.n_there > n_known && !progress.is_over;) {
      n_known = progress.n_there;
      progress = take(until);
    }
    if (progress.n_there > 0) insert_received(progress.n_there);
  } catch (...) {
    end_reading();
    throw;
  }
  const DiskPage failed =
      progress.has_failed ? reading_->job->pages[static_cast<size_t>(progress.n_there)].from : DiskPage();
  end_reading();
  note_reading();
  why_none_ = failed.is_there() ? "its stored prefix is damaged or cannot be read"
                                : "the disk did not give its stored prefix in time";
  if (failed.is_there()) tree_.forget_segment(failed.segment);  // nor are its other pages read
}

// Hands pages [begin, end) of the read, with their keys, to the device.
void PrefixCache::publish(int64_t begin, int64_t end) {
  if (begin == end) return;
  std::vector<PoolPage> pages;
  for (int64_t i = begin; i < end; ++i) pages.push_back(reading_->job->pages[static_cast<size_t>(i)].pool);
  pool_->publish(pages, reader_->take_keys(*reading_->job, begin, end));
}

// The first n_pages of the read join the tree.
void PrefixCache::insert_received(int64_t n_pages) {
  const Tokens path = first_pages(reading_->tokens, reading_->first_page + n_pages);
  std::vector<PrefixPage> pages(path.size() / kPageTokens);  // the tree has those ahead of the read
  for (int64_t i = 0; i < n_pages; ++i)
    pages[static_cast<size_t>(reading_->first_page + i)].pool =
        reading_->job->pages[static_cast<size_t>(i)].pool;
  tree_.insert(path, pages);
}

void PrefixCache::end_reading() {
  if (!reading_) return;
  ++n_reads_ended_;
  give_up(*std::exchange(reading_, nullptr)->job);
}

void PrefixCache::give_up(ReadJob& job) {
  reader_->give_up(job);
  take_back_reads();
}

// Releases the pages of jobs that were given up, except those that a thread may still write to, and returns
// how many. Sequences and the tree have their own shares of pages.
int64_t PrefixCache::take_back_reads() {
  int64_t n = 0;
  std::erase_if(reads_, [&](const std::shared_ptr<ReadJob>& job) {
    if (!job->is_given_up) return false;
    bool is_idle = true;
    for (PageRead& page : job->pages) {
      if (reader_->is_reading(page))
        is_idle = false;
      else if (page.pool.is_there())
        pool_->release(std::exchange(page.pool, {})), ++n;
    }
    return is_idle;
  });
  return n;
}

}  // namespace dsv32
