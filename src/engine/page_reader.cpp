#include "engine/page_reader.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>

#include "base/keep_forever.h"

namespace dsv32 {
namespace {

// More than keep a disk busy: while some read, others verify what came.
constexpr int kThreads = 8;
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
struct PageReader::Shared {
  explicit Shared(std::shared_ptr<PrefixStore> store_)
      : store(std::move(store_)),
        key_bytes(static_cast<size_t>(store->sizes().n_layers * store->sizes().keys_page_bytes)),
        page_bytes(key_bytes +
                   static_cast<size_t>(store->sizes().n_layers * store->sizes().rows_page_bytes)) {}
  void run();
  void begin(Request& request);
  bool read(Request& request);
  void end(Request& request, bool is_there);
  bool can_begin() const;
  void drop_keys(PageRead& page) {
    n_key_bytes -= page.keys.size();
    page.keys = {};
  }

  const std::shared_ptr<PrefixStore> store;
  const size_t key_bytes, page_bytes;  // of a page
  std::mutex mutex;                    // for what follows
  std::condition_variable has_work, has_news;
  std::deque<Request> requests;
  size_t n_key_bytes = 0;  // of keys that wait in memory
  bool is_ending = false;
  int n_running = kThreads;
};

PageReader::PageReader(std::shared_ptr<PrefixStore> store)
    : shared_(std::make_shared<Shared>(std::move(store))) {
  for (int i = 0; i < kThreads; ++i) threads_.emplace_back([shared = shared_] { shared->run(); });
}

PageReader::~PageReader() { stop(); }

bool PageReader::stop() {
  if (has_stopped_) return has_ended_;
  has_stopped_ = true;
  {
    std::unique_lock lock(shared_->mutex);
    shared_->is_ending = true;
    shared_->requests.clear();
    shared_->has_work.notify_all();
    has_ended_ = shared_->has_news.wait_for(lock, kPatience, [this] { return shared_->n_running == 0; });
  }
  for (std::thread& thread : threads_) has_ended_ ? thread.join() : thread.detach();
  if (!has_ended_) keep_forever(shared_);
  return has_ended_;
}

void PageReader::start(std::shared_ptr<ReadJob> job) {
  const std::vector<PageRead>& pages = job->pages;
  const size_t n_most = std::clamp<size_t>(kRequestBytes / shared_->page_bytes, 1, kMaxSegmentPages);
  const std::lock_guard lock(shared_->mutex);
  for (size_t begin = 0, end = 0; begin < pages.size(); begin = end) {
    const DiskPage first = pages[begin].from;
    for (end = begin + 1; end < pages.size() && end - begin < n_most; ++end)
      if (pages[end].from != DiskPage{first.segment, first.number + static_cast<int32_t>(end - begin)}) break;
    shared_->requests.push_back({job, begin, end});
  }
  shared_->has_work.notify_all();
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
    std::vector<uint8_t>& waiting = job.pages[static_cast<size_t>(i)].keys;
    shared_->n_key_bytes -= waiting.size();
    keys.push_back(std::move(waiting));
    waiting.clear();
  }
  shared_->has_work.notify_all();
  return keys;
}

std::vector<size_t> PageReader::give_up(ReadJob& job) {
  const std::lock_guard lock(shared_->mutex);
  job.is_given_up = true;
  std::erase_if(shared_->requests, [&](const Request& request) { return request.job.get() == &job; });
  std::vector<size_t> places;
  for (size_t i = 0; i < job.pages.size(); ++i) {
    if (job.pages[i].state == PageRead::State::reading) continue;
    shared_->drop_keys(job.pages[i]);
    places.push_back(i);
  }
  shared_->has_work.notify_all();
  return places;
}

bool PageReader::is_idle(const ReadJob& job) {
  const std::lock_guard lock(shared_->mutex);
  return job.n_in_progress == 0;
}

// What is wanted first is always begun: whoever waits for it takes the others too.
bool PageReader::Shared::can_begin() const {
  if (requests.empty()) return false;
  const Request& next = requests.front();
  return n_key_bytes == 0 || n_key_bytes + (next.end - next.begin) * key_bytes <= kMostKeyBytes;
}

void PageReader::Shared::run() {
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
  ++request.job->n_in_progress;
  for (size_t i = request.begin; i < request.end; ++i) {
    request.job->pages[i].state = PageRead::State::reading;
    request.job->pages[i].keys.resize(key_bytes);
  }
  n_key_bytes += (request.end - request.begin) * key_bytes;
}

bool PageReader::Shared::read(Request& request) {
  const std::span<PageRead> pages =
      std::span(request.job->pages).subspan(request.begin, request.end - request.begin);
  std::vector<PageTarget> targets;
  for (PageRead& page : pages) targets.push_back({page.rows, page.keys.data()});
  return store->load_pages(pages[0].from.segment, pages[0].from.number, targets);
}

void PageReader::Shared::end(Request& request, bool is_there) {
  --request.job->n_in_progress;
  for (size_t i = request.begin; i < request.end; ++i) {
    PageRead& page = request.job->pages[i];
    page.state = is_there ? PageRead::State::there : PageRead::State::failed;
    if (!is_there || request.job->is_given_up) drop_keys(page);
  }
  has_work.notify_all();
}

}  // namespace dsv32
