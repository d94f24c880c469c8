#include "prefix/prefix_cache.h"

#include <algorithm>
#include <ranges>
#include <utility>

namespace dsv32 {
namespace {

// Most pages of a job of the writer, which holds their keys in memory: 34 MB with V3.2's sizes.
constexpr size_t kJobPages = 64;
constexpr size_t kMostPaths = 64;            // that wait until the store is open
constexpr std::chrono::seconds kOpening{1};  // that a run waits for the list of stored pages

int64_t whole_pages(size_t n_tokens) { return static_cast<int64_t>(n_tokens) / kPageTokens; }

PageFormat page_format(const CachePlan& plan, const Hash256& fingerprint) {
  return {.fingerprint = fingerprint,
          .n_layers = plan.n_layers,
          .rows_page_bytes = kPageTokens * plan.layout.row_bytes(),
          .keys_page_bytes = plan.layout.key_page_bytes()};
}

}  // namespace

PrefixCache::PrefixCache(std::shared_ptr<LatentCache> pool, Identity identity,
                         const PrefixCacheOptions& options)
    : pool_(std::move(pool)), options_(options), tree_(*pool_, options.eviction) {
  pool_->set_reclaim([this](int64_t n_pages) { return reclaim(n_pages); });
  if (!options.directory.empty()) identity_ = std::move(identity);
  or_miss<Error>([this] { open_store(); });
}

PrefixCache::~PrefixCache() {
  const bool had_changed = is_model_changed_;
  or_miss<Error>([this] { flush(); });
  if (is_model_changed_ && !had_changed)
    options_.warn("prefix cache: the model has changed since it was opened; nothing of this run is kept");
  end_reading();
  take_back_write(true);
  or_miss([this] {  // the uses are on the disk when a task behind them has run
    const auto is_behind = std::make_shared<std::atomic<bool>>(false);
    if (store_ && !write_hangs_ && writer_->run([is_behind] { *is_behind = true; }))
      write_hangs_ = !writer_->wait(Clock::now() + Offload::kPatience, [&] { return is_behind->load(); });
  });
  if (writer_) writer_->stop(write_hangs_ ? std::chrono::seconds(0) : Offload::kPatience);
  if (readers_) readers_->stop();
  take_back_reads();
  pool_->set_reclaim({});
}

PageBytes PrefixCache::bytes_of(const LatentCache& pool, const PoolPage& page, std::vector<uint8_t>& keys) {
  const auto n_bytes = static_cast<size_t>(kPageTokens * pool.plan().layout.row_bytes());
  PageBytes bytes;
  for (int64_t layer = 0; layer < pool.plan().n_layers; ++layer)
    bytes.emplace_back(pool.page_rows(page, layer), n_bytes);
  bytes.emplace_back(keys);
  return bytes;
}

// --- the store -----------------------------------------------------------------------------------

// Begins to open the store once the fingerprint is known, and waits a moment for it; without a thread, opens
// it here.
void PrefixCache::open_store() {
  if (is_unidentified() && (fingerprint_ = identity_())) {
    writer_ = Offload::make(1), readers_ = Offload::make(kReaders);
    const auto opening = std::make_shared<Opening>();
    const auto open = [opening, options = options_, format = page_format(pool_->plan(), *fingerprint_)] {
      or_miss([&] { opening->store = PageStore::open(options, format); });
      opening->is_over = true;
    };
    if (!writer_->run(open)) open();
    opening_ = opening;
    const bool waits = options_.prefetch == PrefetchPolicy::wait_complete;
    writer_->wait(waits ? deadline(0) : Clock::now() + kOpening, [&] { return opening->is_over.load(); });
  }
  if (store_ || !opening_ || !opening_->is_over) return;
  store_ = opening_->store;
  if (!store_) to_store_.clear();
  if (store_) writer_->run([store = store_] { store->tidy(); });
}

void PrefixCache::note_prefill(int64_t n_tokens, double seconds) {
  if (n_tokens < kPageTokens || seconds <= 0) return;
  const double rate = static_cast<double>(n_tokens) / seconds;
  prefill_rate_ = prefill_rate_ > 0 ? (prefill_rate_ + rate) / 2 : rate;
}

// --- for prompts and sequences -------------------------------------------------------------------

int64_t PrefixCache::restore(CachedSequence& sequence, Tokens tokens, int64_t n_held, Runs decoded) {
  int64_t n = n_held;
  why_none_ = "there was too little memory";
  or_miss<Error>([&] {
    std::vector<int32_t> history = pool_->history(tokens, decoded);
    std::copy_n(sequence.history().begin(), n_held, history.begin());
    n = try_restore(sequence, history, n_held);
    why_none_ = n > n_held ? "" : why_nothing(Tokens(history).first(history.size() - 1));
  });
  return n;
}

// As half a sentence for the user.
const char* PrefixCache::why_nothing(Tokens wanted) const {
  if (is_unidentified()) return "the model's bytes are still being hashed";
  if (opening_ && !opening_->is_over) return "the disk did not list its prefixes in time";
  if (opening_ && !store_) return "the folder of prefixes cannot be used";
  if (tree_.n_pages() == 0 && (!store_ || store_->n_pages() == 0))
    return "nothing is stored for this model with these settings";
  return stored_behind(wanted, tree_.match(wanted)).empty()
             ? "no prefix of it is known"
             : "the disk did not give its stored prefix in time";
}

int64_t PrefixCache::try_restore(CachedSequence& sequence, Tokens history, int64_t n_held) {
  locks_[&sequence] = lock_pages(history.first(static_cast<size_t>(n_held)));
  store_waiting(false);
  const Tokens wanted = history.first(history.size() - 1);
  receive(wanted, n_held, true);
  const PrefixTree::Match match = tree_.match(wanted);
  if (match.n_tokens > 0) use(match);
  if (match.n_tokens <= n_held) return n_held;
  std::vector<PoolPage> pages;
  for (const PrefixPage& page : match.pages) pages.push_back(page.pool);
  PrefixTree::Lock lock = lock_pages(wanted.first(static_cast<size_t>(match.n_tokens)));
  pool_->adopt(sequence, pages, history.first(static_cast<size_t>(match.n_tokens)));
  locks_[&sequence] = std::move(lock);
  return match.n_tokens;
}

void PrefixCache::use(const PrefixTree::Match& match) {
  tree_.use(match);
  std::vector<PageHash> path;
  for (const PrefixPage& page : match.pages) path.push_back(page.hash);
  if (store_ && !write_hangs_) writer_->run([store = store_, path] { store->record_use(path); });
}

// Locks only the whole pages of a sequence against eviction. Once the tree has evicted the page after them,
// the sequence need not copy it.
PrefixTree::Lock PrefixCache::lock_pages(Tokens tokens) {
  return tree_.lock(tree_.match(first_pages(tokens, whole_pages(tokens.size()))));
}

void PrefixCache::forget(const CachedSequence& sequence) { locks_.erase(&sequence); }

void PrefixCache::remember(const CachedSequence& sequence, Tokens history) {
  or_miss<Error>([&] {
    const int64_t n_pages = whole_pages(history.size());
    if (n_pages == 0) return;
    const Tokens path = first_pages(history, n_pages);
    std::vector<PoolPage> pages;
    for (int64_t i = 0; i < n_pages; ++i) pages.push_back(sequence.page(i));
    tree_.insert(path, pages);
    locks_[&sequence] = lock_pages(path);
    open_store();
    if (!is_storing_ || (store_ ? !store_->can_write() : !is_opening())) return;
    std::erase_if(to_store_, [&](const std::vector<int32_t>& shorter) {
      return shorter.size() <= path.size() && std::equal(shorter.begin(), shorter.end(), path.begin());
    });
    if (!store_ && to_store_.size() == kMostPaths) to_store_.pop_front();
    to_store_.emplace_back(path.begin(), path.end());
    store_waiting(false);
  });
}

bool PrefixCache::store_more() {
  or_miss<Error>([this] { store_waiting(false); });
  return writing_ || (is_opening() && (opening_ || !to_store_.empty()));
}

void PrefixCache::flush() {
  or_miss<Error>([this] { store_waiting(true); });
}

// Evicts pages. With write-back, pages that would be lost are stored first, while memory allows and the disk
// takes them. Pages of reads and writes in progress come last, because they must be waited for; a prompt
// whose read is cancelled computes instead.
int64_t PrefixCache::reclaim(int64_t n_pages) {
  int64_t n = take_back_reads();
  const int64_t n_at_first = tree_.n_pages();
  bool is_taken = store_ && store_->can_write() && options_.write == WritePolicy::write_back;
  const auto store_path = [&](const PageHash& last, Tokens path) {
    if (is_taken && !store_->has(last)) is_taken = store_leaving(last, path);
  };
  if (n < n_pages && is_taken) or_miss<Error>([&] { tree_.evict(n_pages - n, store_path); });
  n += n_at_first - tree_.n_pages();
  n += tree_.evict(n_pages - n);
  if (n == 0 && !reads_.empty()) {
    end_reading();
    const auto is_idle = [&] {
      n += take_back_reads();
      return std::ranges::none_of(reads_, [](const auto& job) { return job->is_given_up; });
    };
    read_hangs_ =
        !readers_->wait(Clock::now() + (read_hangs_ ? std::chrono::seconds(0) : Offload::kPatience), is_idle);
  }
  return n > 0 ? n : take_back_write(true);
}

// --- storing: paths that wait become jobs of the writer, one at a time ----------------------------------

void PrefixCache::stop_storing() {
  is_storing_ = false;
  to_store_.clear();
}

// Gives the writer its next job, unless write-back lets it wait; `waits`: waits for it, and goes on until no
// job is left. Asks for the identity after the pages were computed, so the pages belong to the bytes that
// were hashed.
void PrefixCache::store_waiting(bool waits) {
  for (open_store(); store_;) {
    take_back_write(waits);
    if (write_hangs_) return stop_storing();
    if (writing_ || (options_.write == WritePolicy::write_back && !waits)) return;
    const std::optional<Hash256> now = to_store_.empty() ? fingerprint_ : identity_();
    if (!now) return;
    if (now != fingerprint_) remove_stored();
    const std::shared_ptr<StoreJob> job = next_job();
    if (!job) return;
    const auto write = [job, store = store_, pool = pool_] {  // co-owns what the pages lie in
      job->is_complete = store->store(job->pages) == std::ssize(job->pages);
      job->is_done = true;
    };
    for (const PoolPage& page : job->held) pool_->retain(page);
    writing_ = job;
    if (!or_miss([&] { return writer_->run(write); })) job->is_done = true;
  }
}

// Takes the finished job back; `waits`: waits for it, as long as something is written every 2 s. Returns how
// many pages were released.
int64_t PrefixCache::take_back_write(bool waits) {
  const auto is_done = [this] { return !writing_ || writing_->is_done; };
  while (waits && !write_hangs_ && !is_done()) {
    const uint64_t n_seen = options_.files->n_steps_done;
    write_hangs_ =
        !writer_->wait(Clock::now() + Offload::kPatience, is_done) && n_seen == options_.files->n_steps_done;
  }
  if (!writing_ || !is_done()) return 0;
  const std::shared_ptr<StoreJob> job = std::exchange(writing_, nullptr);
  for (const PoolPage& page : job->held) pool_->release(page);
  if (!job->is_complete) to_store_.clear();  // what the disk refuses is not offered again
  return std::ssize(job->held);
}

// The first run of pages that are in memory and not on disk; null: there is none.
std::shared_ptr<PrefixCache::StoreJob> PrefixCache::next_job() {
  for (; !to_store_.empty(); to_store_.pop_front()) {
    const PrefixTree::Match match = tree_.match(to_store_.front());
    const auto n_pages = static_cast<size_t>(match.n_whole());
    const auto is_stored = [&](size_t i) { return store_->has(match.pages[i].hash); };
    size_t first = 0;
    while (first < n_pages && is_stored(first)) ++first;
    size_t end = first;
    while (end < n_pages && end < first + kJobPages && !is_stored(end)) ++end;
    if (first == end) continue;
    const auto job = std::make_shared<StoreJob>();
    for (size_t i = first; i < end; ++i) job->held.push_back(match.pages[i].pool);
    const auto tokens = to_store_.front().begin();
    job->tokens.assign(tokens + first * kPageTokens, tokens + end * kPageTokens);
    job->keys = pool_->download_keys(job->held);
    for (size_t i = first, at = 0; i < end; ++i, ++at)
      job->pages.push_back({{i > 0 ? match.pages[i - 1].hash : PageHash{}, match.pages[i].hash},
                            page_of(job->tokens, at),
                            bytes_of(*pool_, job->held[at], job->keys[at])});
    return job;
  }
  return nullptr;
}

// Stores a path whose last page would be lost, ahead of all that wait, while the request that needs its
// memory waits. False when the disk did not take it.
bool PrefixCache::store_leaving(const PageHash& last, Tokens path) {
  std::list<std::vector<int32_t>> others{{path.begin(), path.end()}};
  others.swap(to_store_);
  store_waiting(true);
  to_store_.splice(to_store_.end(), others);
  return store_->has(last);
}

void PrefixCache::remove_stored() {
  is_model_changed_ = true;
  stop_storing();
  take_back_write(true);
  if (store_) store_->take_back();
}

// Pages that this run stored after damaged ones are worthless too: discards all pages of the path, and stores
// nothing more.
void PrefixCache::discard(Tokens history) {
  stop_storing();
  take_back_write(true);
  for (const PrefixPage& page : tree_.match(history).pages)
    if (store_) store_->discard(page.hash);
}

}  // namespace dsv32
