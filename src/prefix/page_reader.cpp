#include "prefix/page_reader.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>

#include "base/thread.h"

namespace dsv32 {
namespace {

// More than keep a disk busy: while some read, others verify what came.
constexpr size_t kThreads = 8;
// Enough for the disk's full rate, and few enough that the threads share a prompt.
constexpr size_t kRequestBytes = size_t{12} << 20;
constexpr size_t kMostKeyBytes = size_t{256} << 20;  // in memory at a time
constexpr std::chrono::seconds kPatience{2};         // with a read that hangs, at the end

// Consecutive pages of one segment.
struct Request {
  std::shared_ptr<ReadJob> job;
  size_t begin, end;
};

}  // namespace

// What the threads use.
struct PageReader::Shared : ThreadBody {
  Shared(std::shared_ptr<PrefixStore> store_, std::shared_ptr<const void> pool_)
      : pool(std::move(pool_)),
        store(std::move(store_)),
        key_bytes(static_cast<size_t>(store->sizes().n_layers * store->sizes().keys_page_bytes)) {}
  void run() noexcept override;
  void begin(Request& request);
  bool read(Request& request);
  void end(Request& request, bool is_there);
  bool can_begin() const;
  void drop_keys(PageRead& page) {
    if (page.has_keys) n_key_bytes -= key_bytes;
    page.has_keys = false;
    page.keys = {};
  }

