#include "prefix/prefix_cache.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace dsv32 {
namespace {

// Seconds from a request to the disk to its first byte.
constexpr double kReadLatency = 0.02;
// Bytes a second, assumed of a disk that has not been measured.
constexpr double kAssumedReadRate = 1e9;
// One slow read says little about the next: it lowers the estimated rate by at most this factor.
constexpr double kMostSlowdown = 4;
constexpr char kSlowDisk[] = "reading from the disk seems slower than computing";
// Fewer tokens are not read while the speed of computing is unknown.
constexpr int64_t kLeastTokens = 256;
// The timeout of PrefetchPolicy::timeout in seconds, as in HiCache.
constexpr double kTimeoutBase = 2.0, kTimeoutPerKiTokens = 0.1, kTimeoutMost = 30.0;
// How long flush() waits for the list of stored segments.
constexpr std::chrono::seconds kOpening{2};
constexpr std::chrono::hours kForever{24 * 365};
// Paths that wait until the store is open.
constexpr size_t kMostPaths = 64;

int64_t whole_pages(size_t n_tokens) { return static_cast<int64_t>(n_tokens) / kPageTokens; }

PrefixStoreOptions store_options(const CachePlan& plan, const Hash256& fingerprint,
                                 const PrefixCacheOptions& options) {
  return {.directory = options.directory,
          .salt = options.salt,
          .sizes = {.fingerprint = fingerprint,
                    .n_layers = plan.n_layers,
                    .rows_page_bytes = kPageTokens * plan.layout.row_bytes(),
                    .keys_page_bytes = plan.layout.key_page_bytes()},
          .limits = {.max_bytes = options.max_bytes, .min_free_bytes = {}, .policy = options.eviction}};
}

}  // namespace

PrefixCache::PrefixCache(std::shared_ptr<LatentCache> pool, Identity identity,
                         const PrefixCacheOptions& options)
    : pool_(std::move(pool)),
      options_(options),
      tree_(*pool_, options.eviction),
      read_rate_(kAssumedReadRate) {
  pool_->set_reclaim([this](int64_t n_pages) { return reclaim(n_pages); });
  if (!options.directory.empty()) identity_ = std::move(identity);
  attempt([this] { open_store(); });
}

PrefixCache::~PrefixCache() {
  const bool was_disowned = is_disowned_;
  attempt([this] { flush(); });
  if (is_disowned_ && !was_disowned)
    options_.warn("prefix cache: the model has changed since it was opened; nothing of this run is kept");
  end_reading();
  if (writer_) writer_->take(true);
  const bool write_hangs = writer_ && writer_->hangs();
  if ((!heads_ || heads_->stop()) && !write_hangs && store_) {
    attempt([this] { keep_speeds(); });
    store_->record_model(options_.model_path);
  }
  if (writer_) writer_->stop(write_hangs ? std::chrono::seconds(0) : Offload::kPatience);
  if (reader_) {
    reader_->stop();
    take_back_reads();
  }
  pool_->set_reclaim({});
}

// Opens the store once the fingerprint is known, and attaches the segments listed so far.
void PrefixCache::open_store() {
  if (is_unidentified() && (fingerprint_ = identity_())) {
    heads_ = offloaded<HeadReader>(store_options(pool_->plan(), *fingerprint_, options_), *options_.files,
                                   options_.warn);
    heads_->begin();
  }
  take_heads(Clock::now());
}

void PrefixCache::take_heads(Deadline until) {
  if (!heads_) return;
  HeadReader::Told told = heads_->wait_told(until);
  if (told.store && !store_) {
    reader_ = offloaded<PageReader>(told.store, pool_);
    writer_ = offloaded<PageWriter>(told.store, *options_.files, pool_);
    store_ = std::move(told.store);
  }
  if (told.speeds) {
    former_ = *told.speeds;
    if (prefill_rate_ == 0) prefill_rate_ = former_.prefill_tokens_per_second;
    if (former_.read_bytes_per_second > 0) read_rate_ = former_.read_bytes_per_second;
  }
  for (const StoredSegment& segment : told.segments) attach(segment);
  if (!told.is_over) return;
  heads_.reset(), attached_.clear();
  if (!store_) to_store_.clear();
  if (const std::vector<int32_t> wanted = std::exchange(prefetched_, {}); !wanted.empty())
    begin_reading(wanted, 0);
}

// The deadline that the first waiting prompt has for its pages; later prompts do not extend it.
PrefixCache::Deadline PrefixCache::heads_until(int64_t n_tokens) {
  if (!heads_until_) heads_until_ = deadline(n_tokens);
  return *heads_until_;
}

