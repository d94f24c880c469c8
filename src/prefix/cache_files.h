// The files in the disk cache's directory: their owner, names, and bytes on disk.
//
//   <dir>/                 0700, of this user
//     LOCK                 the process that has the turn holds a flock on it
//     model-<32 hex>       a note: the hashes of a model's pieces (model_digest.cpp)
//     <32 hex>/            the folder of a fingerprint, named by its first 16 bytes
//       seg-<32 hex>.kvs   a segment (segment.h), named by the first 16 bytes of its chain hash; renamed to
//                          this once its bytes are durable; its mtime is its last use
//       speeds             a note: what earlier runs measured (prefix_store.h)
//       path               a note: the model file's path
//     tmp-<32 hex>         here and in folders: a file being written; its writer holds a flock on it; without
//                          one it is a leftover
//
// A note is a small file that each change replaces; its last 32 bytes are the SHA-256 of the others.
//
// The directory is opened once, and everything in it relative to it; symbolic links are never followed. Other
// names, and folders that other users may write, are counted and never touched. An entry that has a segment's
// name but is no file of this user is removed or renamed. Any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/file_system.h"
#include "base/sha256.h"

namespace dsv32 {

class CacheFiles {
 public:
  // Creates the directory and its parents when missing. Nothing, and the reason, when it must not or cannot
  // be used.
  static std::optional<CacheFiles> open(const std::string& path, FileSystem& fs, std::string& reason);

  FileSystem& fs() const { return *fs_; }
  int top() const { return directory_.get(); }
  const std::string& path() const { return path_; }  // without symbolic links

  static std::string name_of(const Hash256& hash);  // 16 bytes in hex; of a fingerprint: its folder's name
  static std::string segment_file(const Hash256& chain) { return "seg-" + name_of(chain) + ".kvs"; }
  static std::string model_note(const Hash256& model) { return "model-" + name_of(model); }
  static std::string new_temporary();  // a unique name; empty: no random bytes

  // Not open on failure: error() says why.
  OwnedFd open_folder(const std::string& name) const;
  OwnedFd open_folder(const Hash256& fingerprint) const { return open_folder(name_of(fingerprint)); }
  OwnedFd make_folder(const Hash256& fingerprint) const;  // creates it durably when missing

  std::vector<std::string> folders() const;                // names; empty when they cannot be listed
  std::vector<std::string> segments_in(int folder) const;  // names, of any kind of entry

  // Removes the entry that has a segment's name. True when the name is free. A folder that is not empty is
  // renamed instead: its content may be a user's.
  bool free_name(int folder, const std::string& segment) const;
  // Removes temporary files that no process is writing, and the index of earlier versions.
  void sweep() const;
  void forget_models() const;  // removes models' notes

  // A note without its hash; empty when it is missing, damaged or longer than `most_bytes`.
  static constexpr char kPathNote[] = "path";
  std::string read_note(int directory, const std::string& name, size_t most_bytes) const;
  // Replaces a note. A note that cannot be written is lost; of two writers at a time, one note is kept.
  void write_note(int directory, const std::string& name, std::string bytes) const;

  uint64_t used_bytes() const { return used_bytes(top(), 0); }  // on the disk, of all files

 private:
  CacheFiles(FileSystem& fs, OwnedFd directory, std::string path)
      : fs_(&fs), directory_(std::move(directory)), path_(std::move(path)) {}
  uint64_t used_bytes(int directory, int depth) const;
  std::vector<std::string> names(int directory, bool (*is_wanted)(const std::string&)) const;
  bool is_own(int directory, const std::string& name, FileInfo& info) const;  // a file of this user
  void remove(int directory, bool (*is_wanted)(const std::string&)) const;    // own files without a flock

  FileSystem* fs_;
  OwnedFd directory_;
  std::string path_;
};

}  // namespace dsv32
