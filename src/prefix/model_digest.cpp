#include "prefix/model_digest.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <vector>

#include <sys/resource.h>

#include "prefix/cache_files.h"

namespace dsv32 {
namespace {

// Tags keep these hashes apart from other uses of SHA-256. Raise a tag's version when the hashed bytes
// change; the fingerprint's also when the meaning of a page's bytes, or what is read of a model file,
// changes.
constexpr std::string_view kFingerprintTag = "dsv32 fingerprint 3", kDigestTag = "dsv32 model digest 1";
constexpr std::string_view kNoteMagic = "dsv32 model 1\n";
constexpr size_t kReadBytes = size_t{1} << 20;
constexpr int kNice = 10;  // of the threads: computing has priority

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

void add_number(std::string& bytes, uint64_t value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

// The head of a model's note: magic, size of a piece, stamps of all parts.
std::string note_head(std::span<const FileStamp> stamps) {
  std::string head(kNoteMagic);
  add_number(head, ModelDigest::kPieceBytes);
  add_number(head, stamps.size());
  for (const FileStamp& stamp : stamps)
    for (const uint64_t n : stamp.numbers()) add_number(head, n);
  return head;
}

// A note is named after the devices and inodes of the parts.
std::string note_name(std::span<const FileStamp> stamps) {
  std::string places;
  for (const FileStamp& stamp : stamps) add_number(places, stamp.device), add_number(places, stamp.inode);
  return CacheFiles::model_note(sha256(places));
}

}  // namespace

struct ModelDigest::Work {
  Work(std::span<const MappedFile> parts, const PrefixCacheOptions& options,
       std::chrono::nanoseconds settled);

  // Hashes pieces until none is left, or `is_ending`; whoever is the last to leave calls finish().
  void hash_pieces(const std::atomic<bool>& is_ending);
  std::optional<Hash256> hash(const Piece& piece, std::span<uint8_t> room,
                              const std::atomic<bool>& is_ending);
  bool is_unchanged() const;
  void load_known();
  std::optional<Hash256> finish() const;

  std::vector<FileStamp> stamps;  // [n_parts]
  std::vector<OwnedFd> files;     // [n_parts]
  std::vector<Piece> pieces;
  std::optional<CacheFiles> notes;  // nothing: the directory cannot be used
  bool is_remembered = false;       // whether the hashes go into the note
  std::atomic<size_t> next = 0;
  std::atomic<bool> has_failed = false;
  std::atomic<uint64_t> n_bytes_hashed = 0;

