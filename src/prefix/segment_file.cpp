#include "prefix/segment_file.h"

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>
#include <type_traits>

#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include "backend/cache_layout.h"

namespace dsv32 {
namespace {

constexpr uint64_t kBlock = 4096;
constexpr uint64_t kBatchBytes = 16 << 20;  // of one request
constexpr int64_t kMaxParts = 1024;         // of one request
constexpr int64_t kMaxLayers = 4096, kMaxPartBytes = 1 << 28, kMaxPage = int64_t{1} << 40;
constexpr char kMagic[8] = {'D', 'S', 'V', '3', '2', 'K', 'V', 'S'};
constexpr char kCommitMark[8] = {'D', 'S', 'V', '3', '2', 'E', 'N', 'D'};
constexpr uint32_t kVersion = 3;
constexpr uint32_t kEndianTag = 0x01020304;

using Sum = std::array<uint8_t, 16>;

struct SegmentHeader {
  char magic[8];
  uint32_t version, endian_tag;
  int64_t page_tokens;
  SegmentHead head;
  Sum page_sums[kMaxSegmentPages];
  uint8_t zeros[3656];
  Sum sum;
};
static_assert(sizeof(SegmentHeader) == kBlock && std::is_trivially_copyable_v<SegmentHeader>);

struct SegmentTrailer {
  char commit_mark[8];
  uint64_t file_bytes;
  Sum header_sum;
  uint8_t zeros[4064];
};
static_assert(sizeof(SegmentTrailer) == kBlock);

uint64_t padded(uint64_t n_bytes) { return (n_bytes + kBlock - 1) / kBlock * kBlock; }

bool is_aligned(const void* address) { return reinterpret_cast<uintptr_t>(address) % kBlock == 0; }

Sum canonical(XXH128_hash_t hash) {
  XXH128_canonical_t bytes;
  XXH128_canonicalFromHash(&bytes, hash);
  Sum sum;
  std::memcpy(sum.data(), bytes.digest, sum.size());
  return sum;
}

Sum sum_of(const void* bytes, size_t n_bytes) { return canonical(XXH3_128bits(bytes, n_bytes)); }

Sum sum_of(const SegmentHeader& header) { return sum_of(&header, offsetof(SegmentHeader, sum)); }

// The checksum of bytes that come in parts. Throws std::bad_alloc.
class Summer {
 public:
  Summer() : state_(XXH3_createState()) {
    if (!state_) throw std::bad_alloc();
    XXH3_128bits_reset(state_.get());
  }
  void add(const void* bytes, size_t n_bytes) { XXH3_128bits_update(state_.get(), bytes, n_bytes); }
  Sum sum() const { return canonical(XXH3_128bits_digest(state_.get())); }

 private:
  struct Free {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  std::unique_ptr<XXH3_state_t, Free> state_;
};

struct Free {
  void operator()(uint8_t* memory) const { std::free(memory); }
};
using AlignedBuffer = std::unique_ptr<uint8_t[], Free>;

AlignedBuffer aligned_buffer(uint64_t n_bytes) {
  return AlignedBuffer(static_cast<uint8_t*>(std::aligned_alloc(kBlock, std::max(padded(n_bytes), kBlock))));
}

// Writes through O_DIRECT until the file system refuses it, then through the page cache; nothing after an
// error.
class BlockWriter {
 public:
  BlockWriter(FileSystem& fs, int fd, int direct_fd) : fs_(fs), fd_(fd), direct_fd_(direct_fd) {}

  void write(std::span<const uint8_t> block, uint64_t offset) {
    if (result_ == 0 && direct_fd_ >= 0) {
      result_ = write_fully(fs_, direct_fd_, block, offset, kBlock);
      if (result_ != -EINVAL) return;
      direct_fd_ = -1, result_ = 0;
    }
    if (result_ == 0) result_ = write_fully(fs_, fd_, block, offset);
  }

  // Both descriptors are of one file: its bytes are durable after this. The first error.
  int finish() {
    if (result_ == 0) result_ = fs_.fdatasync(fd_);
    if (direct_fd_ < 0) fs_.drop_cached(fd_);
    return result_;
  }

