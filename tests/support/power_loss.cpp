#include "tests/support/power_loss.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <utility>

#include <fcntl.h>

#include "tests/support/plain_files.h"

namespace dsv32 {
namespace {

constexpr size_t kSectorBytes = 512;

void write_at(std::string& content, uint64_t offset, std::string_view bytes) {
  if (content.size() < offset + bytes.size()) content.resize(offset + bytes.size(), '\0');
  std::memcpy(&content[offset], bytes.data(), bytes.size());
}

}  // namespace

PowerLossFileSystem::Folder* PowerLossFileSystem::folder_of(int fd) {
  const auto folder = folder_fds_.find(fd);
  return folder == folder_fds_.end() || folder->second.empty() ? nullptr : &folders_[folder->second];
}

void PowerLossFileSystem::apply(Folder& folder, const Change& change) {
  if (!change.removed.empty()) folder.present.erase(change.removed);
  if (!change.added.empty()) folder.present[change.added] = change.file;
  folder.pending.push_back(change);
}

int PowerLossFileSystem::open_directory(const std::string& path) {
  const int fd = FaultFileSystem::open_directory(path);
  if (fd >= 0 && path == root_) folder_fds_[fd] = "";
  return fd;
}

int PowerLossFileSystem::open_at(int directory, const std::string& name, int flags, mode_t mode) {
  const int fd = FaultFileSystem::open_at(directory, name, flags, mode);
  if (fd < 0) return fd;
  if (flags & O_DIRECTORY) {
    folder_fds_[fd] = name;
  } else if (Folder* folder = folder_of(directory)) {
    if ((flags & O_CREAT) && !folder->present.contains(name))
      apply(*folder, {{}, name, std::make_shared<File>()});
    file_fds_[fd] = folder->present[name];
  }
  return fd;
}

void PowerLossFileSystem::close(int fd) {
  FaultFileSystem::close(fd);
  folder_fds_.erase(fd);
  file_fds_.erase(fd);
}

ssize_t PowerLossFileSystem::pwrite(int fd, const void* bytes, size_t n_bytes, uint64_t offset) {
  const ssize_t n = FaultFileSystem::pwrite(fd, bytes, n_bytes, offset);
  if (n > 0 && file_fds_.contains(fd))
    file_fds_[fd]->pending.push_back({offset, {static_cast<const char*>(bytes), static_cast<size_t>(n)}});
  return n;
}

// Reserved space reads as zeros.
int PowerLossFileSystem::reserve(int fd, uint64_t n_bytes) {
  const int result = FaultFileSystem::reserve(fd, n_bytes);
  if (result == 0 && file_fds_.contains(fd))
    file_fds_[fd]->pending.push_back({0, std::string(n_bytes, '\0')});
  return result;
}

int PowerLossFileSystem::fdatasync(int fd) {
  return sync(SyncKind::page_data, fd, FaultFileSystem::fdatasync(fd));
}

int PowerLossFileSystem::fsync(int fd) {
  const auto folder = folder_fds_.find(fd);
  const bool is_root = folder != folder_fds_.end() && folder->second.empty();
  return sync(is_root ? SyncKind::folder_name : SyncKind::page_name, fd, FaultFileSystem::fsync(fd));
}

int PowerLossFileSystem::sync(SyncKind kind, int fd, int result) {
  if (result != 0) return result;
  if (kind != broken) make_durable(kind, fd);
  for (const auto& [late_kind, late_fd] : std::exchange(late_, {})) make_durable(late_kind, late_fd);
  if (kind == broken && is_late) late_.push_back({kind, fd});
  return 0;
}

void PowerLossFileSystem::make_durable(SyncKind kind, int fd) {
  if (kind == SyncKind::folder_name)
    for (auto& [name, folder] : folders_) folder.is_durable = true;
  if (kind == SyncKind::page_name) {
    if (Folder* folder = folder_of(fd)) folder->durable = folder->present, folder->pending.clear();
  }
  if (kind == SyncKind::page_data && file_fds_.contains(fd)) {
    File& file = *file_fds_[fd];
    for (const Write& write : std::exchange(file.pending, {}))
      write_at(file.durable, write.offset, write.bytes);
  }
}

int PowerLossFileSystem::make_directory(int directory, const std::string& name, mode_t mode) {
  const int result = FaultFileSystem::make_directory(directory, name, mode);
  if (result == 0 && folder_fds_.contains(directory)) folders_[name];
  return result;
}

int PowerLossFileSystem::rename_new(int directory, const std::string& from, const std::string& to) {
  const int result = FaultFileSystem::rename_new(directory, from, to);
  if (Folder* folder = result == 0 ? folder_of(directory) : nullptr)
    apply(*folder, {from, to, folder->present[from]});
  return result;
}

int PowerLossFileSystem::unlink(int directory, const std::string& name) {
  const int result = FaultFileSystem::unlink(directory, name);
  if (Folder* folder = result == 0 ? folder_of(directory) : nullptr) apply(*folder, {name, {}, nullptr});
  return result;
}

std::string PowerLossFileSystem::content(const File& file, Picture picture, std::mt19937& random) {
  std::string content = file.durable;
  for (const Write& write : file.pending) {
    if (picture == Picture::nothing_unsynced) continue;
    for (size_t begin = 0; begin < write.bytes.size(); begin += kSectorBytes) {
      std::string sector = write.bytes.substr(begin, kSectorBytes);
      const auto fate = picture == Picture::everything_unsynced ? 0 : random() % 3;
      if (fate == 1) continue;
      if (fate == 2) std::ranges::generate(sector, [&] { return static_cast<char>(random()); });
      write_at(content, write.offset + begin, sector);
    }
  }
  return content;
}

void PowerLossFileSystem::paint(const std::string& directory, Picture picture, std::mt19937& random) const {
  namespace stdfs = std::filesystem;
  const auto happens = [&] {
    return picture == Picture::everything_unsynced || (picture == Picture::mixed && random() % 2 == 0);
  };
  const auto make_private = [](const stdfs::path& path) {
    stdfs::create_directory(path);
    stdfs::permissions(path, stdfs::perms::owner_all);
  };
  make_private(directory);
  for (const auto& [name, folder] : folders_) {
    if (!folder.is_durable && !happens()) continue;
    make_private(directory + "/" + name);
    Names names = folder.durable;
    for (const Change& change : folder.pending) {
      if (!happens()) continue;
      if (!change.removed.empty()) names.erase(change.removed);
      if (!change.added.empty()) names[change.added] = change.file;
    }
    for (const auto& [file_name, file] : names)
      write_file(directory + "/" + name + "/" + file_name, content(*file, picture, random));
  }
}

}  // namespace dsv32
