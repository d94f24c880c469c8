// What a power cut would leave of a store's directory.
//
// The store runs on the real directory. A model beside it records which bytes and which names no sync has
// made durable. At any moment it can paint a picture of the disk after a power cut: every 512-byte sector of
// an unsynced write is applied, dropped or trashed, every unsynced change of a directory is kept or lost. One
// thread.
#pragma once

#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/support/fault_file_system.h"

namespace dsv32 {

enum class SyncKind { none, page_data, page_name, folder_name };  // folder: a fingerprint's directory

class PowerLossFileSystem : public FaultFileSystem {
 public:
  explicit PowerLossFileSystem(std::string directory) : root_(std::move(directory)) {}

  // This kind of sync reports success and does nothing; if is_late, it is done after the next sync.
  SyncKind broken = SyncKind::none;
  bool is_late = false;

  enum class Picture { nothing_unsynced, everything_unsynced, mixed };
  void paint(const std::string& directory, Picture picture, std::mt19937& random) const;

  int open_directory(const std::string& path) override;
  int open_at(int directory, const std::string& name, int flags, mode_t mode) override;
  void close(int fd) override;
  ssize_t pwrite(int fd, const void* bytes, size_t n_bytes, uint64_t offset) override;
  int reserve(int fd, uint64_t n_bytes) override;
  int fsync(int fd) override;
  int fdatasync(int fd) override;
  int make_directory(int directory, const std::string& name, mode_t mode) override;
  int rename_new(int directory, const std::string& from, const std::string& to) override;
  int unlink(int directory, const std::string& name) override;

 private:
  struct Write {
    uint64_t offset;
    std::string bytes;
  };
  struct File {
    std::string durable;
    std::vector<Write> pending;
  };
  using Names = std::map<std::string, std::shared_ptr<File>>;
  struct Change {
    std::string removed, added;  // empty: none
    std::shared_ptr<File> file;
  };
  struct Folder {
    Names durable, present;
    std::vector<Change> pending;
    bool is_durable = false;  // whether its own name is
  };

  Folder* folder_of(int fd);
  void apply(Folder& folder, const Change& change);
  void make_durable(SyncKind kind, int fd);
  int sync(SyncKind kind, int fd, int result);
  static std::string content(const File& file, Picture picture, std::mt19937& random);

  std::string root_;
  std::map<std::string, Folder> folders_;
  std::map<int, std::string> folder_fds_;  // "" is the root
  std::map<int, std::shared_ptr<File>> file_fds_;
  std::vector<std::pair<SyncKind, int>> late_;
};

}  // namespace dsv32
