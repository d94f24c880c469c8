#include "prefix/cache_files.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <new>
#include <span>
#include <string_view>

#include <fcntl.h>
#include <unistd.h>

#include "base/error.h"

namespace dsv32 {
namespace {

constexpr std::string_view kTemporary = "tmp-", kModelNote = "model-";

bool is_named(const std::string& file, std::string_view prefix, size_t n_digits) {
  return file.size() == prefix.size() + n_digits && file.starts_with(prefix) &&
         file.find_first_not_of("0123456789abcdef", prefix.size()) == std::string::npos;
}

// Why a directory must not be used; empty when it may.
std::string refusal(const FileInfo& info) {
  if (info.owner != ::geteuid())
    return format("it belongs to user %u, not to user %u", info.owner, ::geteuid());
  if (info.mode & 022) return format("others may write in it (mode %03o); chmod 700 it", info.mode & 0777);
  return {};
}

}  // namespace

bool is_own_file(const FileInfo& info) { return info.is_regular && info.owner == ::geteuid(); }

std::optional<CacheFiles> CacheFiles::open(const std::string& path, FileSystem& fs, std::string& reason) {
  std::error_code error;
  std::filesystem::path whole = std::filesystem::absolute(path, error).lexically_normal();
  if (!whole.has_filename()) whole = whole.parent_path();
  if (error || path.empty() || !whole.has_filename())
    return reason = "it is no name of a folder", std::nullopt;
  OwnedFd directory(fs, fs.open_directory(whole.string()));
  if (directory.error() == -ENOENT) {
    std::filesystem::create_directories(whole.parent_path(), error);
    const OwnedFd above(fs, fs.open_directory((whole.parent_path() / ".").string()));
    int result = error             ? -error.value()
                 : above.is_open() ? fs.make_directory(above.get(), whole.filename().string())
                                   : above.error();
    if (result == 0) fs.fsync(above.get());  // without this a power cut can lose the cache, nothing else
    if (result == -EEXIST) result = 0;
    directory = OwnedFd(fs, result == 0 ? fs.open_directory(whole.string()) : result);
  }
  FileInfo info;
  const int result = directory.is_open() ? fs.stat(directory.get(), info) : directory.error();
  if (result == 0)
    reason = refusal(info);
  else if (result == -ELOOP || result == -ENOTDIR)
    reason = "it is a symbolic link or no directory";
  else
    reason = describe_errno(result);
  if (!reason.empty()) return std::nullopt;
  return CacheFiles(fs, std::move(directory), whole.string());
}

bool CacheFiles::is_folder(const std::string& name) { return is_named(name, "", 64); }
bool CacheFiles::is_temporary(const std::string& name) { return is_named(name, kTemporary, 32); }
bool CacheFiles::is_model_note(const std::string& name) { return is_named(name, kModelNote, 32); }

std::string CacheFiles::model_note(const Hash256& model) {
  return std::string(kModelNote) + hex(std::span(model).first(16));
}

std::string CacheFiles::new_temporary() {
  std::array<uint8_t, 16> random{};
  if (::getentropy(random.data(), random.size()) != 0) throw std::bad_alloc();
  return std::string(kTemporary) + hex(random);
}

OwnedFd CacheFiles::open_folder(const std::string& name) const {
  OwnedFd folder(*fs_, fs_->open_at(top(), name, O_RDONLY | O_DIRECTORY));
  FileInfo info;
  if (folder.is_open() && (fs_->stat(folder.get(), info) != 0 || !refusal(info).empty()))
    return {*fs_, -EPERM};
  return folder;
}

OwnedFd CacheFiles::make_folder(const std::string& name) const {
  OwnedFd folder = open_folder(name);
  if (folder.error() != -ENOENT) return folder;
  const int result = fs_->make_directory(top(), name);
  if (result != 0 && result != -EEXIST) return {*fs_, result};
  // Until the folder's name is durable, a power cut can lose everything in it.
  if (const int synced = fs_->fsync(top()); synced != 0) return {*fs_, synced};
  return open_folder(name);
}

std::string CacheFiles::read_note(int directory, const std::string& name, size_t most_bytes) const {
  FileInfo info;
  if (fs_->stat_at(directory, name, info) != 0 || !is_own_file(info) || info.n_bytes < sizeof(Hash256) ||
      info.n_bytes > most_bytes + sizeof(Hash256))
    return {};
  const OwnedFd file(*fs_, fs_->open_at(directory, name, O_RDONLY));
  if (!file.is_open()) return {};
  std::string note(info.n_bytes, '\0');
  const int64_t n_read = read_fully(*fs_, file.get(), {{note.data(), note.size()}}, 0);
  const std::string hash = note.substr(note.size() - sizeof(Hash256));
  note.resize(note.size() - sizeof(Hash256));
  const bool is_whole =
      n_read == static_cast<int64_t>(info.n_bytes) && std::ranges::equal(as_bytes(hash), sha256(note));
  return is_whole ? note : std::string();
}

void CacheFiles::write_note(int directory, const std::string& name, std::string bytes) const {
  const Hash256 hash = sha256(bytes);
  bytes.append(hash.begin(), hash.end());
  replace_file(*fs_, directory, name, new_temporary(), bytes);
}

}  // namespace dsv32
