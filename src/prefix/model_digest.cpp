#include "prefix/model_digest.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <mutex>

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/thread.h"
#include "prefix/known_pieces.h"

namespace dsv32 {
namespace {

constexpr std::string_view kDigestTag = "dsv32 model digest 1";
constexpr size_t kReadBytes = size_t{1} << 20;
constexpr std::chrono::seconds kMostWait{2};  // for a read that hangs
constexpr int kNice = 10;                     // of the threads: computing goes first

struct Piece {
  size_t part;
  uint64_t offset, n_bytes;
};

std::vector<Piece> pieces_of(std::span<const FileStamp> stamps) {
  std::vector<Piece> pieces;
  for (size_t part = 0; part < stamps.size(); ++part)
    for (uint64_t at = 0; at < stamps[part].n_bytes; at += ModelDigest::kPieceBytes)
      pieces.push_back({part, at, std::min(ModelDigest::kPieceBytes, stamps[part].n_bytes - at)});
  return pieces;
}

bool is_settled(std::span<const FileStamp> stamps, std::chrono::nanoseconds settled) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::ranges::all_of(stamps, [&](const FileStamp& stamp) {
    return std::chrono::nanoseconds(std::max(stamp.written_ns, stamp.changed_ns)) + settled <= now;
  });
}

}  // namespace

struct ModelDigest::Work : ThreadBody {
  Work(std::span<const MappedFile> parts, const ModelDigestOptions& options);
  ~Work() override;

  void run() noexcept override;
  void take_pieces() noexcept;  // until none is left; then leave()
  void leave() noexcept;        // the last one finishes
  bool hash(const Piece& piece, std::vector<uint8_t>& room, Hash256& hash);
  bool is_unchanged() const;
  std::optional<Hash256> finish() const;

  std::vector<FileStamp> stamps;  // [n_parts]
  std::vector<int> fds;           // [n_parts]
  std::vector<Piece> pieces;
  std::optional<KnownPieces> memory;
  bool is_remembered = false;  // what is hashed here
  std::atomic<size_t> next = 0;
  std::atomic<bool> is_ending = false, has_failed = false;
  std::atomic<uint64_t> n_bytes_hashed = 0;

  mutable std::mutex mutex;  // for what follows
  std::condition_variable changed;
  std::vector<std::optional<Hash256>> hashes;  // [n_pieces]
  int n_working = 1;                           // threads that will leave(); the first is the constructor's
  std::optional<Hash256> value;
};

