#include "engine/page_reader.h"

#include <algorithm>

namespace dsv32 {
namespace {

// More than keep a disk busy: while some read, others verify what came.
constexpr int kThreads = 8;
// Bytes of a request: enough for the disk's full rate, and few enough that the threads share a prompt.
constexpr size_t kRequestBytes = size_t{12} << 20;
constexpr size_t kMostKeyBytes = size_t{256} << 20;  // in memory at a time

}  // namespace

PageReader::PageReader(PrefixStore& store, size_t row_bytes, size_t key_bytes)
    : store_(store),
      key_bytes_(key_bytes),
      request_pages_(std::clamp<size_t>(kRequestBytes / (row_bytes + key_bytes), 1, kMaxSegmentPages)) {
  for (int i = 0; i < kThreads; ++i) threads_.emplace_back([this] { run(); });
}

PageReader::~PageReader() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
    requests_.clear();
  }
  has_work_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void PageReader::start(std::shared_ptr<ReadJob> job) {
  const std::vector<PageRead>& pages = job->pages;
  const std::lock_guard lock(mutex_);
  for (size_t begin = 0, end = 0; begin < pages.size(); begin = end) {
    for (end = begin + 1; end < pages.size() && end - begin < request_pages_; ++end)
      if (pages[end].from !=
          DiskPage{pages[begin].from.segment, pages[begin].from.number + static_cast<int32_t>(end - begin)})
        break;
    requests_.push_back({job, begin, end});
  }
  has_work_.notify_all();
}

PageReader::Progress PageReader::wait(const ReadJob& job, int64_t n_known,
                                      std::optional<std::chrono::steady_clock::time_point> deadline) {
  Progress progress;
  std::unique_lock lock(mutex_);
  const auto look = [&] {
    const auto first = std::ranges::find_if(
        job.pages, [](const PageRead& page) { return page.state != PageRead::State::there; });
    progress.n_there = first - job.pages.begin();
    progress.has_failed = first != job.pages.end() && first->state == PageRead::State::failed;
    progress.is_over = first == job.pages.end() || progress.has_failed;
    return progress.is_over || progress.n_there > n_known;
  };
  if (deadline)
    has_news_.wait_until(lock, *deadline, look);
  else
    has_news_.wait(lock, look);
  return progress;
}

std::vector<size_t> PageReader::cancel(ReadJob& job) {
  const std::lock_guard lock(mutex_);
  std::erase_if(requests_, [&](const Request& request) { return request.job.get() == &job; });
  std::vector<size_t> places;
  for (size_t i = 0; i < job.pages.size(); ++i)
    if (job.pages[i].state == PageRead::State::waiting) places.push_back(i);
  return places;
}

void PageReader::give_back(int64_t n_pages) {
  const std::lock_guard lock(mutex_);
  n_waiting_ -= n_pages;
  has_work_.notify_all();
}

// What is wanted first is always begun: whoever waits for it takes the others too.
bool PageReader::can_begin() const {
  if (requests_.empty()) return false;
  const auto n_bytes = (static_cast<size_t>(n_waiting_) + request_pages_) * key_bytes_;
  return n_waiting_ == 0 || n_bytes <= kMostKeyBytes;
}

bool PageReader::is_idle(const ReadJob& job) {
  const std::lock_guard lock(mutex_);
  return job.n_in_progress == 0 &&
         std::ranges::none_of(requests_, [&](const Request& request) { return request.job.get() == &job; });
}

void PageReader::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    has_work_.wait(lock, [this] { return is_ending_ || can_begin(); });
    if (is_ending_) return;
    const Request request = std::move(requests_.front());
    requests_.pop_front();
    ++request.job->n_in_progress;
    for (size_t i = request.begin; i < request.end; ++i)
      request.job->pages[i].state = PageRead::State::reading;
    n_waiting_ += static_cast<int64_t>(request.end - request.begin);
    lock.unlock();
    read(request);
    lock.lock();
    --request.job->n_in_progress;
    has_news_.notify_all();
  }
}

void PageReader::read(const Request& request) {
  const std::span<PageRead> pages =
      std::span(request.job->pages).subspan(request.begin, request.end - request.begin);
  std::vector<PageTarget> targets;
  for (PageRead& page : pages) {
    page.keys.resize(key_bytes_);
    targets.push_back({page.rows, page.keys.data()});
  }
  const bool is_there = store_.load_pages(pages[0].from.segment, pages[0].from.number, targets);
  const std::lock_guard lock(mutex_);
  for (PageRead& page : pages) page.state = is_there ? PageRead::State::there : PageRead::State::failed;
}

}  // namespace dsv32
