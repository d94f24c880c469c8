#include "prefix/head_reader.h"

#include <algorithm>
#include <condition_variable>
#include <iterator>
#include <mutex>
#include <thread>
#include <utility>

#include "base/thread.h"

namespace dsv32 {
namespace {

constexpr size_t kHeadThreads = 24;            // reads of 8 KiB: a disk far away does many at a time
constexpr std::chrono::seconds kLastReads{2};  // for reads that hang, at the end

}  // namespace

// What the threads use. The first opens the store and has the others made.
struct HeadReader::Shared : ThreadBody {
  Shared(PrefixStoreOptions options_, FileSystem& files_, Warn warn_)
      : options(std::move(options_)), files(files_), warn(std::move(warn_)) {}

  void run() noexcept override;
  void open();
  void read_heads();
  void start(size_t n);

  const PrefixStoreOptions options;
  FileSystem& files;
  const Warn warn;
  std::weak_ptr<Shared> self;
  std::mutex mutex;  // for what follows
  std::condition_variable has_news;
  std::shared_ptr<PrefixStore> store;
  std::vector<std::string> names;  // of segments' files
  size_t next = 0;                 // of them
  Told told;                       // and not taken yet
  std::vector<std::thread> threads;
  int n_running = 0;
  bool is_begun = false, is_ending = false;
};

HeadReader::HeadReader(const PrefixStoreOptions& options, FileSystem& files, Warn warn)
    : shared_(std::make_shared<Shared>(options, files, std::move(warn))) {
  shared_->self = shared_;
  std::unique_lock lock(shared_->mutex);
  shared_->threads.reserve(1 + kHeadThreads);  // where the one before it runs, none may throw
  shared_->start(1);
  if (shared_->n_running > 0) return;
  lock.unlock();
  shared_->n_running = 1;
  shared_->run();
}

HeadReader::~HeadReader() { stop(); }

bool HeadReader::stop() {
  std::unique_lock lock(shared_->mutex);
  if (std::exchange(shared_->is_ending, true)) return shared_->n_running == 0;
  const bool has_ended =
      shared_->has_news.wait_for(lock, kLastReads, [&] { return shared_->n_running == 0; });
  std::vector<std::thread> threads = std::exchange(shared_->threads, {});
  lock.unlock();
  for (std::thread& thread : threads) has_ended ? thread.join() : leave_behind(thread);
  return has_ended;
}

HeadReader::Told HeadReader::wait(std::optional<std::chrono::steady_clock::time_point> deadline,
                                  bool just_opened) {
  std::unique_lock lock(shared_->mutex);
  const auto is_enough = [&] { return shared_->n_running == 0 || (just_opened && shared_->store); };
  if (deadline)
    shared_->has_news.wait_until(lock, *deadline, is_enough);
  else
    shared_->has_news.wait(lock, is_enough);
  shared_->told.store = shared_->store;
  shared_->told.is_over = shared_->n_running == 0;
  return std::exchange(shared_->told, {});
}

void HeadReader::Shared::run() noexcept {
  try {
    std::unique_lock lock(mutex);
    const bool is_first = !std::exchange(is_begun, true);
    lock.unlock();
    if (is_first) open();
    read_heads();
  } catch (const std::exception&) {
  }  // no memory: what has not come is not there
  const std::lock_guard lock(mutex);
  --n_running;
  has_news.notify_all();
}

void HeadReader::Shared::open() {
  std::shared_ptr<PrefixStore> opened = PrefixStore::open(options, files, warn);
  if (!opened) return;
  std::vector<std::string> found = opened->segment_files();
  std::unique_lock lock(mutex);
  store = opened, names = std::move(found);
  has_news.notify_all();
  start(std::min(kHeadThreads, names.size()));
  lock.unlock();
  const CacheSpeeds speeds = opened->speeds();
  lock.lock();
  told.speeds = speeds;
}

// As many as can be had.
void HeadReader::Shared::start(size_t n) {
  for (size_t i = 0; i < n && !is_ending; ++i) {
    if (!start_thread(threads.emplace_back(), self.lock())) return threads.pop_back();
    ++n_running;
  }
}

void HeadReader::Shared::read_heads() {
  std::unique_lock lock(mutex);
  while (store && next < names.size() && !is_ending) {
    const std::string& name = names[next++];
    lock.unlock();
    std::vector<StoredSegment> found = store->find(name);
    lock.lock();
    std::ranges::move(found, std::back_inserter(told.segments));
  }
}

}  // namespace dsv32
