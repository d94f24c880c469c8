// The files of the disk cache's directory: who may use them, their names, the bytes they take.
//
//   <dir>/            0700, of this user
//     LOCK            flock: shared while the index is used, exclusive while it is made anew
//     index.sqlite    derived from the segments (prefix_index.h)
//     <32 hex>/       the folder of a fingerprint, named by its first 16 bytes
//       seg-<32 hex>.kvs   a segment (segment_file.h), there by a rename after its bytes were durable
//       tmp-<32 hex>       one being written; its writer holds a flock on it: without one it is a leftover
//
// The directory is opened once, and everything in it relative to that, no symbolic link followed. A name that
// is none of these, a folder that others may write, a file with two names: of others, counted and never
// touched. Nothing here decides; any thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/file_system.h"
#include "context/token_chain.h"

namespace dsv32 {

class CacheFiles {
 public:
  // The directory is made when missing, its parents too. Nothing, and the reason, when it must not or cannot
  // be used.
  static std::optional<CacheFiles> open(const std::string& path, FileSystem& fs, std::string& reason);

  FileSystem& fs() const { return *fs_; }
  int top() const { return directory_.get(); }
  const std::string& path() const { return path_; }  // without symbolic links

  static std::string folder_name(const Hash256& fingerprint);
  static std::string segment_file(const std::string& name) { return "seg-" + name + ".kvs"; }
  static std::string temporary_file(const std::string& name) { return "tmp-" + name; }

  // Not open on failure: error() says why.
  OwnedFd open_folder(const std::string& name) const;
  OwnedFd open_folder(const Hash256& fingerprint) const { return open_folder(folder_name(fingerprint)); }
  OwnedFd make_folder(const Hash256& fingerprint) const;  // durably, when it is missing

  struct Folder {
    std::vector<std::string> segments;     // their names, without prefix and suffix
    std::vector<std::string> temporaries;  // file names
  };
  int list(std::map<std::string, Folder>& folders) const;  // 0 or a negative errno

  // True when it is gone.
  bool unlink_segment(const Hash256& fingerprint, const std::string& name) const;
  // Removes it when nobody writes it.
  void sweep(int folder, const std::string& temporary) const;
  // On the disk, by everything.
  uint64_t used_bytes() const { return used_bytes(top(), 0); }

 private:
  CacheFiles(FileSystem& fs, OwnedFd directory, std::string path)
      : fs_(&fs), directory_(std::move(directory)), path_(std::move(path)) {}
  uint64_t used_bytes(int directory, int depth) const;

  FileSystem* fs_;
  OwnedFd directory_;
  std::string path_;
};

}  // namespace dsv32
