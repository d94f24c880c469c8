#include "prefix/cache_files.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <iterator>
#include <map>
#include <new>
#include <set>
#include <span>
#include <string_view>

#include <fcntl.h>
#include <unistd.h>

#include "base/error.h"

namespace dsv32 {
namespace {

constexpr std::string_view kTemporary = "tmp-", kModelNote = "model-";
constexpr uint64_t kMaxDefaultBytes = 256'000'000'000, kMaxDefaultFreeBytes = 10'000'000'000;
constexpr int kMaxDepth = 16;  // of directories that are counted

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

// Whether it is gone.
bool remove_leftover(FileSystem& fs, int directory, const std::string& name) {
  const OwnedFd file(fs, fs.open_at(directory, name, O_RDONLY));
  return file.is_open() && fs.try_lock(file.get()) == 0 && fs.unlink(directory, name) == 0;
}

// Adds what is in a directory; `folder`: its name, if it is that of a fingerprint.
void add_content(const CacheFiles& files, int directory, const std::string& folder, int depth, bool sweeps,
                 CacheContent& content) {
  FileSystem& fs = files.fs();
  std::vector<std::string> names;
  if (depth > kMaxDepth || fs.list(directory, names) != 0) return;
  for (const std::string& name : names) {
    FileInfo info;
    ++fs.n_steps_done;
    if (fs.stat_at(directory, name, info) != 0) continue;
    const bool is_written = CacheFiles::is_temporary(name) && is_own_file(info);
    if (is_written && sweeps && (depth == 0 || !folder.empty()) && remove_leftover(fs, directory, name))
      continue;
    // A file being written counts with its full length, even if its room could not be reserved.
    content.n_bytes += is_written ? std::max(info.disk_bytes, info.n_bytes) : info.disk_bytes;
    const auto page = folder.empty() ? std::nullopt : PageName::parse(name);
    if (page && is_own_file(info)) content.pages.push_back({folder, *page, info.disk_bytes, info.written_ns});
    if (!info.is_directory()) continue;
    const OwnedFd below(fs, fs.open_at(directory, name, O_RDONLY | O_DIRECTORY));
    const bool is_folder = depth == 0 && CacheFiles::is_folder(name) && files.open_folder(name).is_open();
    if (below.is_open()) add_content(files, below.get(), is_folder ? name : "", depth + 1, sweeps, content);
  }
}

// The pages in the order in which they leave, without `kept` and the pages ahead of it: in reverse to that of
// staying, in which each page, from the last used one on, follows those ahead of it.
std::vector<const StoredPage*> leaving_order(const std::vector<StoredPage>& pages, const PageHash& kept) {
  using Key = std::pair<std::string, PageHash>;  // folder, own hash
  std::map<Key, const StoredPage*> waiting;
  std::set<Key> reached;
  std::vector<const StoredPage*> latest, staying, order;  // order: at first of pages that no prompt reaches
  for (const StoredPage& page : pages)
    (waiting.try_emplace({page.folder, page.name.own}, &page).second ? latest : order).push_back(&page);
  std::ranges::sort(latest, std::ranges::greater(),
                    [&](const StoredPage* page) { return std::pair(page->name.own == kept, page->used_ns); });
  size_t n_kept = 0;
  for (const StoredPage* last : latest) {
    std::vector<const StoredPage*> path;
    Key key{last->folder, last->name.own};
    for (auto page = waiting.extract(key); page; page = waiting.extract(key))
      path.push_back(page.mapped()), key.second = page.mapped()->name.parent;
    const bool is_reached = key.second == PageHash{} || reached.contains(key);
    auto& side = is_reached ? staying : order;
    side.insert(side.end(), path.rbegin(), path.rend());
    if (!is_reached) continue;
    for (const StoredPage* page : path) reached.insert({page->folder, page->name.own});
    if (last->name.own == kept) n_kept = staying.size();
  }
  order.insert(order.end(), staying.rbegin(), staying.rend() - static_cast<std::ptrdiff_t>(n_kept));
  return order;
}

}  // namespace

bool is_own_file(const FileInfo& info) { return info.is_regular() && info.owner == ::geteuid(); }

std::optional<CacheFiles> CacheFiles::open(const std::string& path, FileSystem& fs, std::string& reason) {
  std::error_code error;
  std::filesystem::path whole = std::filesystem::absolute(path, error).lexically_normal();
  if (!whole.has_filename()) whole = whole.parent_path();
  if (error || path.empty() || !whole.has_filename())
    return reason = "it is no name of a folder", std::nullopt;
  std::filesystem::create_directories(whole.parent_path(), error);
  const int made = error ? -error.value() : fs.make_directory(AT_FDCWD, whole.string());
  OwnedFd directory(fs, fs.open_directory(whole.string()));
  FileInfo info;
  const int result = directory.is_open() ? fs.stat(directory.get(), info) : directory.error();
  if (result == 0)
    reason = refusal(info);
  else if (result == -ELOOP || result == -ENOTDIR)
    reason = "it is a symbolic link or no directory";
  else
    reason = describe_errno(made == 0 || made == -EEXIST ? result : made);
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
  const int64_t n_read = read_fully(*fs_, file.get(), note.data(), note.size(), 0);
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

CacheContent content_of(const CacheFiles& files, bool sweeps) {
  CacheContent content;
  add_content(files, files.top(), {}, 0, sweeps, content);
  return content;
}

bool remove_page(const CacheFiles& files, const StoredPage& page) {
  const OwnedFd folder = files.open_folder(page.folder);
  const int result = folder.is_open() ? files.fs().unlink(folder.get(), page.name.file()) : folder.error();
  return result == 0 || result == -ENOENT;
}

uint64_t make_room(const CacheFiles& files, const CacheLimits& limits, uint64_t n_bytes, const PageHash& kept,
                   const std::function<void(const StoredPage&)>& removed) {
  const auto number = [](uint64_t n) { return static_cast<int64_t>(std::min<uint64_t>(n, INT64_MAX / 4)); };
  const CacheContent content = content_of(files, true);
  SpaceInfo space;
  const bool has_space = files.fs().space(files.top(), space) == 0;
  // The cache's own bytes count as free; otherwise the default would shrink with each start.
  const int64_t most = number(
      limits.max_bytes.value_or(std::min((space.free_bytes + content.n_bytes) / 10, kMaxDefaultBytes)));
  const int64_t left_free =
      number(limits.min_free_bytes.value_or(std::min(space.total_bytes / 20, kMaxDefaultFreeBytes)));
  int64_t room = most - number(content.n_bytes);
  if (has_space) room = std::min(room, number(space.free_bytes) - left_free);
  if (room < number(n_bytes) && number(n_bytes) <= most)  // what can never fit removes nothing
    for (const StoredPage* page : leaving_order(content.pages, kept)) {
      if (!remove_page(files, *page)) continue;
      if (removed) removed(*page);
      room += number(page->n_bytes);
      if (room >= number(n_bytes)) break;
    }
  return static_cast<uint64_t>(std::max<int64_t>(room, 0));
}

}  // namespace dsv32
