#include "prefix/store_threads.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace dsv32 {
namespace {

constexpr size_t kHeadThreads = 24;  // reads of 8 KiB: a remote disk does many at a time
// More than keep a disk busy: while some threads read, others verify.
constexpr size_t kPageThreads = 8;
// Large enough for the disk's full rate, small enough that the threads share a prompt.
constexpr size_t kRequestBytes = size_t{12} << 20;
constexpr size_t kMostKeyBytes = size_t{256} << 20;  // of keys that wait in memory

// Stores a job's pages segment by segment, in their order; stops at the first that is not stored.
void store_job(PrefixStore& store, StoreJob& job) {
  Hash256 parent = job.parent;
  const auto n_pages = std::ssize(job.pages);
  for (int64_t begin = 0, n; begin < n_pages; begin += n) {
    n = std::min(kMaxSegmentPages, n_pages - begin);
    std::vector<PageSource> sources;
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(begin + n); ++i)
      sources.push_back({job.rows[i], job.keys[i].data()});
    const auto tokens = std::span<const int32_t>(job.path).subspan(
        static_cast<size_t>((job.first_page + begin) * kPageTokens), static_cast<size_t>(n * kPageTokens));
    const std::optional<Hash256> segment = store.store(parent, job.first_page + begin, tokens, sources);
    if (!segment) return;
    job.stored.push_back({*segment, job.first_page + begin, n});
    parent = *segment;
  }
  job.is_complete = true;
}

}  // namespace

// --- heads ---------------------------------------------------------------------------------------

HeadReader::HeadReader(const PrefixStoreOptions& options, FileSystem& files, Warn warn)
    : options_(options), files_(files), warn_(std::move(warn)) {}

void HeadReader::begin() {
  {
    const Lock lock(mutex_);
    if (start(1) > 0) return;
    n_running_ = 1;
  }
  run();
}

HeadReader::Told HeadReader::wait_told(Deadline deadline) {
  Lock lock(mutex_);
  changed_.wait_until(lock, deadline, [this] { return n_running_ == 0; });
  told_.store = store_;
  told_.is_over = n_running_ == 0;
  return std::exchange(told_, {});
}

// Segments that were not read for lack of memory count as missing.
void HeadReader::work(Lock& lock) {
  if (!std::exchange(is_begun_, true)) open(lock);
  while (store_ && next_ < names_.size() && !is_ending_) {
    const std::string& name = names_[next_++];
    lock.unlock();
    std::vector<StoredSegment> found = store_->find(name);
    lock.lock();
    std::ranges::move(found, std::back_inserter(told_.segments));
  }
}

// Runs on the first thread, and starts the others.
void HeadReader::open(Lock& lock) {
  lock.unlock();
  std::shared_ptr<PrefixStore> opened = PrefixStore::open(options_, files_, warn_);
  std::vector<std::string> found = opened ? opened->segment_files() : std::vector<std::string>{};
  lock.lock();
  store_ = opened, names_ = std::move(found);
  if (!opened) return;
  start(std::min(kHeadThreads, names_.size()));
  lock.unlock();
  const CacheSpeeds speeds = opened->speeds();
  lock.lock();
  told_.speeds = speeds;
}

// --- pages from the disk -------------------------------------------------------------------------

PageReader::PageReader(std::shared_ptr<PrefixStore> store, std::shared_ptr<const void> pool)
    : pool_(std::move(pool)),
      store_(std::move(store)),
      key_bytes_(static_cast<size_t>(store_->sizes().n_layers * store_->sizes().keys_page_bytes)) {}

// Starts as many threads as there are requests, up to kPageThreads.
bool PageReader::read(std::shared_ptr<ReadJob> job) {
  const std::vector<PageRead>& pages = job->pages;
  const size_t n_most = std::clamp<size_t>(kRequestBytes / store_->sizes().page_bytes(), 1, kMaxSegmentPages);
  std::deque<Request> requests;
  for (size_t begin = 0, end = 0; begin < pages.size(); begin = end) {
    const DiskPage first = pages[begin].from;
    for (end = begin + 1; end < pages.size() && end - begin < n_most; ++end)
      if (pages[end].from != DiskPage{first.segment, first.number + static_cast<int32_t>(end - begin)}) break;
    requests.push_back({job, begin, end});
  }
  const Lock lock(mutex_);
  const size_t n_wanted = std::min(kPageThreads, requests.size());
  if (start(n_wanted - std::min(n_wanted, n_running_)) == 0) return false;
  requests_ = std::move(requests);
  changed_.notify_all();
  return true;
}

