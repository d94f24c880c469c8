// The files of the disk cache's directory: whose they may be, their names, the bytes they take.
//
//   <dir>/                 0700, of this user
//     LOCK                 flock of the process that changes which segments there are
//     model-<32 hex>       a note: the hashes of a model's pieces (model_digest.cpp)
//     <32 hex>/            the folder of a fingerprint, named by its first 16 bytes
//       seg-<32 hex>.kvs   a segment (segment.h), named by the first 16 bytes of its chain hash, there by a
//                          rename after its bytes were durable; its time is that of its last use
//       speeds             a note: what earlier runs measured (prefix_store.h)
//       path               a note: where the model's file lay
//     tmp-<32 hex>         here and there, one being written; its writer holds a flock on it: without one it
//                          is a leftover
//
// A note is a small file that is made anew at each change; its last 32 bytes are the SHA-256 of all others.
//
// The directory is opened once, and everything in it relative to that, no symbolic link followed. Other
// names, and folders that others may write, belong to others: counted and never touched. What bears a
// segment's name and is no file of this user gives way to the segment. Any thread.
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
  // The directory is made when missing, its parents too. Nothing, and the reason, when it must not or cannot
  // be used.
  static std::optional<CacheFiles> open(const std::string& path, FileSystem& fs, std::string& reason);

  FileSystem& fs() const { return *fs_; }
  int top() const { return directory_.get(); }
  const std::string& path() const { return path_; }  // without symbolic links

  static std::string name_of(const Hash256& hash);  // a folder's: of its fingerprint
  static std::string segment_file(const Hash256& chain) { return "seg-" + name_of(chain) + ".kvs"; }
  static std::string model_note(const Hash256& model) { return "model-" + name_of(model); }
  static std::string new_temporary();  // that no other process has; empty when there is no randomness

  // Not open on failure: error() says why.
  OwnedFd open_folder(const std::string& name) const;
  OwnedFd open_folder(const Hash256& fingerprint) const { return open_folder(name_of(fingerprint)); }
  OwnedFd make_folder(const Hash256& fingerprint) const;  // durably, when it is missing

  std::vector<std::string> folders() const;  // of fingerprints; what cannot be listed is not there
  std::vector<std::string> segments_in(int folder) const;  // file names, whatever bears them

  // Takes away what bears a segment's name. True when the name is free. A folder that is not empty is moved
  // to another name: its content may be a user's.
  bool free_name(int folder, const std::string& segment) const;
  // Removes the temporary files that no process writes, and what former versions kept beside the segments.
  void sweep() const;
  void forget_models() const;  // removes their notes

  // A note without its hash; empty in any doubt, and when that is more than `most_bytes`.
  static constexpr char kPathNote[] = "path";
  std::string read_note(int directory, const std::string& name, size_t most_bytes) const;
  // In place of what was there. What the disk does not take is not kept; of two at a time, one is kept.
  void write_note(int directory, const std::string& name, std::string bytes) const;

  uint64_t used_bytes() const { return used_bytes(top(), 0); }  // on the disk, by everything

 private:
  CacheFiles(FileSystem& fs, OwnedFd directory, std::string path)
      : fs_(&fs), directory_(std::move(directory)), path_(std::move(path)) {}
  uint64_t used_bytes(int directory, int depth) const;
  std::vector<std::string> names(int directory, bool (*is_wanted)(const std::string&)) const;
  bool is_own(int directory, const std::string& name, FileInfo& info) const;  // a file of this user
  void remove(int directory, bool (*is_wanted)(const std::string&)) const;    // own ones without a lock

  FileSystem* fs_;
  OwnedFd directory_;
  std::string path_;
};

}  // namespace dsv32
