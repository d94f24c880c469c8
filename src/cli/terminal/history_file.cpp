// See history_file.h.
//
// libedit's own writers do not append: they write the whole file anew, or count its entries wrongly.
#include "cli/terminal/history_file.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>
#include <thread>

#include <fcntl.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file_system.h"

namespace dsv32 {
namespace {

constexpr std::string_view kFirstLine = "_HiStOrY_V2_\n";
constexpr const char* kTemporary = ".history.tmp";  // under the lock there is one at a time

// The folder's lock, awaited for five seconds: a process that was stopped may hold it.
class Hold {
 public:
  Hold(FileSystem& fs, int folder) : fs_(fs), folder_(folder) {
    constexpr int kTries = 500;
    for (int i = 0; i < kTries && !is_held_; ++i) {
      const int result = fs_.try_lock(folder_);
      is_held_ = result == 0;
      if (result != 0 && result != -EWOULDBLOCK && result != -EINTR) return;
      if (!is_held_) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  ~Hold() {
    if (is_held_) fs_.unlock(folder_);
  }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;
  bool is_held() const { return is_held_; }

 private:
  FileSystem& fs_;
  int folder_;
  bool is_held_ = false;
};

std::string encoded(const std::string& entry) {
  std::string line;
  for (const char c : entry) {
    const bool is_plain = c > ' ' && c <= '~' && c != '\\';
    line += is_plain ? std::string(1, c) : format("\\%03o", static_cast<unsigned char>(c));
  }
  return line + '\n';
}

// The last bytes of a file, at most `n_most`; nothing when it cannot be read.
std::optional<std::string> read_end(FileSystem& fs, int file, uint64_t n_bytes, uint64_t n_most) {
  std::string end(std::min(n_bytes, n_most), '\0');
  const int64_t n_read = read_fully(fs, file, {{end.data(), end.size()}}, n_bytes - end.size());
  if (n_read != static_cast<int64_t>(end.size())) return std::nullopt;
  return end;
}

// The file as it should be: the first line, then the last entries, each with its line end.
std::string shortened(std::string text, bool is_cut) {
  if (is_cut) text.erase(0, text.find('\n') == std::string::npos ? text.size() : text.find('\n') + 1);
  if (text.starts_with(kFirstLine)) text.erase(0, kFirstLine.size());
  if (!text.empty() && text.back() != '\n') text += '\n';
  size_t n_lines = 0, begin = text.size();
  while (begin > 0 && (text[begin - 1] != '\n' || n_lines++ < HistoryFile::kMaxLines)) --begin;
  return std::string(kFirstLine) + text.substr(begin);
}

}  // namespace

HistoryFile::HistoryFile(const std::string& path, FileSystem& fs) : fs_(&fs) {
  std::error_code error;
  const std::filesystem::path real = std::filesystem::weakly_canonical(path, error);
  if (path.empty() || error) return;
  path_ = real.string();
  name_ = real.filename().string();
  folder_ = OwnedFd(fs, fs.open_directory(real.parent_path().string()));
}

bool HistoryFile::shorten() const {
  if (!folder_.is_open()) return false;
  const Hold hold(*fs_, folder_.get());
  const OwnedFd file(*fs_, fs_->open_at(folder_.get(), name_, O_RDONLY));
  FileInfo info;
  if (!file.is_open() || fs_->stat(file.get(), info) != 0 || !info.is_regular) return false;
  const std::optional<std::string> text = read_end(*fs_, file.get(), info.n_bytes, kMaxBytes);
  if (!text || !hold.is_held()) return text.has_value();
  const bool is_cut = info.n_bytes > text->size();
  const std::string wanted = shortened(*text, is_cut);
  if (!is_cut && wanted == *text) return true;
  fs_->unlink(folder_.get(), kTemporary);
  return replace_file(*fs_, folder_.get(), name_, kTemporary, wanted) == 0 || !is_cut;
}

void HistoryFile::append(const std::string& entry) const {
  if (!folder_.is_open()) return;
  const Hold hold(*fs_, folder_.get());
  const OwnedFd file(*fs_, fs_->open_at(folder_.get(), name_, O_RDWR | O_CREAT | O_APPEND));
  FileInfo info;
  if (!file.is_open() || fs_->stat(file.get(), info) != 0 || !info.is_regular) return;
  const std::optional<std::string> last = read_end(*fs_, file.get(), info.n_bytes, 1);
  if (!last) return;
  std::string line = encoded(entry);
  if (last->empty())
    line.insert(0, kFirstLine);
  else if (*last != "\n")  // a crash has left half a line
    line.insert(0, "\n");
  const std::span bytes(reinterpret_cast<const uint8_t*>(line.data()), line.size());
  const bool is_written = write_fully(*fs_, file.get(), bytes, info.n_bytes) == 0;
  if (!is_written && hold.is_held() && ftruncate(file.get(), static_cast<off_t>(info.n_bytes)) != 0) return;
}

}  // namespace dsv32