  const std::shared_ptr<const void> pool;
  const std::shared_ptr<PrefixStore> store;
  const size_t key_bytes;  // of a page
  std::mutex mutex;        // for what follows
  std::condition_variable has_work, has_news;
  std::deque<Request> requests;
  size_t n_key_bytes = 0;  // of keys that wait in memory
  bool is_ending = false;
  int n_running = 0, n_reading = 0;
};

PageReader::PageReader(std::shared_ptr<PrefixStore> store, std::shared_ptr<const void> pool)
    : shared_(std::make_shared<Shared>(std::move(store), std::move(pool))) {
  threads_.reserve(kThreads);
}

PageReader::~PageReader() { stop(); }

void PageReader::stop() {
  if (threads_.empty()) return;
  bool has_ended = false;
  {
    std::unique_lock lock(shared_->mutex);
    shared_->is_ending = true;
    shared_->requests.clear();
    shared_->has_work.notify_all();
    has_ended = shared_->has_news.wait_for(lock, kPatience, [this] { return shared_->n_running == 0; });
  }
  for (std::thread& thread : threads_) has_ended ? thread.join() : leave_behind(thread);
  threads_.clear();
}

// As many threads as there are requests for.
bool PageReader::start(std::shared_ptr<ReadJob> job) {
  const std::vector<PageRead>& pages = job->pages;
  const uint64_t page_bytes = shared_->store->sizes().page_bytes();
  const size_t n_most = std::clamp<size_t>(kRequestBytes / page_bytes, 1, kMaxSegmentPages);
  std::deque<Request> requests;
  for (size_t begin = 0, end = 0; begin < pages.size(); begin = end) {
    const DiskPage first = pages[begin].from;
    for (end = begin + 1; end < pages.size() && end - begin < n_most; ++end)
      if (pages[end].from != DiskPage{first.segment, first.number + static_cast<int32_t>(end - begin)}) break;
    requests.push_back({job, begin, end});
  }
  const std::lock_guard lock(shared_->mutex);
  shared_->requests = std::move(requests);
  while (threads_.size() < std::min(kThreads, shared_->requests.size())) {
    if (!start_thread(threads_.emplace_back(), shared_)) {
      threads_.pop_back();
      break;
    }
    ++shared_->n_running;
  }
  if (threads_.empty()) shared_->requests.clear();
  shared_->has_work.notify_all();
  return !threads_.empty();
}

PageReader::Progress PageReader::wait(const ReadJob& job, int64_t n_known,
                                      std::optional<std::chrono::steady_clock::time_point> deadline) {
  Progress progress;
  std::unique_lock lock(shared_->mutex);
  const auto look = [&] {
    const auto first = std::ranges::find_if(
        job.pages, [](const PageRead& page) { return page.state != PageRead::State::there; });
    progress.n_there = first - job.pages.begin();
    progress.has_failed = first != job.pages.end() && first->state == PageRead::State::failed;
    progress.is_over = first == job.pages.end() || progress.has_failed;
    return progress.is_over || progress.n_there > n_known;
  };
  if (deadline)
    shared_->has_news.wait_until(lock, *deadline, look);
  else
    shared_->has_news.wait(lock, look);
  return progress;
}

std::vector<std::vector<uint8_t>> PageReader::take_keys(ReadJob& job, int64_t begin, int64_t end) {
  std::vector<std::vector<uint8_t>> keys;
  const std::lock_guard lock(shared_->mutex);
  for (int64_t i = begin; i < end; ++i) {
    PageRead& page = job.pages[static_cast<size_t>(i)];
    keys.push_back(std::move(page.keys));
    shared_->drop_keys(page);
  }
  shared_->has_work.notify_all();
  return keys;
}

void PageReader::give_up(ReadJob& job) {
  const std::lock_guard lock(shared_->mutex);
  job.is_given_up = true;
  std::erase_if(shared_->requests, [&](const Request& request) { return request.job.get() == &job; });
  for (PageRead& page : job.pages)
    if (page.state != PageRead::State::reading) shared_->drop_keys(page);
  shared_->has_work.notify_all();
}

bool PageReader::wait_idle() {
  std::unique_lock lock(shared_->mutex);
  const auto is_idle = [this] { return shared_->n_reading == 0; };
  hangs_ = !(hangs_ ? is_idle() : shared_->has_news.wait_for(lock, kPatience, is_idle));
  return !hangs_;
}

bool PageReader::is_reading(const PageRead& page) {
  const std::lock_guard lock(shared_->mutex);
  return page.state == PageRead::State::reading;
}

// What is wanted first is always begun: whoever waits for it takes the others too.
bool PageReader::Shared::can_begin() const {
  if (requests.empty()) return false;
  const Request& next = requests.front();
  return n_key_bytes == 0 || n_key_bytes + (next.end - next.begin) * key_bytes <= kMostKeyBytes;
}

void PageReader::Shared::run() noexcept {
  std::unique_lock lock(mutex);
  for (;;) {
    has_work.wait(lock, [this] { return is_ending || can_begin(); });
    if (is_ending) break;
    Request request = std::move(requests.front());
    requests.pop_front();
    begin(request);
    lock.unlock();
    const bool is_there = read(request);
    lock.lock();
    end(request, is_there);
    has_news.notify_all();
  }
  --n_running;
  has_news.notify_all();
}

void PageReader::Shared::begin(Request& request) {
  for (size_t i = request.begin; i < request.end; ++i) {
    request.job->pages[i].state = PageRead::State::reading;
    request.job->pages[i].has_keys = true;
  }
  n_key_bytes += (request.end - request.begin) * key_bytes;
  ++n_reading;
}

bool PageReader::Shared::read(Request& request) try {
  const std::span<PageRead> pages =
      std::span(request.job->pages).subspan(request.begin, request.end - request.begin);
  std::vector<PageTarget> targets;
  for (PageRead& page : pages) {
    page.keys.resize(key_bytes);
    targets.push_back({page.rows, page.keys.data()});
  }
  return store->load_pages(pages[0].from.segment, pages[0].from.number, targets);
} catch (const std::exception&) {
  return false;  // no memory: not read
}

void PageReader::Shared::end(Request& request, bool is_there) {
  --n_reading;
  for (size_t i = request.begin; i < request.end; ++i) {
    PageRead& page = request.job->pages[i];
    page.state = is_there ? PageRead::State::there : PageRead::State::failed;
    if (!is_there || request.job->is_given_up) drop_keys(page);
  }
  has_work.notify_all();
}

}  // namespace dsv32
