#include "prefix/cache_speeds.h"

#include <array>
#include <cstring>
#include <span>

#include <fcntl.h>
#include <xxhash.h>

namespace dsv32 {
namespace {

constexpr char kName[] = "speeds";
constexpr char kMagic[8] = {'D', 'S', 'V', '3', '2', 'S', 'P', 'D'};

struct SpeedsFile {
  char magic[8];
  Hash256 fingerprint;
  double read, prefill;
  uint64_t sum;  // XXH3 of what comes before
};
static_assert(sizeof(SpeedsFile) == 64);

uint64_t sum_of(const SpeedsFile& file) { return XXH3_64bits(&file, offsetof(SpeedsFile, sum)); }

// Also of what a program wrote that measured nonsense.
double sane(double rate) { return rate > 0 && rate < 1e15 ? rate : 0; }

}  // namespace

CacheSpeeds read_speeds(CacheDirectory& cache, const Hash256& fingerprint) {
  FileSystem& fs = cache.fs();
  const OwnedFd folder = cache.files().open_folder(fingerprint);
  FileInfo info;
  if (!folder.is_open() || fs.stat_at(folder.get(), kName, info) != 0 || !info.is_regular) return {};
  const OwnedFd fd(fs, fs.open_at(folder.get(), kName, O_RDONLY));
  SpeedsFile file{};
  if (!fd.is_open() || read_fully(fs, fd.get(), {{&file, sizeof file}}, 0) != sizeof file) return {};
  const bool is_whole = std::memcmp(file.magic, kMagic, sizeof kMagic) == 0 && file.sum == sum_of(file);
  if (!is_whole || file.fingerprint != fingerprint) return {};
  return {sane(file.read), sane(file.prefill)};
}

void write_speeds(CacheDirectory& cache, const Hash256& fingerprint, const CacheSpeeds& speeds) {
  SpeedsFile file{{}, fingerprint, speeds.read_bytes_per_second, speeds.prefill_tokens_per_second, 0};
  std::memcpy(file.magic, kMagic, sizeof kMagic);
  file.sum = sum_of(file);
  std::array<uint8_t, sizeof file> bytes;
  std::memcpy(bytes.data(), &file, sizeof file);
  cache.in_turn([&] {
    FileSystem& fs = cache.fs();
    const OwnedFd folder = cache.files().make_folder(fingerprint);
    const std::string temporary = CacheFiles::new_temporary();
    if (!folder.is_open() || temporary.empty()) return false;
    const OwnedFd fd(fs, fs.open_at(folder.get(), temporary, O_WRONLY | O_CREAT | O_EXCL));
    const bool is_written = fd.is_open() && write_fully(fs, fd.get(), bytes, 0) == 0;
    if (is_written) fs.unlink(folder.get(), kName);
    if (is_written && fs.rename_new(folder.get(), temporary, kName) == 0) return true;
    if (fd.is_open()) fs.unlink(folder.get(), temporary);
    return false;
  });
}

}  // namespace dsv32