// The files are opened again, since reading a mapping would end the program where a disk fails; a file that
// is another one by now is none of this model.
ModelDigest::Work::Work(std::span<const MappedFile> parts, const ModelDigestOptions& options) {
  for (const MappedFile& part : parts) {
    stamps.push_back(part.stamp());
    fds.push_back(::open(part.path().c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  }
  pieces = pieces_of(stamps);
  hashes.resize(pieces.size());
  has_failed = parts.empty() || !is_unchanged();
  if (has_failed) return;
  is_remembered = is_settled(stamps, options.settled);
  memory.emplace(options.directory, *options.files, stamps, kPieceBytes, pieces.size());
  const std::vector<Hash256> known = memory->load();
  std::ranges::copy(known, hashes.begin());
  next = known.size();
}

ModelDigest::Work::~Work() {
  for (const int fd : fds)
    if (fd >= 0) ::close(fd);
}

bool ModelDigest::Work::is_unchanged() const {
  for (size_t i = 0; i < stamps.size(); ++i)
    if (fds[i] < 0 || stamp_of(fds[i]) != stamps[i]) return false;
  return true;
}

void ModelDigest::Work::run() noexcept {
  ::setpriority(PRIO_PROCESS, 0, kNice);  // on Linux: of this thread
  take_pieces();
}

void ModelDigest::Work::take_pieces() noexcept {
  try {
    std::vector<uint8_t> room(kReadBytes);
    for (size_t i = next++; i < pieces.size() && !is_ending && !has_failed; i = next++) {
      Hash256 found;
      if (!hash(pieces[i], room, found)) break;
      const std::lock_guard lock(mutex);
      hashes[i] = found;
    }
  } catch (...) {
    has_failed = true;
  }
  leave();
}

// False: the file cannot be read, or it is time to end.
bool ModelDigest::Work::hash(const Piece& piece, std::vector<uint8_t>& room, Hash256& hash) {
  Sha256 sha;
  for (uint64_t at = 0; at < piece.n_bytes;) {
    if (is_ending) return false;
    const size_t n_wanted = std::min<uint64_t>(room.size(), piece.n_bytes - at);
    const ssize_t n = ::pread(fds[piece.part], room.data(), n_wanted, static_cast<off_t>(piece.offset + at));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return has_failed = true, false;
    sha.add(room.data(), static_cast<size_t>(n));
    at += static_cast<uint64_t>(n);
    n_bytes_hashed += static_cast<uint64_t>(n);
  }
  hash = sha.finish();
  return true;
}

void ModelDigest::Work::leave() noexcept {
  std::unique_lock lock(mutex);
  if (n_working > 1) {
    --n_working;
    return;
  }
  lock.unlock();  // nobody else works any more
  std::optional<Hash256> found;
  try {
    if (!has_failed && is_unchanged()) found = finish();
  } catch (...) {
  }
  lock.lock();
  value = found;
  n_working = 0;
  changed.notify_all();
}

// Remembers what is known, and returns the digest when that is all.
std::optional<Hash256> ModelDigest::Work::finish() const {
  std::vector<Hash256> known;
  for (size_t i = 0; i < hashes.size() && hashes[i]; ++i) known.push_back(*hashes[i]);
  if (is_remembered && n_bytes_hashed > 0) memory->save(known);
  if (known.size() < pieces.size()) return std::nullopt;
  Sha256 sha;
  sha.add_field(kDigestTag);
  sha.add_number(stamps.size());
  for (const FileStamp& stamp : stamps) sha.add_number(stamp.n_bytes);
  for (const Hash256& hash : known) sha.add(hash.data(), hash.size());
  return sha.finish();
}

ModelDigest::ModelDigest(std::span<const MappedFile> parts, const ModelDigestOptions& options) {
  uint64_t n_bytes = 0;
  for (const MappedFile& part : parts) n_bytes += part.stamp().n_bytes;
  try {
    const auto work = std::make_shared<Work>(parts, options);
    const size_t n_left = work->has_failed ? 0 : work->pieces.size() - work->next;
    const bool is_first = n_left > 0 && n_bytes <= options.most_hashed_first;
    threads_.resize(std::min<size_t>(options.n_threads, n_left - (is_first ? 1 : 0)));
    work_ = work;
    begin(is_first);
  } catch (const std::exception&) {  // no memory: no digest
  }
}

// As many threads as can be had. This one takes part when the model is to be hashed first.
void ModelDigest::begin(bool is_first) {
  work_->n_working += static_cast<int>(threads_.size());
  for (std::thread& thread : threads_)
    if (!start_thread(thread, work_)) work_->leave();
  if (!is_first) return work_->leave();
  work_->take_pieces();
  std::unique_lock lock(work_->mutex);
  work_->changed.wait(lock, [this] { return work_->n_working == 0; });
}

ModelDigest::~ModelDigest() {
  if (!work_) return;
  work_->is_ending = true;
  std::unique_lock lock(work_->mutex);
  const bool has_ended = work_->changed.wait_for(lock, kMostWait, [&] { return work_->n_working == 0; });
  lock.unlock();
  for (std::thread& thread : threads_)
    if (thread.joinable()) has_ended ? thread.join() : leave_behind(thread);
}

std::optional<Hash256> ModelDigest::value() const {
  if (!work_) return std::nullopt;
  const std::lock_guard lock(work_->mutex);
  return work_->value;
}

uint64_t ModelDigest::n_bytes_hashed() const { return work_ ? work_->n_bytes_hashed.load() : 0; }

}  // namespace dsv32
