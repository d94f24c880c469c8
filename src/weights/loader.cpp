#include "weights/loader.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <thread>

#include <fcntl.h>
#include <sys/mman.h>

#include "base/error.h"
#include "base/file_system.h"
#include "base/host_memory.h"
#include "base/text.h"
#include "base/worker_pool.h"

namespace dsv32 {
namespace {

using Piece = Loader::Piece;

constexpr size_t kPage = 4096;  // alignment of direct reads, which bypass the page cache
constexpr size_t kStagingBytes = size_t{2} << 20;
constexpr size_t kPieceBytes = kStagingBytes - 2 * kPage;
static_assert(kPieceBytes % MadeMatrix::kBlockBytes == 0);
constexpr size_t kStagingsOfReader = 2;  // one is filled while the other is uploaded
constexpr size_t kMostReaders = 32;
constexpr std::chrono::milliseconds kProgressEvery{200};

uint8_t* next_page(uint8_t* memory) {
  return memory + (kPage - reinterpret_cast<uintptr_t>(memory) % kPage) % kPage;
}

// One part of the model, open for reading.
class PartReader {
 public:
  PartReader(const MappedFile& part, bool keeps) : path_(part.path()) {
    is_direct_ = !keeps && open(O_RDONLY | O_DIRECT | O_CLOEXEC);
    if (!is_direct_ && !open(O_RDONLY | O_CLOEXEC))
      fail(ErrorKind::model, format("cannot read %s: %s", visible(path_).c_str(), std::strerror(errno)));
    const std::optional<FileStamp> own = stamp_of(fd_.get());
    if (!own || !own->is_of_same_file(part.stamp()) || !part.is_unchanged()) fail_changed(path_);
  }

  bool is_direct() const { return is_direct_; }

  // Reads bytes [offset, offset + n) into `room` and returns where the first one is. For a direct read `room`
  // begins at a page and has n + 2 * kPage bytes.
  const uint8_t* read(uint64_t offset, size_t n, uint8_t* room) const {
    const size_t before = is_direct_ ? offset % kPage : 0;
    const size_t wanted = is_direct_ ? (before + n + kPage - 1) / kPage * kPage : n;
    const int64_t got =
        read_fully(real_file_system(), fd_.get(), room, wanted, offset - before, is_direct_ ? kPage : 1);
    if (got < 0)
      fail(ErrorKind::model, format("reading %s: %s", visible(path_).c_str(), describe_errno(got).c_str()));
    if (got < static_cast<int64_t>(before + n)) fail_changed(path_);
    return room + before;
  }

 private:
  bool open(int flags) {
    fd_ = {real_file_system(), ::open(path_.c_str(), flags)};
    return fd_.is_open();
  }

  std::string path_;
  OwnedFd fd_;
  bool is_direct_ = false;
};

// Pinned memory of one reader, for one piece at a time.
class Staging {
 public:
  explicit Staging(uint8_t* memory) : memory_(memory) {}

  // Waits until its last upload has arrived.
  uint8_t* memory() {
    if (lane_) lane_->wait();
    return memory_;
  }
  void send(const uint8_t* bytes, const Piece& piece) {
    std::unique_ptr<UploadLane>& lane = lanes_[piece.backend];
    if (!lane) lane = piece.backend->upload_lane();
    lane_ = lane.get();
    lane_->upload(piece.to, bytes, piece.n_bytes);
  }

 private:
  uint8_t* memory_;
  std::map<Backend*, std::unique_ptr<UploadLane>> lanes_;  // their destructors wait for uploads
  UploadLane* lane_ = nullptr;
};

// The state that the readers of one run() share.
class Loading {
 public:
  Loading(const GgufFile& file, std::vector<Piece> pieces, bool keeps) : pieces_(std::move(pieces)) {
    for (const MappedFile& part : file.files()) parts_.push_back(std::make_unique<PartReader>(part, keeps));
    std::set<Backend*> devices;
    for (const Piece& piece : pieces_) {
      n_bytes_ += piece.n_bytes;
      if (piece.place == Place::device) devices.insert(piece.backend);
    }
    for (Backend* device : devices) {
      const std::span<uint8_t> staging = device->staging();
      const uint8_t* end = staging.data() + staging.size();
      for (uint8_t* at = next_page(staging.data()); at + kStagingBytes <= end; at += kStagingBytes)
        staging_.push_back(at);
    }
    if (staging_.empty() && !devices.empty())
      fail(ErrorKind::internal, "a backend has no staging memory for weights");
    n_readers_ = std::clamp<size_t>(std::thread::hardware_concurrency(), 2, kMostReaders);
    if (!devices.empty()) n_readers_ = std::min(n_readers_, staging_.size());
  }

  // The caller reads too, and reports the progress between its pieces.
  void run(const LoadProgress& progress) {
    if (progress) progress(0, n_bytes_);
    const std::thread::id caller = std::this_thread::get_id();
    WorkerPool readers(static_cast<int>(n_readers_));
    readers.parallel_for(static_cast<int64_t>(n_readers_), true, [&](int64_t i) {
      const bool reports = progress && std::this_thread::get_id() == caller;
      read_pieces(stagings_of(static_cast<size_t>(i)), reports ? &progress : nullptr);
    });
    if (progress) progress(n_bytes_, n_bytes_);
  }

 private:
  // Few, so that memory which a reader fills again is still in its CPU's cache.
  std::vector<Staging> stagings_of(size_t reader) const {
    std::vector<Staging> stagings;
    for (size_t i = reader; i < staging_.size() && stagings.size() < kStagingsOfReader; i += n_readers_)
      stagings.emplace_back(staging_[i]);
    return stagings;
  }