 private:
  FileSystem& fs_;
  int fd_, direct_fd_, result_ = 0;
};

// A page as it lies in the file; the padding is zero.
void gather(const SegmentHead& sizes, const PageSource& page, uint8_t* record) {
  const size_t rows_bytes = static_cast<size_t>(sizes.rows_page_bytes);
  const size_t keys_bytes = static_cast<size_t>(sizes.n_layers * sizes.keys_page_bytes);
  uint8_t* to = record;
  for (const uint8_t* rows : page.rows) std::memcpy(to, rows, rows_bytes), to += rows_bytes;
  if (keys_bytes > 0) std::memcpy(to, page.keys, keys_bytes), to += keys_bytes;
  std::memset(to, 0, static_cast<size_t>(record + sizes.page_bytes() - to));
}

SegmentHeader header_of(const SegmentHead& head) {
  SegmentHeader header{};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.version = kVersion;
  header.endian_tag = kEndianTag;
  header.page_tokens = kPageTokens;
  header.head = head;
  return header;
}

SegmentTrailer trailer_of(const SegmentHeader& header) {
  SegmentTrailer trailer{};
  std::memcpy(trailer.commit_mark, kCommitMark, sizeof kCommitMark);
  trailer.file_bytes = header.head.file_bytes();
  trailer.header_sum = header.sum;
  return trailer;
}

bool is_own_file(const FileInfo& file) { return file.is_regular && file.owner == ::geteuid(); }

// Of all errors EIO alone says something about the file; the others are about this moment.
SegmentFault fault_of(int64_t negative_errno) {
  if (negative_errno == -ENOENT) return SegmentFault::vanished;
  return negative_errno == -EIO ? SegmentFault::damaged : SegmentFault::unreadable;
}

// Opens what is a file of ours, and nothing else: opening alone makes some devices act.
SegmentFault open_own(FileSystem& fs, int directory, const std::string& name, int flags, OwnedFd& fd,
                      FileInfo& file) {
  if (const int result = fs.stat_at(directory, name, file); result != 0) return fault_of(result);
  if (!is_own_file(file)) return SegmentFault::foreign;
  fd = OwnedFd(fs, fs.open_at(directory, name, O_RDONLY | flags));
  if (!fd.is_open()) return fault_of(fd.error());
  if (const int result = fs.stat(fd.get(), file); result != 0) return fault_of(result);
  return is_own_file(file) ? SegmentFault::none : SegmentFault::unreadable;  // exchanged meanwhile
}

SegmentFault check_header(const SegmentHeader& header) {
  if (std::memcmp(header.magic, kMagic, sizeof kMagic) != 0) return SegmentFault::damaged;
  if (header.sum != sum_of(header)) return SegmentFault::damaged;
  if (header.version > kVersion && header.endian_tag == kEndianTag) return SegmentFault::newer;
  const bool is_ours = header.version == kVersion && header.endian_tag == kEndianTag &&
                       header.page_tokens == kPageTokens && header.head.has_sane_sizes();
  return is_ours ? SegmentFault::none : SegmentFault::damaged;
}

constexpr uint64_t kHeadBytes =
    kBlock + kMaxSegmentPages * kPageTokens * sizeof(int32_t);  // never past the trailer

// Header and tokens. `n_read`: what the read gave.
SegmentFault read_head(FileSystem& fs, int fd, uint64_t unit, const FileInfo& file, SegmentHeader& header,
                       SegmentInfo& info, int64_t& n_read) {
  const AlignedBuffer head = aligned_buffer(kHeadBytes);
  if (!head) return SegmentFault::unreadable;
  n_read = read_fully(fs, fd, {{head.get(), kHeadBytes}}, 0, unit);
  if (n_read < 0) return fault_of(n_read);
  if (n_read < static_cast<int64_t>(kHeadBytes)) return SegmentFault::damaged;
  std::memcpy(&header, head.get(), sizeof header);
  if (const SegmentFault fault = check_header(header); fault != SegmentFault::none) return fault;
  static_cast<SegmentHead&>(info) = header.head;
  if (file.n_bytes != info.file_bytes()) return SegmentFault::damaged;
  info.tokens.resize(static_cast<size_t>(info.n_pages * kPageTokens));
  std::memcpy(info.tokens.data(), &head[kBlock], info.tokens.size() * sizeof(int32_t));
  const bool is_whole = info.chain == chain_next(info.parent, info.first_page, info.tokens);
  return is_whole ? SegmentFault::none : SegmentFault::damaged;
}

}  // namespace

bool SegmentHead::has_sizes_of(const SegmentHead& other) const {
  return n_layers == other.n_layers && rows_page_bytes == other.rows_page_bytes &&
         keys_page_bytes == other.keys_page_bytes;
}
bool SegmentHead::is_same(const SegmentHead& other) const {
  return fingerprint == other.fingerprint && parent == other.parent && chain == other.chain &&
         first_page == other.first_page && n_pages == other.n_pages && has_sizes_of(other);
}

bool SegmentHead::has_sane_sizes() const {
  const auto is_within = [](int64_t value, int64_t least, int64_t most) {
    return value >= least && value <= most;
  };
  return is_within(n_pages, 1, kMaxSegmentPages) && is_within(first_page, 0, kMaxPage) &&
         is_within(n_layers, 1, kMaxLayers) && is_within(rows_page_bytes, 1, kMaxPartBytes) &&
         is_within(keys_page_bytes, 0, kMaxPartBytes);
}

uint64_t SegmentHead::page_bytes() const {
  return padded(static_cast<uint64_t>(n_layers * (rows_page_bytes + keys_page_bytes)));
}
uint64_t SegmentHead::page_offset(int64_t page) const {
  const uint64_t tokens_bytes = padded(static_cast<uint64_t>(n_pages * kPageTokens) * sizeof(int32_t));
  return kBlock + tokens_bytes + static_cast<uint64_t>(page) * page_bytes();
}
uint64_t SegmentHead::file_bytes() const { return page_offset(n_pages) + kBlock; }

int write_segment(FileSystem& fs, int fd, int direct_fd, const SegmentInfo& info,
                  std::span<const PageSource> pages) {
  BlockWriter writer(fs, fd, direct_fd);
  SegmentHeader header = header_of(info);
  const uint64_t page_bytes = info.page_bytes(), head_bytes = info.page_offset(0);
  const AlignedBuffer block = aligned_buffer(std::max(page_bytes, head_bytes));
  if (!block) return -ENOMEM;
  for (size_t page = 0; page < pages.size(); ++page) {
    gather(info, pages[page], block.get());
    header.page_sums[page] = sum_of(block.get(), page_bytes);
    writer.write({block.get(), page_bytes}, info.page_offset(static_cast<int64_t>(page)));
  }
  header.sum = sum_of(header);
  std::memset(block.get(), 0, head_bytes);
  std::memcpy(block.get(), &header, sizeof header);
  std::memcpy(&block[kBlock], info.tokens.data(), info.tokens.size() * sizeof(int32_t));
  writer.write({block.get(), head_bytes}, 0);
  const SegmentTrailer trailer = trailer_of(header);
  std::memcpy(block.get(), &trailer, sizeof trailer);
  writer.write({block.get(), kBlock}, info.file_bytes() - kBlock);
  return writer.finish();
}

SegmentFault read_segment_info(FileSystem& fs, int directory, const std::string& name, SegmentInfo& info,
                               FileInfo& file) {
  OwnedFd fd;
  const SegmentFault fault = open_own(fs, directory, name, 0, fd, file);
  if (fault != SegmentFault::none) return fault;
  SegmentHeader header;
  int64_t n_read = 0;
  return read_head(fs, fd.get(), 1, file, header, info, n_read);
}

std::shared_ptr<const SegmentFile> SegmentFile::open(FileSystem& fs, int directory, const std::string& name,
                                                     SegmentFault& fault) {
  // A file system may refuse O_DIRECT when the file is opened, or only when it is read.
  for (const bool is_direct : {true, false}) {
    OwnedFd fd;
    FileInfo info;
    fault = open_own(fs, directory, name, is_direct ? O_DIRECT : 0, fd, info);
    if (fd.error() == -EINVAL && is_direct) continue;
    if (fault != SegmentFault::none) return nullptr;
    std::shared_ptr<SegmentFile> file(new SegmentFile(fs, std::move(fd), is_direct ? kBlock : 1));
    bool is_refused = false;
    fault = file->read_ends(info, is_refused);
    if (is_refused && is_direct) continue;
    return fault == SegmentFault::none ? file : nullptr;
  }
  return nullptr;  // not reached: the second round returns
}

// Header, tokens and trailer. `is_refused`: the first read gave EINVAL.
SegmentFault SegmentFile::read_ends(const FileInfo& file, bool& is_refused) {
  SegmentHeader header;
  int64_t n_read = 0;
  const SegmentFault fault = read_head(fs_, fd_.get(), unit_, file, header, info_, n_read);
  is_refused = n_read == -EINVAL;
  if (fault != SegmentFault::none) return fault;
  sums_.assign(header.page_sums, header.page_sums + info_.n_pages);

  const AlignedBuffer end = aligned_buffer(kBlock);
  if (!end) return SegmentFault::unreadable;
  const int64_t n_tail = read_block({end.get(), kBlock}, info_.file_bytes() - kBlock);
  if (n_tail < 0) return fault_of(n_tail);
  const SegmentTrailer trailer = trailer_of(header);
  const bool is_whole =
      n_tail == static_cast<int64_t>(kBlock) && std::memcmp(end.get(), &trailer, kBlock) == 0;
  return is_whole ? SegmentFault::none : SegmentFault::damaged;
}

int64_t SegmentFile::read_block(std::span<uint8_t> block, uint64_t offset) const {
  return read_fully(fs_, fd_.get(), {{block.data(), block.size()}}, offset, unit_);
}

SegmentFault SegmentFile::verify(int64_t& n_whole) const {
  constexpr uint64_t kVerifyBytes = 1 << 20;
  const AlignedBuffer block = aligned_buffer(kVerifyBytes);
  if (!block) return SegmentFault::unreadable;
  SegmentFault fault = SegmentFault::none;
  for (n_whole = 0; n_whole < info_.n_pages; ++n_whole)
    if (fault = verify_page(n_whole, {block.get(), kVerifyBytes}); fault != SegmentFault::none) break;
  return fault;
}

SegmentFault SegmentFile::verify_page(int64_t page, std::span<uint8_t> block) const {
  Summer summer;
  for (uint64_t at = 0; at < info_.page_bytes(); at += block.size()) {
    const auto part = block.first(std::min<uint64_t>(block.size(), info_.page_bytes() - at));
    const int64_t n_read = read_block(part, info_.page_offset(page) + at);
    if (n_read < 0) return fault_of(n_read);
    if (n_read < std::ssize(part)) return SegmentFault::damaged;
    summer.add(part.data(), part.size());
  }
  return summer.sum() == sums_[static_cast<size_t>(page)] ? SegmentFault::none : SegmentFault::damaged;
}

SegmentFault SegmentFile::read_pages(int64_t first, std::span<const PageTarget> targets) const {
  assert(first >= 0 && first + std::ssize(targets) <= info_.n_pages);
  const size_t n_at_once = static_cast<size_t>(
      std::max<int64_t>(1, std::min<int64_t>(kMaxParts / (info_.n_layers + 1),
                                             static_cast<int64_t>(kBatchBytes / info_.page_bytes()))));
  for (size_t page = 0; page < targets.size(); page += n_at_once) {
    const auto batch = targets.subspan(page, std::min(n_at_once, targets.size() - page));
    const SegmentFault fault = read_batch(first + static_cast<int64_t>(page), batch);
    if (fault != SegmentFault::none) return fault;
  }
  if (unit_ == 1) fs_.drop_cached(fd_.get());
  return SegmentFault::none;
}

// One request. Rows are read in place where their alignment allows it; the rest of a page, or all of it, goes
// through `bounce`.
SegmentFault SegmentFile::read_batch(int64_t first, std::span<const PageTarget> targets) const {
  const size_t rows_bytes = static_cast<size_t>(info_.rows_page_bytes);
  const size_t keys_bytes = static_cast<size_t>(info_.n_layers * info_.keys_page_bytes);
  const bool is_in_place =
      unit_ == 1 || (rows_bytes % unit_ == 0 && std::ranges::all_of(targets, [](const PageTarget& page) {
                       return std::ranges::all_of(page.rows, is_aligned);
                     }));
  const size_t n_bounced =
      info_.page_bytes() - (is_in_place ? static_cast<size_t>(info_.n_layers) * rows_bytes : 0);
  const AlignedBuffer bounce = aligned_buffer(n_bounced * targets.size());
  if (!bounce) return SegmentFault::unreadable;

  std::vector<iovec> parts;
  for (size_t i = 0; i < targets.size(); ++i) {
    for (uint8_t* rows : targets[i].rows)
      if (is_in_place) parts.push_back({rows, rows_bytes});
    parts.push_back({&bounce[i * n_bounced], n_bounced});
  }
  const int64_t n_read = read_fully(fs_, fd_.get(), std::move(parts), info_.page_offset(first), unit_);
  if (n_read < 0) return fault_of(n_read);
  if (n_read < static_cast<int64_t>(info_.page_bytes() * targets.size())) return SegmentFault::damaged;

  for (size_t i = 0; i < targets.size(); ++i) {
    const uint8_t* from = &bounce[i * n_bounced];
    Summer summer;
    for (const uint8_t* rows : targets[i].rows)
      if (is_in_place) summer.add(rows, rows_bytes);
    summer.add(from, n_bounced);
    if (summer.sum() != sums_[static_cast<size_t>(first) + i]) return SegmentFault::damaged;
    for (uint8_t* rows : targets[i].rows)
      if (!is_in_place) std::memcpy(rows, from, rows_bytes), from += rows_bytes;
    if (keys_bytes > 0) std::memcpy(targets[i].keys, from, keys_bytes);
  }
  return SegmentFault::none;
}

}  // namespace dsv32
