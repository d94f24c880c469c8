// What the files of a model hold, every byte of them, as 256 bits.
//
// Threads hash the files in pieces; the digest is the hash of the pieces' hashes in order. A note in the
// directory of the disk cache (cache_files.h) keeps these with the files' stamps: the next start knows the
// digest without reading, or goes on where this one ended. Any doubt about the note means hashing again.
//
// Nothing here slows or ends a run: threads give way to others, and where one cannot be made, a file cannot
// be read or changes meanwhile, there is no digest. The digest says nothing of paths; files cut in other
// parts have another one.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "backend/cache_layout.h"
#include "base/file.h"
#include "base/file_system.h"
#include "base/sha256.h"

namespace dsv32 {

struct ModelDigestOptions {
  std::string directory = {};  // of the disk cache
  FileSystem* files = &real_file_system();
  uint64_t most_hashed_first = 0;  // a model of at most so many bytes is hashed by the constructor
  int n_threads = 1;               // at most, beside the caller
  // Files that changed later than so long before hashing are not remembered: another change could leave their
  // times the same.
  std::chrono::nanoseconds settled = std::chrono::seconds(2);
};

class ModelDigest {
 public:
  // Begins to hash what is not known yet. `parts`: of the model, in order; only looked at here.
  ModelDigest(std::span<const MappedFile> parts, const ModelDigestOptions& options);
  // Its end ends the hashing, and waits at most 2 s for a read in progress.
  ModelDigest(const ModelDigest&) = delete;
  ModelDigest& operator=(const ModelDigest&) = delete;

  std::optional<Hash256> value() const;  // once it is known. Any thread.
  uint64_t n_bytes_hashed() const;       // by this object. Any thread.

  static constexpr uint64_t kPieceBytes = uint64_t{64} << 20;  // part of what the digest is

 private:
  struct Work;
  std::shared_ptr<Work> work_;  // the threads' too, which outlive this object when a read hangs
};

// The fingerprint: 256 bits that stand for everything that decides the bytes of pages. `model`: the digest of
// its files; `numerics`: of the backend. The size of the context, paths, threads and buffers do not matter.
Hash256 fingerprint(const Hash256& model, const CacheLayout& layout, const std::string& numerics);

}  // namespace dsv32
