// The hashes of a model's pieces, as far as they are known: a note for each model in the directory of the
// disk cache (cache_files.h), named by its parts' devices and inodes.
//
// The one idea: any doubt means hashing again. The note begins with what it is about, the size of a piece and
// the stamps of all parts, and is believed only when these are the same now. No call throws for a fault of
// the disk; one thread at a time.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/sha256.h"
#include "prefix/cache_files.h"

namespace dsv32 {

class KnownPieces {
 public:
  // Of a model in n_pieces pieces of piece_bytes.
  KnownPieces(const std::string& directory, FileSystem& fs, std::span<const FileStamp> stamps,
              uint64_t piece_bytes, uint64_t n_pieces);

  // From the first piece on; empty when nothing is known.
  std::vector<Hash256> load() const;
  // In place of what was kept. Not kept where the disk does not take it.
  void save(std::span<const Hash256> hashes) const;

 private:
  std::string head_;  // what the note begins with
  std::string name_;
  uint64_t n_pieces_;
  std::optional<CacheFiles> files_;  // nothing: the directory cannot be used
};

}  // namespace dsv32
