#include "prefix/prefix_cache.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

namespace dsv32 {
namespace {

// What a request to the disk costs before its first byte.
constexpr double kReadLatency = 0.02;
// Bytes a second, of a disk that has not been measured: what is slower shows soon.
constexpr double kAssumedReadRate = 1e9;
// A reading that was stopped, or hung, says little about the next one: it counts as one that was so many
// times slower than was believed.
constexpr double kMostSlowdown = 4;
constexpr char kSlowDisk[] = "the disk is taken for slower than computing";
// Fewer tokens are not read while nothing is known of speeds.
constexpr int64_t kLeastTokens = 256;
// The timeout of PrefetchPolicy::timeout, as HiCache has it.
constexpr double kTimeoutBase = 2.0, kTimeoutPerKiTokens = 0.1, kTimeoutMost = 30.0;
// As long as what is to be stored waits at the end for the store to open.
constexpr std::chrono::seconds kOpening{2};
// Paths that wait until they may be stored.
constexpr size_t kMostPaths = 64;
// Pages whose keys a write job holds in memory: with V3.2's sizes 34 MB.
constexpr int64_t kJobPages = 64;

int64_t whole_pages(size_t n_tokens) { return static_cast<int64_t>(n_tokens) / kPageTokens; }

PrefixStoreOptions store_options(const CachePlan& plan, const Hash256& fingerprint,
                                 const PrefixCacheOptions& options) {
  PrefixStoreOptions store;
  store.directory = options.directory;
  store.fingerprint = fingerprint;
  store.salt = options.salt;
  store.n_layers = plan.n_layers;
  store.rows_page_bytes = kPageTokens * plan.layout.row_bytes();
  store.keys_page_bytes = plan.layout.key_page_bytes();
  store.limits.max_bytes = options.max_bytes;
  store.limits.policy = options.eviction;
  return store;
}

}  // namespace

PrefixCache::PrefixCache(std::shared_ptr<LatentCache> pool, Identity identity,
                         const PrefixCacheOptions& options)
    : pool_keeper_(std::move(pool)),
      pool_(*pool_keeper_),
      options_(options),
      tree_(pool_, options.eviction),
      read_rate_(kAssumedReadRate) {
  pool_.set_reclaim([this](int64_t n_pages) { return reclaim(n_pages); });
  if (!options.directory.empty()) identity_ = std::move(identity);
  or_miss([this] { open_store(); });
}

// As soon as it is known whose pages these are; what the disk has of them is taken as it comes.
void PrefixCache::open_store() {
  const std::optional<Hash256> fingerprint = is_unidentified() ? identity_() : std::nullopt;
  if (fingerprint) {
    is_identified_ = true;
    heads_ = std::make_unique<HeadReader>(store_options(pool_.plan(), *fingerprint, options_),
                                          *options_.files, options_.warn);
  }
  take_heads(Clock::now());
}

void PrefixCache::take_heads(std::optional<Clock::time_point> until, bool just_opened) {
  if (!heads_) return;
  HeadReader::Told told = heads_->wait(until, just_opened);
  if (told.store && !store_) {
    reader_ = std::make_unique<PageReader>(told.store, pool_keeper_);
    writer_ = std::make_unique<PageWriter>(told.store, *options_.files, pool_keeper_);
    store_ = std::move(told.store);
  }
  if (told.speeds) {
    former_ = *told.speeds;
    if (prefill_rate_ == 0) prefill_rate_ = former_.prefill_tokens_per_second;
    if (former_.read_bytes_per_second > 0) read_rate_ = former_.read_bytes_per_second;
  }
  for (StoredSegment& segment : told.segments) attach(std::move(segment));
  if (!told.is_over) return;
  heads_.reset(), said_.clear();
  if (!store_) to_store_.clear();
  if (const std::vector<int32_t> wanted = std::exchange(prefetched_, {}); !wanted.empty())
    begin_reading(wanted, 0);
}

// As long as the first prompt that waits for them waits for pages; who comes later takes what is there.
std::optional<PrefixCache::Clock::time_point> PrefixCache::heads_until(int64_t n_tokens) {
  if (!heads_until_) heads_until_ = deadline(n_tokens);
  return *heads_until_;
}

bool PrefixCache::waits_for_heads(int64_t n_tokens) {
  if (!heads_) return false;
  const std::optional<Clock::time_point> until = heads_until(n_tokens);
  return !until || Clock::now() < *until;
}

PrefixCache::~PrefixCache() {
  const bool was_disowned = is_disowned_;
  or_miss([this] { flush(); });
  if (is_disowned_ && !was_disowned)
    options_.warn("prefix cache: the model has changed since it was opened; nothing of this run is kept");
  end_reading();
  const bool hangs = (heads_ && !heads_->stop()) || (writer_ && writer_->hangs());
  if (!hangs) or_miss([this] { keep_speeds(); });
  if (!hangs && store_) store_->record_model(options_.model_path);
  writer_.reset();
  if (reader_) {
    reader_->stop();
    take_back_reads();
  }
  pool_.set_reclaim({});
}

int64_t PrefixCache::n_in_pool(const PrefixTree::Match& match) {
  const auto missing =
      std::ranges::find_if(match.pages, [](const PrefixPage& page) { return !page.pool.is_there(); });
  return missing - match.pages.begin();
}

std::span<const int32_t> PrefixCache::first_pages(std::span<const int32_t> tokens, int64_t n_pages) {
  return tokens.first(static_cast<size_t>(n_pages * kPageTokens));
}

// Under its tokens from the prompt's first on, by way of its parents.
void PrefixCache::attach(StoredSegment segment) {
  const int64_t id = segment.id;
  std::vector<const StoredSegment*> chain{&(said_[id] = std::move(segment))};
  while (chain.back()->parent >= 0) chain.push_back(&said_.at(chain.back()->parent));
  std::vector<int32_t> path;
  for (size_t i = chain.size(); i-- > 0;) {
    const auto n_pages = i > 0 ? chain[i - 1]->first_page - chain[i]->first_page : chain[i]->n_pages();
    const std::span<const int32_t> own = first_pages(chain[i]->tokens, n_pages);
    path.insert(path.end(), own.begin(), own.end());
  }
  tree_.attach_segment(path, chain.front()->first_page, id, chain.front()->use);
}

void PrefixCache::note_prefill(int64_t n_tokens, double seconds) {
  if (n_tokens < kPageTokens || seconds <= 0) return;
  const double rate = static_cast<double>(n_tokens) / seconds;
  prefill_rate_ = prefill_rate_ > 0 ? (prefill_rate_ + rate) / 2 : rate;
}

double PrefixCache::prefill_seconds(int64_t n_tokens) const {
  return prefill_rate_ > 0 ? static_cast<double>(n_tokens) / prefill_rate_ : 0;
}

// Speeds vary from run to run: what is about the same is not written anew.
void PrefixCache::keep_speeds() {
  if (!store_ || !is_storing_ || heads_) return;
  const bool is_measured = noted_.seconds > 0 || former_.read_bytes_per_second > 0;
  const CacheSpeeds now{is_measured ? read_rate_ : 0, prefill_rate_};
  const auto is_like = [](double a, double b) { return std::abs(a - b) <= 0.2 * b; };
  if (!is_like(now.read_bytes_per_second, former_.read_bytes_per_second) ||
      !is_like(now.prefill_tokens_per_second, former_.prefill_tokens_per_second))
    store_->record_speeds(now);
}

// A better rate is believed at once, a worse one step by step.
void PrefixCache::note_reading() {
  const ReadStats now = store_->read_stats();
  const double seconds = now.seconds - noted_.seconds,
               rate = static_cast<double>(now.n_bytes - noted_.n_bytes) / seconds;
  noted_ = now;
  if (seconds <= 0 || (seconds < kReadLatency && rate < read_rate_)) return;
  read_rate_ = std::max(rate, read_rate_ / kMostSlowdown);
}

// Reading must be quicker than computing, as far as it is known how long that takes.
bool PrefixCache::is_worth_reading(int64_t n_tokens, int64_t n_pages) {
  if (options_.prefetch == PrefetchPolicy::wait_complete) return true;
  if (options_.least_tokens || prefill_rate_ <= 0) {
    if (n_tokens >= options_.least_tokens.value_or(kLeastTokens)) return true;
    why_none_ = "what is known of it is too short to be read";
    return false;
  }
  const CachePlan& plan = pool_.plan();
  const double n_bytes = static_cast<double>(
      n_pages * plan.n_layers * (kPageTokens * plan.layout.row_bytes() + plan.layout.key_page_bytes()));
  const double seconds = prefill_seconds(n_tokens);
  if (kReadLatency + n_bytes / read_rate_ < seconds) return true;
  why_none_ =
      seconds > kReadLatency ? kSlowDisk : "computing what is known of it is quicker than asking the disk";
  return false;
}

// For pages of so many tokens, from now on; nothing: there is none. Never longer than computing would take,
// when that is known.
std::optional<PrefixCache::Clock::time_point> PrefixCache::deadline(int64_t n_tokens) const {
  if (options_.prefetch == PrefetchPolicy::wait_complete) return std::nullopt;
  if (options_.prefetch == PrefetchPolicy::best_effort) return Clock::now();
  double seconds =
      std::min(kTimeoutMost, kTimeoutBase + kTimeoutPerKiTokens * static_cast<double>(n_tokens) / 1024);
  if (prefill_rate_ > 0) seconds = std::min(seconds, prefill_seconds(n_tokens));
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

void PrefixCache::use(const PrefixTree::Match& match) {
  tree_.use(match);
  std::vector<int64_t> segments;
  for (const PrefixPage& page : match.pages)
    if (page.disk.is_there() && (segments.empty() || segments.back() != page.disk.segment))
      segments.push_back(page.disk.segment);
  if (store_) store_->record_use(segments);
}

int64_t PrefixCache::restore(Timeline& timeline, Tokens tokens, int64_t n_held, Runs decoded) {
  int64_t n = n_held;
  or_miss([&] {
    std::vector<int32_t> history = pool_.history(tokens, decoded);
    std::copy_n(timeline.history().begin(), n_held, history.begin());
    n = try_restore(timeline, history, n_held);
  });
  return n;
}

int64_t PrefixCache::try_restore(Timeline& timeline, Tokens history, int64_t n_held) {
  locks_[&timeline] = lock_pages(history.first(static_cast<size_t>(n_held)));
  open_store();
  if (heads_) take_heads(heads_until(std::ssize(history)));
  prefetched_.clear();
  why_none_ = is_unidentified()                        ? "the model's bytes are still being hashed"
              : heads_                                 ? "the disk did not say in time what is known of it"
              : !options_.directory.empty() && !store_ ? "the folder of prefixes cannot be used"
              : tree_.n_pages() == 0                   ? "nothing is kept of this model with these settings"
                                                       : "no prefix of it is known";
  pump(false);
  const Tokens wanted = history.first(history.size() - 1);
  if (reading_ && n_wanted(wanted) <= 0 && lacks_pages(wanted)) end_reading();  // it is this one's turn
  begin_reading(wanted, n_held);
  // A disk that is not read is not measured either: from prompt to prompt it is believed to be less slow,
  // until it is tried again.
  if (why_none_ == kSlowDisk) read_rate_ *= 2;
  receive(wanted);
  PrefixTree::Match match = tree_.match(wanted);
  if (const int64_t n_pages = n_in_pool(match); n_pages < std::ssize(match.pages))
    match = tree_.match(first_pages(wanted, n_pages));
  if (match.n_tokens > 0) use(match);
  if (match.n_tokens <= n_held) return n_held;
  std::vector<PoolPage> pages;
  for (const PrefixPage& page : match.pages) pages.push_back(page.pool);
  PrefixTree::Lock lock = lock_pages(wanted.first(static_cast<size_t>(match.n_tokens)));
  pool_.adopt(timeline, pages, history.first(static_cast<size_t>(match.n_tokens)));
  locks_[&timeline] = std::move(lock);
  why_none_ = "";
  return match.n_tokens;
}

// A timeline's whole pages are no use to anyone who wants room. The page after them may be: once the tree has
// given it up, the timeline need not copy it.
PrefixTree::Lock PrefixCache::lock_pages(std::span<const int32_t> tokens) {
  return tree_.lock(tree_.match(first_pages(tokens, whole_pages(tokens.size()))));
}

void PrefixCache::forget(const Timeline& timeline) { locks_.erase(&timeline); }

void PrefixCache::remember(const Timeline& timeline, Tokens history) {
  or_miss([&] { try_remember(timeline, history); });
}

void PrefixCache::try_remember(const Timeline& timeline, Tokens history) {
  const int64_t n_pages = whole_pages(history.size());
  if (n_pages == 0) return;
  const Tokens path = first_pages(history, n_pages);
  std::vector<PrefixPage> pages;
  for (int64_t i = 0; i < n_pages; ++i) pages.push_back({.pool = timeline.page(i), .disk = {}});
  tree_.insert(path, pages);
  locks_[&timeline] = lock_pages(path);
  open_store();
  if (!is_storing_ || !(store_ ? store_->can_write() : waits_for_store())) return;
  std::erase_if(to_store_, [&](const std::vector<int32_t>& shorter) {
    return shorter.size() <= path.size() && std::equal(shorter.begin(), shorter.end(), path.begin());
  });
  if (!store_ && to_store_.size() == kMostPaths) to_store_.pop_front();
  to_store_.emplace_back(path.begin(), path.end());
  if (options_.write != WritePolicy::write_back) pump(false);
}

// Pages that would be lost are stored first, if there is memory for that. Last come those of reads and
// writes, which must be waited for; whoever asked for what is read computes instead.
int64_t PrefixCache::reclaim(int64_t n_pages) {
  int64_t n = take_back_reads();
  const int64_t n_at_first = tree_.n_pool_pages();
  if (n < n_pages && store_ && options_.write == WritePolicy::write_back)
    or_miss([&] {
      tree_.evict_pool(n_pages - n, [this](const PrefixTree::Leaving& leaving) { store_leaving(leaving); });
    });
  n += n_at_first - tree_.n_pool_pages();
  n += tree_.evict_pool(n_pages - n);
  if (n == 0 && !reads_.empty()) {
    end_reading();
    if (reader_->wait_idle()) n = take_back_reads();
  }
  if (n == 0 && writer_)
    if (std::unique_ptr<StoreJob> done = writer_->take(true)) {
      n = std::ssize(done->pages);
      take_back_write(std::move(done));
    }
  return n;
}

// Stamps are compared after what is stored was computed: it is of the bytes that were hashed.
bool PrefixCache::may_store() {
  if (is_storing_ && !identity_()) disown();
  return is_storing_;
}

void PrefixCache::stop_storing() {
  is_storing_ = false;
  to_store_.clear();
}

// Gives the writer what it may do next; `waits`: until nothing is left to do.
void PrefixCache::pump(bool waits) {
  if (!store_) return;
  for (;;) {
    if (std::unique_ptr<StoreJob> done = writer_->take(waits)) take_back_write(std::move(done));
    if (writer_->hangs()) return stop_storing();
    if (writer_->is_busy()) return;
    if (options_.write == WritePolicy::write_back && !waits) return;
    if (to_store_.empty() || !may_store()) return;
    std::unique_ptr<StoreJob> job = next_job();
    if (!job) return;
    writer_->start(std::move(job));
  }
}

void PrefixCache::take_back_write(std::unique_ptr<StoreJob> job) {
  for (const PoolPage& page : job->pages) pool_.release(page);
  // What the disk does not take now is not offered again.
  if (!job->is_complete) to_store_.clear();
  for (const StoreJob::Stored& stored : job->stored)
    tree_.attach_segment(first_pages(job->path, stored.first_page + stored.n_pages), stored.first_page,
                         stored.segment);
}

std::unique_ptr<StoreJob> PrefixCache::next_job() {
  for (; !to_store_.empty(); to_store_.pop_front()) {
    const std::vector<PageRun> runs = tree_.unstored(to_store_.front());
    if (!runs.empty()) return make_job(to_store_.front(), runs.front());
  }
  return nullptr;
}

std::unique_ptr<StoreJob> PrefixCache::make_job(std::span<const int32_t> path, PageRun run) {
  auto job = std::make_unique<StoreJob>();
  run.n_pages = std::min(run.n_pages, kJobPages);
  const std::span<const int32_t> tokens = first_pages(path, run.first_page + run.n_pages);
  const PrefixTree::Match match = tree_.match(tokens);
  job->path.assign(tokens.begin(), tokens.end());
  job->first_page = run.first_page;
  if (run.first_page > 0) job->before = match.pages[static_cast<size_t>(run.first_page - 1)].disk;
  for (int64_t i = run.first_page; i < run.first_page + run.n_pages; ++i) {
    const PoolPage page = match.pages[static_cast<size_t>(i)].pool;
    job->pages.push_back(page);
    std::vector<const uint8_t*>& rows = job->rows.emplace_back();
    for (int64_t layer = 0; layer < pool_.plan().n_layers; ++layer)
      rows.push_back(pool_.page_rows(page, layer));
  }
  job->keys = pool_.download_keys(job->pages);
  for (const PoolPage& page : job->pages) pool_.retain(page);
  return job;
}

// Pages that would be lost are stored while the one who wants their place waits.
void PrefixCache::store_leaving(const PrefixTree::Leaving& leaving) {
  for (bool is_complete = true; is_complete;) {
    if (std::unique_ptr<StoreJob> done = writer_->take(true)) {
      is_complete = done->is_complete;
      take_back_write(std::move(done));
    }
    if (writer_->hangs()) stop_storing();
    if (!is_complete || !may_store() || !store_->can_write()) return;
    const std::vector<PageRun> runs = tree_.unstored(leaving.tokens);
    if (runs.empty()) return;
    writer_->start(make_job(leaving.tokens, runs.front()));
  }
}

void PrefixCache::disown() {
  is_disowned_ = true;
  stop_storing();
  if (store_)
    or_miss([this] {
      if (std::unique_ptr<StoreJob> done = writer_->take(true)) take_back_write(std::move(done));
      store_->take_back();
    });
}

bool PrefixCache::tend() {
  if (!heads_ && to_store_.empty() && !(writer_ && writer_->is_busy())) return false;
  or_miss([this] {
    open_store();
    if (options_.write != WritePolicy::write_back) pump(false);
  });
  return heads_ || is_unidentified() || (writer_ && writer_->is_busy());
}

void PrefixCache::flush() {
  or_miss([this] {
    open_store();
    if (!to_store_.empty()) take_heads(Clock::now() + kOpening, true);
    pump(true);
  });
}

// What this run stored behind such pages is of no more worth than they are: all segments of the path go, and
// nothing is stored any more.
void PrefixCache::distrust(Tokens history) {
  stop_storing();
  if (!store_) return;
  if (std::unique_ptr<StoreJob> done = writer_->take(true)) take_back_write(std::move(done));
  std::set<int64_t> segments;
  for (const PrefixPage& page : tree_.match(history).pages)
    if (page.disk.is_there()) segments.insert(page.disk.segment);
  for (const int64_t segment : segments) {
    store_->discard(segment);
    tree_.forget_segment(segment);
  }
}

}  // namespace dsv32
