#include "engine/page_writer.h"

#include <algorithm>

#include "backend/cache_layout.h"

namespace dsv32 {

void store_job(PrefixStore& store, StoreJob& job) {
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
}

PageWriter::PageWriter(PrefixStore& store) : store_(store), thread_([this] { run(); }) {}

PageWriter::~PageWriter() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

bool PageWriter::is_busy() {
  const std::lock_guard lock(mutex_);
  return wanted_ || is_storing_ || done_;
}

void PageWriter::start(std::unique_ptr<StoreJob> job) {
  const std::lock_guard lock(mutex_);
  wanted_ = std::move(job);
  changed_.notify_all();
}

std::unique_ptr<StoreJob> PageWriter::take(bool waits) {
  std::unique_lock lock(mutex_);
  if (waits) changed_.wait(lock, [this] { return !wanted_ && !is_storing_; });
  return std::move(done_);
}

void PageWriter::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return is_ending_ || wanted_; });
    if (!wanted_) return;
    std::unique_ptr<StoreJob> job = std::move(wanted_);
    is_storing_ = true;
    lock.unlock();
    store_job(store_, *job);
    lock.lock();
    is_storing_ = false;
    done_ = std::move(job);
    changed_.notify_all();
  }
}

}  // namespace dsv32
