// A 256-bit digest of every byte of a model's files.
//
// Threads of low priority hash the files in pieces; the digest is the hash of the pieces' hashes in order, so
// it depends on how the model is split into files, and on no path. A note in the directory of the disk cache
// (cache_files.h) keeps the pieces' hashes with the files' stamps, so that the next start knows the digest
// without reading, or continues where this one stopped. If no thread can be started, or a file cannot be read
// or gets another stamp meanwhile, there is no digest.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "backend/cache_layout.h"
#include "base/file.h"
#include "base/sha256.h"
#include "base/thread.h"
#include "prefix/prefix_cache_options.h"

namespace dsv32 {

class ModelDigest {
 public:
  // Begins to hash the pieces that the note lacks. `parts`: the model's files in order, used only by this
  // call. The constructor hashes a model of up to options.most_hashed_first bytes; a larger one gets at most
  // n_threads threads. The note leaves out files that changed less than `settled` before: another change
  // could leave their times the same. The destructor stops the hashing, and waits at most 2 s for a read in
  // progress.
  ModelDigest(std::span<const MappedFile> parts, const PrefixCacheOptions& options, size_t n_threads = 1,
              std::chrono::nanoseconds settled = std::chrono::seconds(2));

  std::optional<Hash256> value() const;  // nothing until it is known. Any thread.
  uint64_t n_bytes_hashed() const;       // by this object. Any thread.
  // Whether the files still have the stamps that they had at the beginning: only then may value() be taken
  // for that of their bytes now.
  bool is_current() const;

  static constexpr uint64_t kPieceBytes = uint64_t{64} << 20;  // the digest depends on it

 private:
  struct Work;
  std::shared_ptr<Work> work_;  // shared with the threads, which outlive this object when a read hangs
  std::shared_ptr<Offload> threads_;
};

// The fingerprint: a hash of everything that decides the bytes of pages. `model`: the digest of its files;
// `numerics`: names the backends' arithmetic. Context size, paths, threads and buffers do not matter.
Hash256 fingerprint(const Hash256& model, const CacheLayout& layout, const std::string& numerics);

}  // namespace dsv32
