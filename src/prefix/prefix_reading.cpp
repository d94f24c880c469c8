// PrefixCache's reading: reserves pages of the pool, asks the disk, and inserts what has come in time into
// the tree.
#include <algorithm>
#include <ranges>
#include <utility>

#include "prefix/prefix_cache.h"

namespace dsv32 {
namespace {

constexpr int64_t kBatches = 16;                     // in which a long path is taken
constexpr size_t kMostKeyBytes = size_t{256} << 20;  // of pages that were read and are not in the tree
// The timeout of PrefetchPolicy::timeout in seconds, as in HiCache.
constexpr double kTimeoutBase = 2.0, kTimeoutPerKiTokens = 0.1, kTimeoutMost = 30.0;
constexpr std::chrono::hours kForever{24 * 365};

size_t key_bytes(const CachePlan& plan) {  // of a page
  return static_cast<size_t>(plan.n_layers * plan.layout.key_page_bytes());
}

}  // namespace

// For the pages of n_tokens, from now on. Never longer than computing them would take, once that is known.
PrefixCache::Deadline PrefixCache::deadline(int64_t n_tokens) const {
  if (options_.prefetch == PrefetchPolicy::wait_complete) return Clock::now() + kForever;
  if (options_.prefetch == PrefetchPolicy::best_effort) return Clock::now();
  const auto n = static_cast<double>(n_tokens);
  double seconds = std::min(kTimeoutMost, kTimeoutBase + kTimeoutPerKiTokens * n / 1024);
  if (prefill_rate_ > 0) seconds = std::min(seconds, n / prefill_rate_);
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

int64_t PrefixCache::ReadJob::n_there() const {
  return std::ranges::find_if(pages, [](const PageRead& read) { return read.state != PageRead::there; }) -
         pages.begin();
}

bool PrefixCache::ReadJob::has(int64_t n_pages) const {
  const int64_t n = n_there();
  return n >= std::min(n_pages, std::ssize(pages)) || pages[static_cast<size_t>(n)].state == PageRead::failed;
}

void PrefixCache::prefetch(Tokens tokens, Runs decoded) {
  if (tokens.empty()) return;
  or_miss<Error>([&] { begin_reading(pool_->history(tokens.first(tokens.size() - 1), decoded), 0); });
}

// The pages on disk that follow the whole pages of `wanted` in memory.
std::vector<PageHash> PrefixCache::stored_behind(Tokens wanted, const PrefixTree::Match& match) const {
  std::vector<PageHash> stored;
  const auto first = static_cast<size_t>(match.n_whole());
  PageHash hash = first > 0 ? match.pages[first - 1].hash : PageHash{};
  for (size_t i = first; store_ && (i + 1) * kPageTokens <= wanted.size(); ++i) {
    hash = next_hash(hash, page_of(wanted, i));
    if (!store_->has(hash)) break;
    stored.push_back(hash);
  }
  return stored;
}

// Begins to read the pages of `wanted` that the pool lacks, as many as it has room for.
void PrefixCache::begin_reading(Tokens wanted, int64_t n_held) {
  if (!store_ || reading_) return;
  take_back_reads();
  const PrefixTree::Match match = tree_.match(wanted);
  const std::vector<PageHash> stored = stored_behind(wanted, match);
  const Tokens path = first_pages(wanted, match.n_whole() + std::ssize(stored));
  if (stored.empty() || std::ssize(path) <= n_held) return;
  const auto job = std::make_shared<ReadJob>();
  job->path.assign(path.begin(), path.end());
  job->first_page = match.n_whole();
  job->lock = lock_pages(first_pages(path, match.n_whole()));
  reads_.push_back(job);
  try {
    for (const PageHash& hash : stored) {
      PrefixPage& page = job->pages.emplace_back(PrefixPage{{}, hash}).page;
      const std::optional<PoolPage> taken = pool_->take_page();
      if (taken) page.pool = *taken;
      if (!taken) break;
    }
    if (!job->pages.back().page.pool.is_there()) job->pages.pop_back();
    ask_readers(job);
  } catch (...) {
    give_up(*job);
    throw;
  }
  job->pages.empty() ? give_up(*job) : void(reading_ = job);
}

// How many pages are read ahead of those that the tree has: so many that a disk is busy, and no more than may
// have keys in memory.
int64_t PrefixCache::pages_ahead() const {
  return std::max(kReaders,
                  static_cast<int64_t>(kMostKeyBytes / std::max<size_t>(1, key_bytes(pool_->plan()))));
}

// Gives the readers the next pages.
void PrefixCache::ask_readers(const std::shared_ptr<ReadJob>& job) {
  const int64_t end = job->n_taken + pages_ahead();
  for (int64_t& i = job->n_asked; i < std::min(std::ssize(job->pages), end); ++i)
    if (!readers_->run([=, i = i, store = store_, pool = pool_] { load_page(*job, i, *store, *pool); }))
      job->pages[static_cast<size_t>(i)].state = PageRead::failed;
}

void PrefixCache::load_page(ReadJob& job, int64_t i, PageStore& store, LatentCache& pool) {
  PageRead& read = job.pages[static_cast<size_t>(i)];
  PageRead::State state = PageRead::waiting;
  if (!read.state.compare_exchange_strong(state, PageRead::reading)) return;
  const bool is_there = or_miss([&] {
    read.keys.resize(key_bytes(pool.plan()));
    const Tokens tokens = page_of(job.path, static_cast<size_t>(job.first_page + i));
    return store.load(read.page.hash, tokens, bytes_of(pool, read.page.pool, read.keys));
  });
  read.state = is_there ? PageRead::there : PageRead::failed;
}

// How many pages of the current read `wanted` can use.
int64_t PrefixCache::n_wanted(Tokens wanted) const {
  const int64_t n_common = std::ranges::mismatch(reading_->path, wanted).in1 - reading_->path.begin();
  return std::min((n_common + kPageTokens - 1) / kPageTokens - reading_->first_page,
                  std::ssize(reading_->pages));
}

PrefixCache::Readiness PrefixCache::readiness(Tokens tokens, Runs decoded) {
  if (tokens.empty()) return Readiness::is_ready;
  return or_miss<Error>(
      [&] { return receive(pool_->history(tokens.first(tokens.size() - 1), decoded), 0, false); });
}

// Adds the current read's pages that are there to the tree, with their keys, and gives the readers the next
// ones. A device that fails ends the read, and the next step too: false.
bool PrefixCache::take_pages() {
  ReadJob& job = *reading_;
  const bool is_taken = or_miss([&] {
    const int64_t n_there = job.n_there(), n_known = job.first_page + job.n_taken;
    std::vector<PoolPage> pages(static_cast<size_t>(n_known));
    std::vector<std::vector<uint8_t>> keys;
    for (PageRead& read : job.pages | std::views::take(n_there) | std::views::drop(job.n_taken))
      pages.push_back(read.page.pool), keys.push_back(std::move(read.keys));
    const Tokens path = first_pages(job.path, std::ssize(pages));
    if (!keys.empty()) pool_->publish(std::span(pages).last(keys.size()), keys);
    tree_.insert(path, pages);
    job.lock = lock_pages(path);
    job.n_taken = n_there;
    ask_readers(reading_);
    return true;
  });
  if (!is_taken) end_reading();
  return is_taken;
}

// Takes the pages that `wanted` can use as they come. `waits`: until all are taken, or the deadline; and ends
// another prompt's read, which else is left alone as long as that prompt may want it. A prompt that needs
// nothing from the disk does not wait for its turn. Each time costs as much as the path is long, so a long
// path takes more pages at a time, while the readers go on.
PrefixCache::Readiness PrefixCache::receive(Tokens wanted, int64_t n_held, bool waits) {
  for (begin_reading(wanted, n_held); reading_; begin_reading(wanted, n_held)) {
    const int64_t n = n_wanted(wanted);
    if (n <= 0 && stored_behind(wanted, tree_.match(wanted)).empty()) break;
    if (n <= 0 && !waits) return Readiness::waits_for_it;
    ReadJob& job = *reading_;
    if (job.n_taken >= n) {
      end_reading();
      continue;
    }
    if (!job.until) job.until = deadline(n * kPageTokens);
    const int64_t n_batch = std::clamp(n / kBatches, kReaders, std::max(kReaders, pages_ahead() / 2));
    const int64_t n_next = std::min(n, job.n_taken + n_batch);
    const bool is_there = readers_->wait(waits ? *job.until : Clock::now(), [&] { return job.has(n_next); });
    if (!is_there && Clock::now() < *job.until) return Readiness::is_read;
    bool goes_on = is_there && job.n_there() > job.n_taken;
    if (goes_on || waits) goes_on = take_pages() && goes_on;
    if (!goes_on && waits) end_reading();
    if (!goes_on) break;
  }
  return Readiness::is_ready;
}

void PrefixCache::end_reading() {
  if (!reading_) return;
  ++n_reads_ended_;
  give_up(*std::exchange(reading_, nullptr));
}

// Reads that have not begun never begin.
void PrefixCache::give_up(ReadJob& job) {
  for (PageRead& page : job.pages) {
    PageRead::State state = PageRead::waiting;
    page.state.compare_exchange_strong(state, PageRead::failed);
  }
  job.is_given_up = true;
  job.lock.reset();
  take_back_reads();
}

// Releases the pages of jobs that were given up, except those that a thread may still write to, and returns
// how many. Sequences and the tree have their own shares of pages.
int64_t PrefixCache::take_back_reads() {
  int64_t n = 0;
  std::erase_if(reads_, [&](const std::shared_ptr<ReadJob>& job) {
    if (!job->is_given_up) return false;
    bool is_idle = true;
    for (PageRead& read : job->pages)
      if (read.state == PageRead::reading)
        is_idle = false;
      else if (read.page.pool.is_there())
        pool_->release(std::exchange(read.page.pool, {})), ++n;
    return is_idle;
  });
  return n;
}

}  // namespace dsv32