// Behind its parent, which was attached before it.
void PrefixCache::attach(const StoredSegment& segment) {
  Attached& behind = attached_[segment.parent];
  if (segment.first_page == 0) behind = {tree_.root(), 0};
  const PrefixTree::PageRef last = tree_.attach_behind(behind.last, behind.end_page - segment.first_page,
                                                       segment.tokens, segment.chain, segment.use);
  attached_[segment.chain] = {last, segment.first_page + segment.n_pages};
}

// --- speeds --------------------------------------------------------------------------------------

void PrefixCache::note_prefill(int64_t n_tokens, double seconds) {
  if (n_tokens < kPageTokens || seconds <= 0) return;
  const double rate = static_cast<double>(n_tokens) / seconds;
  prefill_rate_ = prefill_rate_ > 0 ? (prefill_rate_ + rate) / 2 : rate;
}

double PrefixCache::prefill_seconds(int64_t n_tokens) const {
  return prefill_rate_ > 0 ? static_cast<double>(n_tokens) / prefill_rate_ : 0;
}

// Speeds vary from run to run: they are written only when one has changed by more than 20 %.
void PrefixCache::keep_speeds() {
  if (!is_storing_ || heads_) return;
  const bool is_measured = noted_.seconds > 0 || former_.read_bytes_per_second > 0;
  const CacheSpeeds now{is_measured ? read_rate_ : 0, prefill_rate_};
  const auto is_like = [](double a, double b) { return std::abs(a - b) <= 0.2 * b; };
  if (!is_like(now.read_bytes_per_second, former_.read_bytes_per_second) ||
      !is_like(now.prefill_tokens_per_second, former_.prefill_tokens_per_second))
    store_->record_speeds(now);
}

// Adopts a better rate at once, a worse one step by step.
void PrefixCache::note_reading() {
  const ReadStats now = store_->read_stats();
  const double seconds = now.seconds - noted_.seconds,
               rate = static_cast<double>(now.n_bytes - noted_.n_bytes) / seconds;
  noted_ = now;
  if (seconds <= 0 || (seconds < kReadLatency && rate < read_rate_)) return;
  read_rate_ = std::max(rate, read_rate_ / kMostSlowdown);
}

// Reading must be quicker than computing, once the speed of computing is known.
bool PrefixCache::is_worth_reading(int64_t n_tokens, int64_t n_pages) {
  if (options_.prefetch == PrefetchPolicy::wait_complete) return true;
  if (options_.least_tokens || prefill_rate_ <= 0) {
    if (n_tokens >= options_.least_tokens.value_or(kLeastTokens)) return true;
    why_none_ = "its stored prefix is too short to be worth reading";
    return false;
  }
  const double n_bytes = static_cast<double>(n_pages) * static_cast<double>(store_->sizes().page_bytes());
  const double seconds = prefill_seconds(n_tokens);
  if (kReadLatency + n_bytes / read_rate_ < seconds) return true;
  why_none_ = seconds > kReadLatency ? kSlowDisk : "computing its stored prefix is quicker than reading it";
  return false;
}