PageReader::Progress PageReader::wait_pages(const ReadJob& job, int64_t n_known, Deadline deadline) {
  Progress progress;
  Lock lock(mutex_);
  changed_.wait_until(lock, deadline, [&] {
    const auto first = std::ranges::find_if(
        job.pages, [](const PageRead& page) { return page.state != PageRead::State::there; });
    progress.n_there = first - job.pages.begin();
    progress.has_failed = first != job.pages.end() && first->state == PageRead::State::failed;
    progress.is_over = first == job.pages.end() || progress.has_failed;
    return progress.is_over || progress.n_there > n_known;
  });
  return progress;
}

std::vector<std::vector<uint8_t>> PageReader::take_keys(ReadJob& job, int64_t begin, int64_t end) {
  std::vector<std::vector<uint8_t>> keys;
  const Lock lock(mutex_);
  for (int64_t i = begin; i < end; ++i) {
    PageRead& page = job.pages[static_cast<size_t>(i)];
    keys.push_back(std::move(page.keys));
    drop_keys(page);
  }
  changed_.notify_all();
  return keys;
}

void PageReader::give_up(ReadJob& job) {
  const Lock lock(mutex_);
  job.is_given_up = true;
  std::erase_if(requests_, [&](const Request& request) { return request.job.get() == &job; });
  for (PageRead& page : job.pages)
    if (page.state != PageRead::State::reading) drop_keys(page);
  changed_.notify_all();
}

bool PageReader::wait_idle() {
  Lock lock(mutex_);
  const auto is_idle = [this] { return n_reading_ == 0; };
  hangs_ = !(hangs_ ? is_idle() : changed_.wait_for(lock, kPatience, is_idle));
  return !hangs_;
}

bool PageReader::is_reading(const PageRead& page) {
  const Lock lock(mutex_);
  return page.state == PageRead::State::reading;
}

void PageReader::drop_keys(PageRead& page) {
  if (page.has_keys) n_key_bytes_ -= key_bytes_;
  page.has_keys = false;
  page.keys = {};
}

// While no keys are in memory the first request may begin, even over the limit.
bool PageReader::can_begin() const {
  if (requests_.empty()) return false;
  return n_key_bytes_ == 0 || n_key_bytes_ + requests_.front().pages().size() * key_bytes_ <= kMostKeyBytes;
}

void PageReader::work(Lock& lock) {
  for (;;) {
    changed_.wait(lock, [this] { return is_ending_ || can_begin(); });
    if (is_ending_) return;
    const Request request = std::move(requests_.front());
    requests_.pop_front();
    for (PageRead& page : request.pages()) page.state = PageRead::State::reading, page.has_keys = true;
    n_key_bytes_ += request.pages().size() * key_bytes_;
    ++n_reading_;
    lock.unlock();
    const bool is_there = load(request);
    lock.lock();
    --n_reading_;
    for (PageRead& page : request.pages()) {
      page.state = is_there ? PageRead::State::there : PageRead::State::failed;
      if (!is_there || request.job->is_given_up) drop_keys(page);
    }
    changed_.notify_all();
  }
}

bool PageReader::load(const Request& request) const {
  return or_miss([&] {
    std::vector<PageTarget> targets;
    for (PageRead& page : request.pages()) {
      page.keys.resize(key_bytes_);
      targets.push_back({page.rows, page.keys.data()});
    }
    return store_->load_pages(request.pages().front().from, targets);
  });
}

// --- pages to the disk ---------------------------------------------------------------------------

PageWriter::PageWriter(std::shared_ptr<PrefixStore> store, FileSystem& files,
                       std::shared_ptr<const void> pool)
    : pool_(std::move(pool)), store_(std::move(store)), files_(files) {}

bool PageWriter::is_busy() {
  const Lock lock(mutex_);
  return job_ != nullptr;
}

void PageWriter::write(std::unique_ptr<StoreJob> job) {
  const Lock lock(mutex_);
  job_ = std::move(job);
  is_done_ = start(n_running_ == 0 ? 1 : 0) == 0;
  changed_.notify_all();
}

std::unique_ptr<StoreJob> PageWriter::take(bool waits) {
  Lock lock(mutex_);
  const auto is_idle = [this] { return !job_ || is_done_; };
  while (waits && !hangs_ && !is_idle()) {
    const uint64_t n_seen = files_.n_writes_done;
    hangs_ = !changed_.wait_for(lock, kPatience, is_idle) && n_seen == files_.n_writes_done;
  }
  return is_idle() ? std::move(job_) : nullptr;
}

void PageWriter::work(Lock& lock) {
  for (;;) {
    const auto is_wanted = [this] { return job_ && !is_done_; };
    changed_.wait(lock, [&] { return is_ending_ || is_wanted(); });
    if (!is_wanted()) return;
    lock.unlock();
    or_miss([&] { store_job(*store_, *job_); });
    lock.lock();
    is_done_ = true;
    changed_.notify_all();
  }
}

}  // namespace dsv32
