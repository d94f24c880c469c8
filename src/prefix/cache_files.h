// The files in the disk cache's directory: their owner, their names, small notes, and what leaves when there
// is no room.
//
//   <dir>/                 0700, of this user
//     model-<32 hex>       a note: the hashes of a model's pieces (model_digest.cpp)
//     <64 hex>/            the folder of a fingerprint
//       <32 hex>-<32 hex>  a page (page_file.h); its mtime is its last use
//       path               a note: the model file's path
//     tmp-<32 hex>         here and in folders: a file being written; a page's writer holds a flock on it;
//                          without one it is a leftover
//
// A note is a small file that each change replaces; its last 32 bytes are the SHA-256 of the others.
//
// Files keep all state, and names come and go atomically, so there is no lock. Processes that make room at
// the same time may remove the same pages; together they may exceed the limit by what they are writing.
// Symbolic links are never followed. Other names, and folders that other users may write, are counted and
// never touched. Any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/file_system.h"
#include "base/sha256.h"
#include "prefix/page_file.h"
#include "prefix/prefix_cache_options.h"

namespace dsv32 {

// The result of `body` or, when memory is lacking or a library fails, a default value: a miss. Exceptions of
// the type `Passed` are thrown on.
struct NoError {};
template <typename Passed = NoError, typename Body>
auto or_miss(const Body& body) -> decltype(body()) {
  try {
    return body();
  } catch (const Passed&) {
    throw;
  } catch (const std::exception&) {
    return decltype(body())();
  }
}

bool is_own_file(const FileInfo& info);  // a regular file of this user

class CacheFiles {
 public:
  // Creates the directory and its parents when missing. Nothing, and the reason, when it must not or cannot
  // be used.
  static std::optional<CacheFiles> open(const std::string& path, FileSystem& fs, std::string& reason);

  FileSystem& fs() const { return *fs_; }
  int top() const { return directory_.get(); }
  const std::string& path() const { return path_; }  // without symbolic links

  static bool is_folder(const std::string& name);  // of a fingerprint
  static bool is_temporary(const std::string& name);
  static bool is_model_note(const std::string& name);
  static std::string model_note(const Hash256& model);
  static std::string new_temporary();  // a unique name. Throws std::bad_alloc without random bytes.

  // Not open on failure: error() says why.
  OwnedFd open_folder(const std::string& name) const;
  OwnedFd make_folder(const std::string& name) const;  // creates it durably when missing

  // A note without its hash; empty when it is missing, damaged or longer than `most_bytes`.
  static constexpr char kPathNote[] = "path";
  std::string read_note(int directory, const std::string& name, size_t most_bytes) const;
  // Replaces a note. A note that cannot be written is lost.
  void write_note(int directory, const std::string& name, std::string bytes) const;

 private:
  CacheFiles(FileSystem& fs, OwnedFd directory, std::string path)
      : fs_(&fs), directory_(std::move(directory)), path_(std::move(path)) {}

  FileSystem* fs_;
  OwnedFd directory_;  // opened once; everything else relative to it
  std::string path_;
};

struct StoredPage {
  std::string folder;
  PageName name;
  uint64_t n_bytes = 0;  // on the disk
  int64_t used_ns = 0;   // its last use, since 1970
};
bool remove_page(const CacheFiles& files, const StoredPage& page);  // true: it is gone

struct CacheContent {
  uint64_t n_bytes = 0;  // on the disk, of all files
  std::vector<StoredPage> pages;
};
// `sweeps`: removes leftovers.
CacheContent content_of(const CacheFiles& files, bool sweeps = false);

// Evicts pages until `n_bytes` more fit under the limits: first those that no prompt can reach, then those
// that no page follows, the least recently used first. Returns how many bytes then fit, which may be too few.
// `kept` stays. removed() is told each page that went.
uint64_t make_room(const CacheFiles& files, const CacheLimits& limits, uint64_t n_bytes,
                   const PageHash& kept = {}, const std::function<void(const StoredPage&)>& removed = {});

}  // namespace dsv32