// For the pages of n_tokens, from now on. Never longer than computing them would take, once that is known.
PrefixCache::Deadline PrefixCache::deadline(int64_t n_tokens) const {
  if (options_.prefetch == PrefetchPolicy::wait_complete) return Clock::now() + kForever;
  if (options_.prefetch == PrefetchPolicy::best_effort) return Clock::now();
  double seconds =
      std::min(kTimeoutMost, kTimeoutBase + kTimeoutPerKiTokens * static_cast<double>(n_tokens) / 1024);
  if (prefill_rate_ > 0) seconds = std::min(seconds, prefill_seconds(n_tokens));
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

// --- for prompts and sequences -------------------------------------------------------------------

int64_t PrefixCache::restore(CachedSequence& sequence, Tokens tokens, int64_t n_held, Runs decoded) {
  int64_t n = n_held;
  attempt([&] {
    std::vector<int32_t> history = pool_->history(tokens, decoded);
    std::copy_n(sequence.history().begin(), n_held, history.begin());
    n = try_restore(sequence, history, n_held);
  });
  return n;
}

int64_t PrefixCache::try_restore(CachedSequence& sequence, Tokens history, int64_t n_held) {
  locks_[&sequence] = lock_pages(history.first(static_cast<size_t>(n_held)));
  open_store();
  if (heads_) take_heads(heads_until(std::ssize(history)));
  prefetched_.clear();
  why_none_ = is_unidentified()                        ? "the model's bytes are still being hashed"
              : heads_                                 ? "the disk did not list its prefixes in time"
              : !options_.directory.empty() && !store_ ? "the folder of prefixes cannot be used"
              : tree_.n_pages() == 0 ? "nothing is stored for this model with these settings"
                                     : "no prefix of it is known";
  pump(false);
  const Tokens wanted = history.first(history.size() - 1);
  if (reading_ && n_wanted(wanted) <= 0 && lacks_pages(wanted)) end_reading();  // this prompt's turn has come
  begin_reading(wanted, n_held);
  // A disk that is not read is not measured: raise its rate with each prompt until it is tried again.
  if (why_none_ == kSlowDisk) read_rate_ *= 2;
  receive(wanted);
  PrefixTree::Match match = tree_.match(wanted);
  if (match.n_in_pool() < match.n_pages()) match = tree_.match(first_pages(wanted, match.n_in_pool()));
  if (match.n_tokens > 0) use(match);
  if (match.n_tokens <= n_held) return n_held;
  std::vector<PoolPage> pages;
  for (const PrefixPage& page : match.pages) pages.push_back(page.pool);
  PrefixTree::Lock lock = lock_pages(wanted.first(static_cast<size_t>(match.n_tokens)));
  pool_->adopt(sequence, pages, history.first(static_cast<size_t>(match.n_tokens)));
  locks_[&sequence] = std::move(lock);
  why_none_ = "";
  return match.n_tokens;
}

void PrefixCache::use(const PrefixTree::Match& match) {
  tree_.use(match);
  std::vector<Hash256> segments;
  for (const PrefixPage& page : match.pages)
    if (page.disk.is_there() && (segments.empty() || segments.back() != page.disk.segment))
      segments.push_back(page.disk.segment);
  if (store_) store_->record_use(segments);
}

// Locks only the whole pages of a sequence against eviction. Once the tree has evicted the page after them,
// the sequence need not copy it.
PrefixTree::Lock PrefixCache::lock_pages(Tokens tokens) {
  return tree_.lock(tree_.match(first_pages(tokens, whole_pages(tokens.size()))));
}

void PrefixCache::forget(const CachedSequence& sequence) { locks_.erase(&sequence); }

void PrefixCache::remember(const CachedSequence& sequence, Tokens history) {
  attempt([&] {
    const int64_t n_pages = whole_pages(history.size());
    if (n_pages == 0) return;
    const Tokens path = first_pages(history, n_pages);
    std::vector<PrefixPage> pages;
    for (int64_t i = 0; i < n_pages; ++i) pages.push_back({.pool = sequence.page(i), .disk = {}});
    tree_.insert(path, pages);
    locks_[&sequence] = lock_pages(path);
    open_store();
    if (!is_storing_ || !(store_ ? store_->can_write() : is_unidentified() || heads_)) return;
    std::erase_if(to_store_, [&](const std::vector<int32_t>& shorter) {
      return shorter.size() <= path.size() && std::equal(shorter.begin(), shorter.end(), path.begin());
    });
    if (!store_ && to_store_.size() == kMostPaths) to_store_.pop_front();
    to_store_.emplace_back(path.begin(), path.end());
    if (options_.write != WritePolicy::write_back) pump(false);
  });
}

bool PrefixCache::tend() {
  if (!heads_ && to_store_.empty() && !(writer_ && writer_->is_busy())) return false;
  attempt([this] {
    open_store();
    if (options_.write != WritePolicy::write_back) pump(false);
  });
  return heads_ || is_unidentified() || (writer_ && writer_->is_busy());
}

void PrefixCache::flush() {
  attempt([this] {
    open_store();
    if (!to_store_.empty()) take_heads(Clock::now() + kOpening);
    pump(true);
  });
}

// Evicts pages. With write-back, pages that would be lost are stored first, while memory allows and the disk
// takes them. Pages of reads and writes in progress come last, because they must be waited for; a prompt
// whose read is cancelled computes instead.
int64_t PrefixCache::reclaim(int64_t n_pages) {
  int64_t n = take_back_reads();
  const int64_t n_at_first = tree_.n_pool_pages();
  bool is_taken = store_ && store_->can_write() && options_.write == WritePolicy::write_back;
  if (n < n_pages && is_taken)
    attempt([&] {
      tree_.evict_pool(n_pages - n, [&](Tokens leaving) { is_taken = is_taken && store_leaving(leaving); });
    });
  n += n_at_first - tree_.n_pool_pages();
  n += tree_.evict_pool(n_pages - n);
  if (n == 0 && !reads_.empty()) {
    end_reading();
    if (reader_->wait_idle()) n = take_back_reads();
  }
  if (n == 0 && writer_)
    if (const std::unique_ptr<StoreJob> done = take_back_write(true)) n = std::ssize(done->pages);
  return n;
}

}  // namespace dsv32
