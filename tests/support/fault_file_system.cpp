#include "tests/support/fault_file_system.h"

#include <algorithm>

namespace dsv32 {

std::optional<int> FaultFileSystem::fault(FileOp op) {
  const int64_t n = n_calls++;
  return on_call ? on_call(n, op) : std::nullopt;
}

int FaultFileSystem::open_directory(const std::string& path) {
  if (const auto result = fault(FileOp::open)) return *result;
  return real_.open_directory(path);
}
int FaultFileSystem::open_at(int directory, const std::string& name, int flags, mode_t mode) {
  if (const auto result = fault(FileOp::open)) return *result;
  if (const auto result = on_open ? on_open(name, flags) : std::nullopt) return *result;
  return real_.open_at(directory, name, flags, mode);
}
void FaultFileSystem::close(int fd) {
  fault(FileOp::close);
  real_.close(fd);
}
ssize_t FaultFileSystem::pread(int fd, void* bytes, size_t n_bytes, uint64_t offset) {
  if (const auto result = fault(FileOp::read)) return *result;
  return real_.pread(fd, bytes, std::min<size_t>(n_bytes, most_at_once), offset);
}
ssize_t FaultFileSystem::pwrite(int fd, const void* bytes, size_t n_bytes, uint64_t offset) {
  if (const auto result = fault(FileOp::write)) return *result;
  const ssize_t n = real_.pwrite(fd, bytes, std::min<size_t>(n_bytes, most_at_once), offset);
  if (n > 0) n_bytes_written += static_cast<uint64_t>(n);
  return n;
}
int FaultFileSystem::reserve(int fd, uint64_t n_bytes) {
  if (const auto result = fault(FileOp::reserve)) return *result;
  return real_.reserve(fd, n_bytes);
}
int FaultFileSystem::fsync(int fd) {
  if (const auto result = fault(FileOp::sync_directory)) return *result;
  return real_.fsync(fd);
}
int FaultFileSystem::fdatasync(int fd) {
  if (const auto result = fault(FileOp::sync_data)) return *result;
  return real_.fdatasync(fd);
}
int FaultFileSystem::make_directory(int directory, const std::string& name, mode_t mode) {
  if (const auto result = fault(FileOp::make_directory)) return *result;
  return real_.make_directory(directory, name, mode);
}
int FaultFileSystem::rename_new(int directory, const std::string& from, const std::string& to) {
  if (const auto result = fault(FileOp::rename)) return *result;
  return real_.rename_new(directory, from, to);
}
int FaultFileSystem::unlink(int directory, const std::string& name) {
  if (const auto result = fault(FileOp::unlink)) return *result;
  return real_.unlink(directory, name);
}
int FaultFileSystem::list(int directory, std::vector<std::string>& names) {
  if (const auto result = fault(FileOp::list)) return *result;
  return real_.list(directory, names);
}
int FaultFileSystem::stat_at(int directory, const std::string& name, FileInfo& info) {
  if (const auto result = fault(FileOp::stat)) return *result;
  return real_.stat_at(directory, name, info);
}
int FaultFileSystem::stat(int fd, FileInfo& info) {
  if (const auto result = fault(FileOp::stat)) return *result;
  return real_.stat(fd, info);
}
int FaultFileSystem::set_time(int directory, const std::string& name, int64_t changed_ns) {
  if (const auto result = fault(FileOp::set_time)) return *result;
  return real_.set_time(directory, name, changed_ns);
}
int FaultFileSystem::space(int fd, SpaceInfo& info) {
  if (const auto result = fault(FileOp::space)) return *result;
  return real_.space(fd, info);
}
int FaultFileSystem::try_lock(int fd) {
  if (const auto result = fault(FileOp::lock)) return *result;
  return real_.try_lock(fd);
}

}  // namespace dsv32