  std::mutex mutex;  // guards what follows
  size_t n_hashing = 0;
  std::vector<std::optional<Hash256>> hashes;  // [n_pieces]
  std::optional<Hash256> value;
};

// Reads by descriptors, because a read error in a mapping would end the program.
ModelDigest::Work::Work(std::span<const MappedFile> parts, const PrefixCacheOptions& options,
                        std::chrono::nanoseconds settled) {
  for (const MappedFile& part : parts) {
    stamps.push_back(part.stamp());
    files.push_back(part.shared_fd());
  }
  pieces = pieces_of(stamps);
  hashes.resize(pieces.size());
  has_failed = parts.empty() || !is_unchanged();
  if (has_failed) return;
  is_remembered = is_settled(stamps, settled);
  std::string reason;
  notes = CacheFiles::open(options.directory, *options.files, reason);
  if (notes) load_known();
}

bool ModelDigest::Work::is_unchanged() const {
  for (size_t i = 0; i < stamps.size(); ++i)
    if (!files[i].is_open() || stamp_of(files[i].get()) != stamps[i]) return false;
  return true;
}

// Loads the hashes that the note has: those of the first pieces.
void ModelDigest::Work::load_known() {
  const std::string head = note_head(stamps);
  const size_t n_head = head.size() + sizeof(uint64_t);  // with the number of hashes
  const std::string note =
      notes->read_note(notes->top(), note_name(stamps), n_head + pieces.size() * sizeof(Hash256));
  if (note.size() < n_head || !note.starts_with(head)) return;
  next = (note.size() - n_head) / sizeof(Hash256);
  for (size_t i = 0; i < next; ++i)
    std::memcpy(hashes[i].emplace().data(), &note[n_head + i * sizeof(Hash256)], sizeof(Hash256));
}

void ModelDigest::Work::hash_pieces(const std::atomic<bool>& is_ending) {
  std::unique_lock lock(mutex);
  ++n_hashing;
  lock.unlock();
  const bool is_whole = or_miss([&] {
    std::vector<uint8_t> room(kReadBytes);
    for (size_t i = next++; i < pieces.size() && !has_failed; i = next++) {
      const std::optional<Hash256> found = hash(pieces[i], room, is_ending);
      if (!found) return is_ending.load();
      const std::lock_guard hash_lock(mutex);
      hashes[i] = found;
    }
    return true;
  });
  if (!is_whole) has_failed = true;
  lock.lock();
  if (--n_hashing > 0 || value) return;
  lock.unlock();  // no other thread is working
  const auto found =
      or_miss([&] { return !has_failed && is_unchanged() ? finish() : std::optional<Hash256>(); });
  lock.lock();
  value = found;
}

// Nothing: the file cannot be read, or the hashing is to stop.
std::optional<Hash256> ModelDigest::Work::hash(const Piece& piece, std::span<uint8_t> room,
                                               const std::atomic<bool>& is_ending) {
  Sha256 sha;
  for (uint64_t at = 0; at < piece.n_bytes; at += room.size()) {
    room = room.first(std::min<uint64_t>(room.size(), piece.n_bytes - at));
    if (is_ending || read_fully(real_file_system(), files[piece.part].get(), room.data(), room.size(),
                                piece.offset + at) != std::ssize(room))
      return std::nullopt;
    sha.add(room.data(), room.size());
    n_bytes_hashed += room.size();
  }
  return sha.finish();
}

// Writes the known hashes to the note. Returns the digest if all are known.
std::optional<Hash256> ModelDigest::Work::finish() const {
  std::string known;
  for (size_t i = 0; i < hashes.size() && hashes[i]; ++i) known.append(hashes[i]->begin(), hashes[i]->end());
  const size_t n_known = known.size() / sizeof(Hash256);
  if (is_remembered && n_bytes_hashed > 0 && notes) {
    std::string note = note_head(stamps);
    add_number(note, n_known);
    notes->write_note(notes->top(), note_name(stamps), note + known);
  }
  if (n_known < pieces.size()) return std::nullopt;
  Sha256 sha;
  sha.add_field(kDigestTag);
  sha.add_number(stamps.size());
  for (const FileStamp& stamp : stamps) sha.add_number(stamp.n_bytes);
  sha.add(known.data(), known.size());
  return sha.finish();
}

ModelDigest::ModelDigest(std::span<const MappedFile> parts, const PrefixCacheOptions& options,
                         size_t n_threads, std::chrono::nanoseconds settled) {
  uint64_t n_bytes = 0;
  for (const MappedFile& part : parts) n_bytes += part.stamp().n_bytes;
  work_ = or_miss([&] { return std::make_shared<Work>(parts, options, settled); });
  if (!work_ || work_->has_failed) return;
  const size_t n_left = work_->pieces.size() - work_->next;
  n_threads = n_bytes > options.most_hashed_first ? std::min(n_threads, n_left) : 0;
  if (n_threads == 0) work_->hash_pieces(false);
  or_miss([&] {
    threads_ = Offload::make(n_threads);
    for (size_t i = 0; i < n_threads; ++i)
      threads_->run([work = work_, &is_ending = threads_->is_ending()] {
        ::setpriority(PRIO_PROCESS, 0, kNice);  // on Linux: of this thread
        work->hash_pieces(is_ending);
      });
  });
}

std::optional<Hash256> ModelDigest::value() const {
  if (!work_) return std::nullopt;
  const std::lock_guard lock(work_->mutex);
  return work_->value;
}

bool ModelDigest::is_current() const { return work_ && work_->is_unchanged(); }

uint64_t ModelDigest::n_bytes_hashed() const { return work_ ? work_->n_bytes_hashed.load() : 0; }

Hash256 fingerprint(const Hash256& model, const CacheLayout& layout, const std::string& numerics) {
  Sha256 sha;
  sha.add_field(kFingerprintTag);
  sha.add_field(numerics);
  sha.add_number(static_cast<uint64_t>(layout.kv_type));
  for (const int64_t n : {layout.kv_lora_rank, layout.qk_rope_head_dim, layout.index_head_dim, kPageTokens})
    sha.add_number(static_cast<uint64_t>(n));
  if (layout.has_bounds) sha.add_number(static_cast<uint64_t>(layout.span_bytes()));
  sha.add(model.data(), model.size());
  return sha.finish();
}

}  // namespace dsv32