  void read_pieces(std::vector<Staging> stagings, const LoadProgress* progress) try {
    std::vector<uint8_t> room;  // for direct reads, which need aligned memory
    size_t n_sent = 0;
    auto reported = std::chrono::steady_clock::now();
    for (size_t i; (i = next_++) < pieces_.size(); n_done_ += pieces_[i].n_bytes) {
      if (progress && std::chrono::steady_clock::now() - reported > kProgressEvery) {
        (*progress)(n_done_, n_bytes_);
        reported = std::chrono::steady_clock::now();
      }
      const Piece& piece = pieces_[i];
      if (piece.place == Place::device) {
        Staging& staging = stagings[n_sent++ % stagings.size()];
        staging.send(read(piece, staging.memory()), piece);
        continue;
      }
      piece.backend->await_weights(piece.to);
      const bool is_direct = !parts_.empty() && part_of(piece).is_direct();
      if (is_direct) room.resize(kStagingBytes + kPage);
      const uint8_t* bytes = read(piece, is_direct ? next_page(room.data()) : piece.to);
      if (bytes != piece.to) std::memcpy(piece.to, bytes, piece.n_bytes);
    }
    for (Staging& staging : stagings) staging.memory();
  } catch (...) {
    next_ = pieces_.size();  // ends the other readers
    throw;
  }

  const PartReader& part_of(const Piece& piece) const { return *parts_[static_cast<size_t>(piece.part)]; }
  // Reads the piece into `room` and returns where its first byte is.
  const uint8_t* read(const Piece& piece, uint8_t* room) const {
    if (piece.made) return piece.made->make(piece.first_made, piece.n_bytes, room), room;
    if (!parts_.empty()) return part_of(piece).read(piece.offset, piece.n_bytes, room);
    std::memcpy(room, piece.mapped, piece.n_bytes);
    return room;
  }

  std::vector<Piece> pieces_;
  std::vector<std::unique_ptr<PartReader>> parts_;  // empty over bytes in memory
  std::vector<uint8_t*> staging_;
  std::atomic<size_t> next_ = 0;
  std::atomic<uint64_t> n_done_ = 0;
  uint64_t n_bytes_ = 0;
  size_t n_readers_ = 0;
};

// Whether at least half of the tensor's first pages are in the page cache.
bool is_in_memory(const GgufTensor* tensor) {
  const auto begin = reinterpret_cast<uintptr_t>(tensor->data) / kPage * kPage;
  unsigned char is_there[16] = {};
  const size_t n_bytes = std::min<size_t>(tensor->n_bytes, sizeof is_there * kPage);
  if (mincore(reinterpret_cast<void*>(begin), n_bytes, is_there) != 0) return false;
  const auto n_pages = static_cast<ptrdiff_t>((n_bytes + kPage - 1) / kPage);
  return 2 * std::count_if(is_there, is_there + n_pages, [](unsigned char c) { return c & 1; }) >= n_pages;
}

// Whether the page cache has room for all pieces beside the weights that go into host memory.
bool fit_cache(const std::vector<Piece>& pieces) {
  uint64_t n_bytes = 0;
  for (const Piece& piece : pieces) n_bytes += piece.n_bytes * (piece.place == Place::host ? 2 : 1);
  return n_bytes < available_host_memory();
}

// Interleaves the devices' pieces, so that every link is busy from the start to the end.
void take_turns(std::vector<Piece>& pieces) {
  std::map<const Backend*, size_t> n_all, n_before;
  for (const Piece& piece : pieces) ++n_all[piece.backend];
  std::vector<std::pair<double, size_t>> turns;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const Backend* backend = pieces[i].backend;
    turns.emplace_back(static_cast<double>(n_before[backend]++) / static_cast<double>(n_all[backend]), i);
  }
  std::ranges::sort(turns);
  std::vector<Piece> ordered;
  for (const auto& [share, i] : turns) ordered.push_back(pieces[i]);
  pieces = std::move(ordered);
}

}  // namespace

void Loader::add(MadeMatrix made, Backend& backend, Place place, uint8_t* to) {
  const MadeMatrix& kept = made_.emplace_back(std::move(made));
  add(*kept.from, 0, kept.n_bytes(), backend, place, to, &kept);
}

void Loader::add(const GgufTensor& tensor, uint64_t offset, uint64_t n_bytes, Backend& backend, Place place,
                 uint8_t* to, const MadeMatrix* made) {
  tensors_.insert(&tensor);
  for (uint64_t at = 0; at < n_bytes; at += kPieceBytes) {
    const uint64_t from = made ? 0 : offset + at;
    pieces_.push_back({tensor.part, tensor.offset + from, tensor.data + from,
                       static_cast<size_t>(std::min<uint64_t>(kPieceBytes, n_bytes - at)), &backend, place,
                       to + at, made, at});
  }
}

void Loader::run(const LoadProgress& progress, Caching caching) const {
  if (pieces_.empty()) return;
  std::vector<Piece> pieces = pieces_;
  std::ranges::stable_sort(pieces, {},
                           [](const Piece& piece) { return std::pair(piece.part, piece.offset); });
  const bool is_cached = 2 * std::ranges::count_if(tensors_, is_in_memory) > std::ssize(tensors_);
  const bool keeps =
      caching == Caching::automatic ? is_cached || fit_cache(pieces) : caching == Caching::kept;
  if (is_cached) take_turns(pieces);
  Loading(file_, std::move(pieces), keeps).run(progress);
}

}  // namespace dsv32
