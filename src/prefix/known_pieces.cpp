#include "prefix/known_pieces.h"

#include <cstring>
#include <utility>

namespace dsv32 {
namespace {

constexpr std::string_view kPiecesMagic = "dsv32 model 1\n";

void add_number(std::string& bytes, uint64_t value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

}  // namespace

KnownPieces::KnownPieces(const std::string& directory, FileSystem& fs, std::span<const FileStamp> stamps,
                         uint64_t piece_bytes, uint64_t n_pieces)
    : head_(kPiecesMagic), n_pieces_(n_pieces) {
  std::string places, reason;
  add_number(head_, piece_bytes);
  add_number(head_, stamps.size());
  for (const FileStamp& stamp : stamps) {
    for (const uint64_t n : {stamp.device, stamp.inode}) add_number(places, n);
    for (const uint64_t n :
         {stamp.device, stamp.inode, stamp.n_bytes, static_cast<uint64_t>(stamp.written_ns),
          static_cast<uint64_t>(stamp.changed_ns)})
      add_number(head_, n);
  }
  Sha256 name;
  name.add(places.data(), places.size());
  name_ = CacheFiles::model_note(name.finish());
  files_ = CacheFiles::open(directory, fs, reason);
}

std::vector<Hash256> KnownPieces::load() const {
  if (!files_) return {};
  const size_t n_head = head_.size() + sizeof(uint64_t);
  const std::string note = files_->read_note(files_->top(), name_, n_head + n_pieces_ * sizeof(Hash256));
  if (note.size() < n_head || !note.starts_with(head_)) return {};
  std::vector<Hash256> hashes((note.size() - n_head) / sizeof(Hash256));
  std::memcpy(hashes.data(), note.data() + n_head, hashes.size() * sizeof(Hash256));
  return hashes;
}

void KnownPieces::save(std::span<const Hash256> hashes) const {
  if (!files_) return;
  std::string note = head_;
  add_number(note, hashes.size());  // as their length says too
  for (const Hash256& hash : hashes) note.append(hash.begin(), hash.end());
  files_->write_note(files_->top(), name_, std::move(note));
}

}  // namespace dsv32
