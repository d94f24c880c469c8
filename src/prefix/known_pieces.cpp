#include "prefix/known_pieces.h"

#include <cstring>

#include <fcntl.h>
#include <unistd.h>

namespace dsv32 {
namespace {

constexpr std::string_view kMagic = "dsv32 model 1\n";

void add_number(std::string& bytes, uint64_t value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void add_hash(std::string& bytes, const Hash256& hash) {
  bytes.append(reinterpret_cast<const char*>(hash.data()), hash.size());
}

Hash256 hash_of(std::string_view bytes) {
  Sha256 sha;
  sha.add(bytes.data(), bytes.size());
  return sha.finish();
}

std::span<const uint8_t> as_bytes(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

}  // namespace

KnownPieces::KnownPieces(const std::string& directory, FileSystem& fs, std::span<const FileStamp> stamps,
                         uint64_t piece_bytes, uint64_t n_pieces)
    : head_(kMagic), n_pieces_(n_pieces) {
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
  const Hash256 name = hash_of(places);
  name_ = "model-" + hex(std::span(name).first(name.size() / 2));
  files_ = CacheFiles::open(directory, fs, reason);
}

std::vector<Hash256> KnownPieces::load() const {
  if (!files_) return {};
  FileSystem& fs = files_->fs();
  const OwnedFd file(fs, fs.open_at(files_->top(), name_, O_RDONLY));
  FileInfo info;
  const uint64_t least = head_.size() + sizeof(uint64_t) + sizeof(Hash256);
  if (!file.is_open() || fs.stat(file.get(), info) != 0 || !info.is_regular || info.owner != ::geteuid() ||
      info.n_bytes < least || info.n_bytes > least + n_pieces_ * sizeof(Hash256))
    return {};
  std::string bytes(info.n_bytes, '\0');
  if (read_fully(fs, file.get(), {{bytes.data(), bytes.size()}}, 0) != static_cast<int64_t>(bytes.size()))
    return {};
  uint64_t n_known = 0;
  std::memcpy(&n_known, bytes.data() + head_.size(), sizeof n_known);
  const std::string_view all(bytes), body = all.substr(0, all.size() - sizeof(Hash256));
  const Hash256 checksum = hash_of(body);
  if (!all.starts_with(head_) || n_known > n_pieces_ || all.size() != least + n_known * sizeof(Hash256) ||
      std::memcmp(checksum.data(), all.data() + body.size(), checksum.size()) != 0)
    return {};
  std::vector<Hash256> hashes(n_known);
  for (size_t i = 0; i < hashes.size(); ++i)
    std::memcpy(hashes[i].data(), body.data() + head_.size() + sizeof n_known + i * sizeof(Hash256),
                sizeof(Hash256));
  return hashes;
}

// Two processes that meet here lose a file at most: then its model is hashed again.
void KnownPieces::save(std::span<const Hash256> hashes) const {
  if (!files_) return;
  std::string bytes = head_;
  add_number(bytes, hashes.size());
  for (const Hash256& hash : hashes) add_hash(bytes, hash);
  add_hash(bytes, hash_of(bytes));
  FileSystem& fs = files_->fs();
  const std::string temporary = name_ + ".new";
  fs.unlink(files_->top(), temporary);
  const OwnedFd file(fs, fs.open_at(files_->top(), temporary, O_WRONLY | O_CREAT | O_EXCL));
  if (!file.is_open()) return;
  if (write_fully(fs, file.get(), as_bytes(bytes), 0) == 0) {
    fs.unlink(files_->top(), name_);
    if (fs.rename_new(files_->top(), temporary, name_) == 0) return;
  }
  fs.unlink(files_->top(), temporary);
}

}  // namespace dsv32
