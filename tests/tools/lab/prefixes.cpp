// Prompts of several lengths are computed and stored by one engine, and asked for again by another, which
// knows nothing but what is on disk. Then the same files are read once more as fast as the disk gives them,
// past the page cache: that is the ceiling of the reading.
#include "tests/tools/lab/prefixes.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <thread>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "base/stopwatch.h"
#include "base/text.h"
#include "cli/inspect/inspect.h"
#include "cli/options/json.h"
#include "cli/terminal/streams.h"

namespace dsv32 {
namespace {

struct ReadStats {
  uint64_t n_bytes = 0;
  double seconds = 0;                         // during which at least one read was in progress
  std::chrono::steady_clock::time_point end;  // of the last read
};

// The system's files, which count what is read.
class CountingFiles : public FileSystem {
 public:
  ssize_t pread(int fd, void* bytes, size_t n_bytes, uint64_t offset) override {
    count(1, 0);
    const ssize_t n = FileSystem::pread(fd, bytes, n_bytes, offset);
    count(-1, n);
    return n;
  }
  ReadStats stats() {
    const std::lock_guard lock(mutex_);
    return stats_;
  }

 private:
  void count(int n_begun, ssize_t n_bytes) {
    const std::lock_guard lock(mutex_);
    const auto now = std::chrono::steady_clock::now();
    if (n_reading_ > 0) stats_.seconds += std::chrono::duration<double>(now - since_).count();
    since_ = now;
    n_reading_ += n_begun;
    stats_.end = now;
    if (n_bytes > 0) stats_.n_bytes += static_cast<uint64_t>(n_bytes);
  }
  std::mutex mutex_;
  ReadStats stats_;
  int n_reading_ = 0;
  std::chrono::steady_clock::time_point since_;
};

struct Timed {
  int64_t n_tokens = 0, n_restored = 0;
  double cold_seconds = 0, store_seconds = 0, warm_seconds = 0;
  double behind_seconds = 0;  // of warm_seconds, behind the last read
  ReadStats reading;
};

// A folder of its own in `parent`, removed with all that is in it.
class Folder {
 public:
  explicit Folder(const std::string& parent) : path_(parent + "/dsv32-lab-XXXXXX") {
    if (!mkdtemp(path_.data()))
      fail(ErrorKind::usage, format("cannot make a folder in %s", visible(parent).c_str()),
           "--dir names another");
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::vector<int32_t> prompt_of(int64_t n_tokens, const Engine& engine) {
  Rng rng(static_cast<uint64_t>(n_tokens));
  return random_tokens(n_tokens, engine.args().vocab_size, rng);
}

// Until the logits of the prompt's last token are there.
double time_sync(ByHand& sequence, const std::vector<int32_t>& tokens, int64_t& n_held) {
  const auto start = std::chrono::steady_clock::now();
  n_held = sequence.sync(tokens);
  return seconds_since(start);
}

// Bytes a second of the folder's pages, read by so many threads in requests as large as restoring has.
double disk_rate(const std::string& folder, int n_threads) {
  constexpr size_t kRequest = size_t{12} << 20;
  struct Piece {
    std::string path;
    size_t offset;
  };
  std::vector<Piece> pieces;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
    if (entry.is_regular_file() && entry.path().filename().string().size() == 65)
      for (size_t at = 0; at < entry.file_size(); at += kRequest)
        pieces.push_back({entry.path().string(), at});
  std::atomic<size_t> next = 0;
  std::atomic<uint64_t> n_bytes = 0;
  const auto read = [&] {
    void* room = std::aligned_alloc(size_t{1} << 21, kRequest);
    madvise(room, kRequest, MADV_HUGEPAGE);  // as restoring has
    for (size_t i = next++; i < pieces.size(); i = next++) {
      const int fd = open(pieces[i].path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
      const ssize_t n = fd < 0 ? -1 : pread(fd, room, kRequest, static_cast<off_t>(pieces[i].offset));
      if (fd >= 0) close(fd);
      if (n > 0) n_bytes += static_cast<uint64_t>(n);
    }
    std::free(room);
  };
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::thread> threads;
  for (int i = 0; i < n_threads; ++i) threads.emplace_back(read);
  for (std::thread& thread : threads) thread.join();
  return static_cast<double>(n_bytes) / seconds_since(start);
}

// The most that the disk gives. What has just been written or read comes faster from some disks: whoever
// reads before and after the restoring is not behind it.
double best_disk_rate(const std::string& folder) {
  double best = 0;
  for (const int n_threads : {4, 8, 16}) best = std::max(best, disk_rate(folder, n_threads));
  return best;
}

double rate(uint64_t n_bytes, double seconds) {
  return seconds > 0 ? static_cast<double>(n_bytes) / seconds : 0;
}
double rate(const ReadStats& stats) { return rate(stats.n_bytes, stats.seconds); }

void print_prefixes(const std::vector<Timed>& all, double disk, const char* backend) {
  std::string text = disk > 0
                         ? format("%s; the disk gives %.2f GB/s past the page cache\n", backend, disk / 1e9)
                         : format("%s; the disk cannot be read past the page cache\n", backend);
  text += format("%8s %12s %12s %12s %10s %8s %10s %10s %8s\n", "tokens", "computed s", "stored GB/s",
                 "restored s", "behind ms", "faster", "read MB", "GB/s", "of disk");
  for (const Timed& at : all)
    text += format("%8lld %12.3f %12.2f %12.3f %10.1f %7.1fx %10.1f %10.2f %7.1f%%\n", as_ll(at.n_tokens),
                   at.cold_seconds, rate(at.reading.n_bytes, at.store_seconds) / 1e9, at.warm_seconds,
                   1000 * at.behind_seconds, at.cold_seconds / at.warm_seconds,
                   static_cast<double>(at.reading.n_bytes) / 1e6, rate(at.reading) / 1e9,
                   disk > 0 ? 100 * rate(at.reading) / disk : 0);
  write_out(text);
}

void print_prefixes_json(const std::vector<Timed>& all, double disk, const char* backend) {
  Json list = Json::array();
  for (const Timed& at : all)
    list.push_back({{"tokens", at.n_tokens},
                    {"restored_tokens", at.n_restored},
                    {"computed_seconds", at.cold_seconds},
                    {"stored_seconds", at.store_seconds},
                    {"restored_seconds", at.warm_seconds},
                    {"behind_reading_seconds", at.behind_seconds},
                    {"read_bytes", at.reading.n_bytes},
                    {"read_bytes_per_second", rate(at.reading)}});
  write_out(Json{{"backend", backend}, {"disk_bytes_per_second", disk}, {"prompts", list}}.dump() + "\n");
}

}  // namespace

int lab_prefixes(const LabOptions& options) {
  const BenchOptions& bench = options.bench;
  const std::vector<int64_t> contexts =
      bench.contexts.empty() ? std::vector<int64_t>{2048, 8192, 32768, 131072} : bench.contexts;
  const Folder folder(options.folder);
  const MeasuredModel model(options);
  EngineOptions asked = options.engine;
  asked.context = contexts.back() + 64;
  PrefixCacheOptions& cache = asked.cache.emplace();
  cache.directory = folder.path() + "/cache";
  cache.limits.max_bytes = uint64_t{1} << 50;
  cache.write = WritePolicy::write_back;
  cache.prefetch = PrefetchPolicy::wait_complete;
  CountingFiles files;
  cache.files = &files;
  cache.most_hashed_first = UINT64_MAX;
  cache.warn = [](const std::string& line) { write_err(visible(line) + "\n"); };
  std::vector<Timed> all;
  {
    const std::unique_ptr<Engine> engine = model.open(asked);
    ByHand sequence(*engine);
    for (const int64_t n_tokens : contexts) {
      Timed& at = all.emplace_back();
      at.n_tokens = n_tokens;
      at.cold_seconds = time_sync(sequence, prompt_of(n_tokens, *engine), at.n_restored);
      const auto start = std::chrono::steady_clock::now();
      engine->prefix_cache()->flush();
      at.store_seconds = seconds_since(start);
    }
  }
  const double disk_before = best_disk_rate(folder.path());
  const std::unique_ptr<Engine> engine = model.open(asked);
  ByHand sequence(*engine);
  ReadStats before;
  for (Timed& at : all) {
    at.warm_seconds = time_sync(sequence, prompt_of(at.n_tokens, *engine), at.n_restored);
    const ReadStats after = files.stats();
    at.behind_seconds = std::min(at.warm_seconds, seconds_since(after.end));
    at.reading = {after.n_bytes - before.n_bytes, after.seconds - before.seconds, after.end};
    before = after;
  }
  const double disk = std::max(disk_before, best_disk_rate(folder.path()));
  (options.json ? print_prefixes_json : print_prefixes)(all, disk, engine->backend_name());
  return 0;
}

}  // namespace dsv32
