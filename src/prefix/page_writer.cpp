#include "prefix/page_writer.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "backend/cache_layout.h"
#include "base/thread.h"

namespace dsv32 {
namespace {

constexpr std::chrono::seconds kWritersPatience{2};  // from one sign of life to the next

// Stores a job's pages segment by segment, in their order; stops at the first that is not stored.
void store_job(PrefixStore& store, StoreJob& job) try {
  DiskPage before = job.before;
  const auto n_pages = std::ssize(job.pages);
  for (int64_t begin = 0; begin < n_pages;) {
    const int64_t n = std::min(kMaxSegmentPages, n_pages - begin);
    std::vector<PageSource> sources;
    for (int64_t i = begin; i < begin + n; ++i)
      sources.push_back({job.rows[static_cast<size_t>(i)], job.keys[static_cast<size_t>(i)].data()});
    const auto tokens = std::span<const int32_t>(job.path).subspan(
        static_cast<size_t>((job.first_page + begin) * kPageTokens), static_cast<size_t>(n * kPageTokens));
    const std::optional<int64_t> segment = store.store(before, tokens, sources);
    if (!segment) return;
    job.stored.push_back({*segment, job.first_page + begin, n});
    before = {*segment, static_cast<int32_t>(n - 1)};
    begin += n;
  }
  job.is_complete = true;
} catch (const std::exception&) {
}  // no memory: not stored

}  // namespace

// What the thread uses.
struct PageWriter::Shared : ThreadBody {
  void run() noexcept override;

  std::shared_ptr<const void> pool;
  std::shared_ptr<PrefixStore> store;
  FileSystem* files;
  std::mutex mutex;  // for what follows
  std::condition_variable changed;
  std::unique_ptr<StoreJob> wanted, done;
  bool is_storing = false, is_ending = false;
};

PageWriter::PageWriter(std::shared_ptr<PrefixStore> store, FileSystem& files,
                       std::shared_ptr<const void> pool)
    : shared_(std::make_shared<Shared>()) {
  shared_->pool = std::move(pool), shared_->store = std::move(store), shared_->files = &files;
}

PageWriter::~PageWriter() {
  if (!thread_.joinable()) return;
  take(true);
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->is_ending = true;
    shared_->changed.notify_all();
  }
  hangs_ ? leave_behind(thread_) : thread_.join();
}

bool PageWriter::is_busy() {
  const std::lock_guard lock(shared_->mutex);
  return shared_->wanted || shared_->is_storing || shared_->done;
}

void PageWriter::start(std::unique_ptr<StoreJob> job) {
  const std::lock_guard lock(shared_->mutex);
  if (thread_.joinable() || start_thread(thread_, shared_))
    shared_->wanted = std::move(job);
  else
    shared_->done = std::move(job);
  shared_->changed.notify_all();
}

std::unique_ptr<StoreJob> PageWriter::take(bool waits) {
  std::unique_lock lock(shared_->mutex);
  const auto is_idle = [this] { return !shared_->wanted && !shared_->is_storing; };
  while (waits && !hangs_ && !is_idle()) {
    const uint64_t n_seen = shared_->files->n_writes_done;
    hangs_ = !shared_->changed.wait_for(lock, kWritersPatience, is_idle) &&
             n_seen == shared_->files->n_writes_done;
  }
  return std::move(shared_->done);
}

void PageWriter::Shared::run() noexcept {
  std::unique_lock lock(mutex);
  for (;;) {
    changed.wait(lock, [this] { return is_ending || wanted; });
    if (!wanted) return;
    std::unique_ptr<StoreJob> job = std::move(wanted);
    is_storing = true;
    lock.unlock();
    store_job(*store, *job);
    lock.lock();
    is_storing = false;
    done = std::move(job);
    changed.notify_all();
  }
}

}  // namespace dsv32
