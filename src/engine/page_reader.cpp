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
// Bytes of a request: enough for the disk's full rate, and few enough that the threads share a prompt. What
// is read layer by layer is shared slab by slab, or they would all come together at the end.
constexpr size_t kRequestBytes = size_t{12} << 20, kLeastRequestBytes = size_t{1} << 20;
constexpr size_t kMostKeyBytes = size_t{256} << 20;  // in memory at a time
constexpr std::chrono::seconds kPatience{2};         // with a read that hangs, at the end

// A slab of consecutive pages of one segment.
struct Request {
  std::shared_ptr<ReadJob> job;
  int64_t slab;
  size_t begin, end;
};

// Pages of one request.
size_t most_pages(const SegmentInfo& sizes, int64_t slab, size_t n_pages) {
  const size_t slab_bytes = sizes.slab_bytes(slab);
  const size_t share = sizes.n_slabs() > 1 ? slab_bytes * n_pages / (2 * kThreads) : kRequestBytes;
  return std::clamp<size_t>(std::clamp(share, kLeastRequestBytes, kRequestBytes) / slab_bytes, 1,
                            kMaxSegmentPages);
}

}  // namespace

// What the threads use.
struct PageReader::Shared {
  explicit Shared(std::shared_ptr<PrefixStore> store_) : store(std::move(store_)), sizes(store->sizes()) {}
  void run();
  void begin(Request& request);
  bool read(Request& request);
  void end(Request& request, bool is_there);
  bool can_begin() const;
  size_t key_bytes(int64_t slab) const {
    return static_cast<size_t>(sizes.n_layers_of(slab) * sizes.keys_page_bytes);
  }
  void drop_keys(PageRead& page, int64_t slab) {
    n_key_bytes -= page.slabs[static_cast<size_t>(slab)].keys.size();
    page.slabs[static_cast<size_t>(slab)].keys = {};
  }

  const std::shared_ptr<PrefixStore> store;
  const SegmentInfo sizes;
  std::mutex mutex;  // for what follows
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
  std::vector<PageRead>& pages = job->pages;
  const SegmentInfo& sizes = shared_->sizes;
  const std::lock_guard lock(shared_->mutex);
  for (PageRead& page : pages) page.slabs.resize(static_cast<size_t>(sizes.n_slabs()));
  job->n_wanted = pages.size();
  for (int64_t slab = 0; slab < sizes.n_slabs(); ++slab) {
    const size_t n_most = most_pages(sizes, slab, pages.size());
    for (size_t begin = 0, end = 0; begin < pages.size(); begin = end) {
      const DiskPage first = pages[begin].from;
      for (end = begin + 1; end < pages.size() && end - begin < n_most; ++end)
        if (pages[end].from != DiskPage{first.segment, first.number + static_cast<int32_t>(end - begin)})
          break;
      shared_->requests.push_back({job, slab, begin, end});
    }
  }
  shared_->has_work.notify_all();
}

PageReader::Progress PageReader::wait(const ReadJob& job, int64_t slab, int64_t n_known,
                                      std::optional<std::chrono::steady_clock::time_point> deadline) {
  Progress progress;
  std::unique_lock lock(shared_->mutex);
  const auto look = [&] {
    const std::span<const PageRead> wanted = std::span(job.pages).first(job.n_wanted);
    const auto state = [&](const PageRead& page) { return page.slabs[static_cast<size_t>(slab)].state; };
    const auto first = std::ranges::find_if(
        wanted, [&](const PageRead& page) { return state(page) != PageRead::State::there; });
    progress.n_there = first - wanted.begin();
    progress.has_failed = first != wanted.end() && state(*first) == PageRead::State::failed;
    progress.is_over = first == wanted.end() || progress.has_failed;
    return progress.is_over || progress.n_there > n_known;
  };
  if (deadline)
    shared_->has_news.wait_until(lock, *deadline, look);
  else
    shared_->has_news.wait(lock, look);
  return progress;
}

std::vector<std::vector<uint8_t>> PageReader::take_keys(ReadJob& job, int64_t slab, int64_t begin,
                                                        int64_t end) {
  std::vector<std::vector<uint8_t>> keys;
  const std::lock_guard lock(shared_->mutex);
  for (int64_t i = begin; i < end; ++i) {
    std::vector<uint8_t>& waiting = job.pages[static_cast<size_t>(i)].slabs[static_cast<size_t>(slab)].keys;
    shared_->n_key_bytes -= waiting.size();
    keys.push_back(std::move(waiting));
    waiting.clear();
  }
  shared_->has_work.notify_all();
  return keys;
}

std::vector<size_t> PageReader::cut(ReadJob& job, int64_t n_pages) {
  const std::lock_guard lock(shared_->mutex);
  job.n_wanted = std::min(job.n_wanted, static_cast<size_t>(n_pages));
  std::erase_if(shared_->requests, [&](Request& request) {
    if (request.job.get() != &job) return false;
    request.end = std::min(request.end, job.n_wanted);
    return request.begin >= request.end;
  });
  std::vector<size_t> places;
  for (size_t i = job.n_wanted; i < job.pages.size(); ++i) {
    PageRead& page = job.pages[i];
    bool is_touched = false;
    for (int64_t slab = 0; slab < shared_->sizes.n_slabs(); ++slab) {
      const PageRead::State state = page.slabs[static_cast<size_t>(slab)].state;
      is_touched |= state == PageRead::State::reading;
      if (state == PageRead::State::there) shared_->drop_keys(page, slab);
    }
    if (!is_touched) places.push_back(i);
  }
  shared_->has_work.notify_all();
  return places;
}

bool PageReader::is_idle(const ReadJob& job) {
  const std::lock_guard lock(shared_->mutex);
  return job.n_in_progress == 0 && std::ranges::none_of(shared_->requests, [&](const Request& request) {
           return request.job.get() == &job;
         });
}

// What is wanted first is always begun: whoever waits for it takes the others too.
bool PageReader::Shared::can_begin() const {
  if (requests.empty()) return false;
  const Request& next = requests.front();
  return n_key_bytes == 0 || n_key_bytes + (next.end - next.begin) * key_bytes(next.slab) <= kMostKeyBytes;
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
  for (size_t i = request.begin; i < request.end; ++i)
    request.job->pages[i].slabs[static_cast<size_t>(request.slab)].state = PageRead::State::reading;
  n_key_bytes += (request.end - request.begin) * key_bytes(request.slab);
}

bool PageReader::Shared::read(Request& request) {
  const std::span<PageRead> pages =
      std::span(request.job->pages).subspan(request.begin, request.end - request.begin);
  std::vector<PageTarget> targets;
  for (PageRead& page : pages) {
    std::vector<uint8_t>& keys = page.slabs[static_cast<size_t>(request.slab)].keys;
    keys.resize(key_bytes(request.slab));
    targets.push_back({std::span(page.rows).subspan(static_cast<size_t>(sizes.first_layer(request.slab)),
                                                    static_cast<size_t>(sizes.n_layers_of(request.slab))),
                       keys.data()});
  }
  return store->load_pages(pages[0].from.segment, pages[0].from.number, targets, request.slab);
}

void PageReader::Shared::end(Request& request, bool is_there) {
  --request.job->n_in_progress;
  for (size_t i = request.begin; i < request.end; ++i) {
    PageRead& page = request.job->pages[i];
    page.slabs[static_cast<size_t>(request.slab)].state =
        is_there ? PageRead::State::there : PageRead::State::failed;
    if (!is_there || i >= request.job->n_wanted) drop_keys(page, request.slab);
  }
  has_work.notify_all();
}

}  // namespace dsv32
