#include "prefix/cache_files.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <span>

#include <fcntl.h>
#include <unistd.h>

#include "base/error.h"

namespace dsv32 {
namespace {

constexpr int kMaxDepth = 16;  // directory levels that used_bytes() counts
constexpr size_t kNameDigits = 32;

bool is_digits(const std::string& name) {
  return name.size() == kNameDigits && name.find_first_not_of("0123456789abcdef") == std::string::npos;
}

bool is_segment(const std::string& file) {
  return file.size() == kNameDigits + 8 && file.starts_with("seg-") && file.ends_with(".kvs") &&
         is_digits(file.substr(4, kNameDigits));
}

bool is_temporary(const std::string& file) { return file.starts_with("tmp-") && is_digits(file.substr(4)); }

bool is_model_note(const std::string& file) {
  return file.size() == kNameDigits + 6 && file.starts_with("model-") && is_digits(file.substr(6));
}

// Files of earlier versions: their index with its journals, and unfinished notes.
bool is_former(const std::string& file) {
  return file == "index.sqlite" || file == "index.sqlite-journal" || file == "index.sqlite-wal" ||
         file == "index.sqlite-shm" ||
         (file.ends_with(".new") && is_model_note(file.substr(0, kNameDigits + 6)));
}

bool is_own_directory(const FileInfo& info) {
  return info.is_directory && info.owner == ::geteuid() && (info.mode & 022) == 0;
}

// Why a directory must not be used; empty when it may.
std::string refusal(const FileInfo& info) {
  if (info.owner != ::geteuid())
    return format("it belongs to user %u, not to user %u", info.owner, ::geteuid());
  if (info.mode & 022) return format("others may write in it (mode %03o); chmod 700 it", info.mode & 0777);
  return {};
}

// Splits `path` into name and parent, the parent without symbolic links. Creates the parent when missing. 0
// or a negative errno.
int resolve(const std::string& path, std::filesystem::path& parent, std::string& name) {
  std::error_code error;
  std::filesystem::path whole = std::filesystem::absolute(path, error).lexically_normal();
  if (error || path.empty()) return -EINVAL;
  if (!whole.has_filename()) whole = whole.parent_path();
  name = whole.filename().string();
  if (name.empty()) return -EINVAL;
  std::error_code why;
  std::filesystem::create_directories(whole.parent_path(), why);
  parent = std::filesystem::canonical(whole.parent_path(), error);  // fails if the parent is still missing
  return error ? -(why ? why : error).value() : 0;
}

OwnedFd open_or_make(FileSystem& fs, const std::filesystem::path& parent, const std::string& name) {
  const std::string path = (parent / name).string();
  OwnedFd directory(fs, fs.open_directory(path));
  if (directory.error() != -ENOENT) return directory;
  const OwnedFd above(fs, fs.open_directory(parent.string()));
  if (!above.is_open()) return OwnedFd(fs, above.error());
  const int result = fs.make_directory(above.get(), name);
  if (result != 0 && result != -EEXIST) return OwnedFd(fs, result);
  fs.fsync(above.get());  // without this a power cut can lose the cache, nothing else
  return OwnedFd(fs, fs.open_directory(path));
}

}  // namespace

std::optional<CacheFiles> CacheFiles::open(const std::string& path, FileSystem& fs, std::string& reason) {
  std::filesystem::path parent;
  std::string name;
  FileInfo info;
  if (const int error = resolve(path, parent, name); error != 0)
    return reason = describe_errno(error), std::nullopt;
  OwnedFd directory = open_or_make(fs, parent, name);
  const int result = directory.is_open() ? fs.stat(directory.get(), info) : directory.error();
  if (result == 0)
    reason = refusal(info);
  else if (result == -ELOOP || result == -ENOTDIR)
    reason = "it is a symbolic link or no directory";
  else
    reason = describe_errno(result);
  if (!reason.empty()) return std::nullopt;
  return CacheFiles(fs, std::move(directory), (parent / name).string());
}

std::string CacheFiles::name_of(const Hash256& hash) { return hex(std::span(hash).first(hash.size() / 2)); }

std::string CacheFiles::new_temporary() {
  std::array<uint8_t, kNameDigits / 2> random{};
  return ::getentropy(random.data(), random.size()) == 0 ? "tmp-" + hex(random) : std::string();
}

OwnedFd CacheFiles::open_folder(const std::string& name) const {
  OwnedFd folder(*fs_, fs_->open_at(top(), name, O_RDONLY | O_DIRECTORY));
  FileInfo info;
  if (folder.is_open() && (fs_->stat(folder.get(), info) != 0 || !is_own_directory(info)))
    return {*fs_, -EPERM};
  return folder;
}

OwnedFd CacheFiles::make_folder(const Hash256& fingerprint) const {
  const std::string name = name_of(fingerprint);
  OwnedFd folder = open_folder(name);
  if (folder.error() != -ENOENT) return folder;
  const int result = fs_->make_directory(top(), name);
  if (result != 0 && result != -EEXIST) return {*fs_, result};
  // Until the folder's name is durable, a power cut can lose everything in it.
  if (const int synced = fs_->fsync(top()); synced != 0) return {*fs_, synced};
  return open_folder(name);
}

std::vector<std::string> CacheFiles::names(int directory, bool (*is_wanted)(const std::string&)) const {
  std::vector<std::string> names;
  if (fs_->list(directory, names) != 0) return {};
  std::erase_if(names, [&](const std::string& name) { return !is_wanted(name); });
  return names;
}

std::vector<std::string> CacheFiles::folders() const { return names(top(), is_digits); }

std::vector<std::string> CacheFiles::segments_in(int folder) const { return names(folder, is_segment); }

bool CacheFiles::free_name(int folder, const std::string& segment) const {
  int result = fs_->unlink(folder, segment);
  if (result == -ENOTEMPTY) result = fs_->rename_new(folder, segment, "moved-" + segment);
  return result == 0 || result == -ENOENT;
}

bool CacheFiles::is_own(int directory, const std::string& name, FileInfo& info) const {
  return fs_->stat_at(directory, name, info) == 0 && info.is_regular && info.owner == ::geteuid();
}

void CacheFiles::remove(int directory, bool (*is_wanted)(const std::string&)) const {
  FileInfo info;
  for (const std::string& name : names(directory, is_wanted)) {
    if (!is_own(directory, name, info)) continue;
    const OwnedFd file(*fs_, fs_->open_at(directory, name, O_RDONLY));
    if (file.is_open() && fs_->try_lock(file.get()) == 0) fs_->unlink(directory, name);
  }
}

void CacheFiles::sweep() const {
  remove(top(), is_former);
  remove(top(), is_temporary);
  for (const std::string& name : folders())
    if (const OwnedFd folder = open_folder(name); folder.is_open()) remove(folder.get(), is_temporary);
}

void CacheFiles::forget_models() const { remove(top(), is_model_note); }

std::string CacheFiles::read_note(int directory, const std::string& name, size_t most_bytes) const {
  FileInfo info;
  if (!is_own(directory, name, info) || info.n_bytes < sizeof(Hash256) ||
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
  const std::string temporary = new_temporary();
  const OwnedFd file(*fs_, fs_->open_at(directory, temporary, O_WRONLY | O_CREAT | O_EXCL));
  if (!file.is_open()) return;
  if (fs_->try_lock(file.get()) == 0 && write_fully(*fs_, file.get(), as_bytes(bytes), 0) == 0) {
    fs_->unlink(directory, name);
    if (fs_->rename_new(directory, temporary, name) == 0) return;
  }
  fs_->unlink(directory, temporary);
}

uint64_t CacheFiles::used_bytes(int directory, int depth) const {
  std::vector<std::string> names;
  uint64_t n_bytes = 0;
  if (depth > kMaxDepth || fs_->list(directory, names) != 0) return 0;
  for (const std::string& name : names) {
    FileInfo info;
    if (fs_->stat_at(directory, name, info) != 0) continue;
    // A file being written counts with its full length, even if its room could not be reserved.
    n_bytes += is_temporary(name) ? std::max(info.disk_bytes, info.n_bytes) : info.disk_bytes;
    if (!info.is_directory) continue;
    const OwnedFd below(*fs_, fs_->open_at(directory, name, O_RDONLY | O_DIRECTORY));
    if (below.is_open()) n_bytes += used_bytes(below.get(), depth + 1);
  }
  return n_bytes;
}

}  // namespace dsv32
