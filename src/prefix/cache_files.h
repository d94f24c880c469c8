// The files in the disk cache's directory: their owner, their names, and small notes.
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
// The directory is opened once, and everything in it relative to it; symbolic links are never followed. Other
// names, and folders that other users may write, are counted and never touched. Any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "base/file_system.h"
#include "base/sha256.h"

namespace dsv32 {

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
  OwnedFd directory_;
  std::string path_;
};

}  // namespace dsv32
