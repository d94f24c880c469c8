#include "prefix/segment.h"

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
// Header and tokens of the longest segment; every segment's file is longer.
constexpr uint64_t kHeadBytes = kBlock + kMaxSegmentPages * kPageTokens * sizeof(int32_t);
constexpr char kMagic[8] = {'D', 'S', 'V', '3', '2', 'K', 'V', 'S'};
constexpr char kCommitMark[8] = {'D', 'S', 'V', '3', '2', 'E', 'N', 'D'};
constexpr uint32_t kVersion = 3;
constexpr uint32_t kEndianTag = 0x01020304;
constexpr std::string_view kRootTag = "dsv32 prefix chain 1";  // keeps this hash apart from every other

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

// The checksum of bytes that come in parts. Throws std::bad_alloc.
class Summer {
 public:
  Summer() : state_(XXH3_createState()) {
    if (!state_) throw std::bad_alloc();
    XXH3_128bits_reset(state_.get());
  }
  void add(const void* bytes, size_t n_bytes) { XXH3_128bits_update(state_.get(), bytes, n_bytes); }
  Sum sum() const {
    XXH128_canonical_t bytes;
    XXH128_canonicalFromHash(&bytes, XXH3_128bits_digest(state_.get()));
    return std::to_array(bytes.digest);
  }

 private:
  struct Free {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  std::unique_ptr<XXH3_state_t, Free> state_;
};

Sum sum_of(const void* bytes, size_t n_bytes) {
  Summer summer;
  summer.add(bytes, n_bytes);
  return summer.sum();
}

Sum sum_of(const SegmentHeader& header) { return sum_of(&header, offsetof(SegmentHeader, sum)); }

struct Free {
  void operator()(uint8_t* memory) const { std::free(memory); }
};
using AlignedBuffer = std::unique_ptr<uint8_t[], Free>;

AlignedBuffer aligned_buffer(uint64_t n_bytes) {
  return AlignedBuffer(static_cast<uint8_t*>(std::aligned_alloc(kBlock, std::max(padded(n_bytes), kBlock))));
}

// Writes a page to `record` as it lies in the file, with zeros as padding.
void gather(const SegmentHead& sizes, const PageSource& page, uint8_t* record) {
  const size_t rows_bytes = static_cast<size_t>(sizes.rows_page_bytes);
  const size_t keys_bytes = static_cast<size_t>(sizes.n_layers * sizes.keys_page_bytes);
  uint8_t* to = record;
  for (const uint8_t* rows : page.rows) std::memcpy(to, rows, rows_bytes), to += rows_bytes;
  if (keys_bytes > 0) std::memcpy(to, page.keys, keys_bytes), to += keys_bytes;
  std::memset(to, 0, static_cast<size_t>(record + sizes.page_bytes() - to));
}

SegmentTrailer trailer_of(const SegmentHead& head, const Sum& header_sum) {
  SegmentTrailer trailer{};
  std::memcpy(trailer.commit_mark, kCommitMark, sizeof kCommitMark);
  trailer.file_bytes = head.file_bytes();
  trailer.header_sum = header_sum;
  return trailer;
}

bool is_own_file(const FileInfo& file) { return file.is_regular && file.owner == ::geteuid(); }

// EIO alone means that the file is damaged; other errors may pass.
SegmentFault fault_of(int64_t negative_errno) {
  if (negative_errno == -ENOENT) return SegmentFault::vanished;
  return negative_errno == -EIO ? SegmentFault::damaged : SegmentFault::unreadable;
}

SegmentFault check_header(const SegmentHeader& header) {
  if (std::memcmp(header.magic, kMagic, sizeof kMagic) != 0) return SegmentFault::damaged;
  if (header.sum != sum_of(header)) return SegmentFault::damaged;
  if (header.version > kVersion && header.endian_tag == kEndianTag) return SegmentFault::newer;
  const bool is_ours = header.version == kVersion && header.endian_tag == kEndianTag &&
                       header.page_tokens == kPageTokens && header.head.has_sane_sizes();
  return is_ours ? SegmentFault::none : SegmentFault::damaged;
}

}  // namespace

Hash256 chain_root(const Hash256& fingerprint, std::string_view salt) {
  Sha256 sha;
  sha.add_field(kRootTag);
  sha.add_field({reinterpret_cast<const char*>(fingerprint.data()), fingerprint.size()});
  sha.add_field(salt);
  return sha.finish();
}

Hash256 chain_next(const Hash256& parent, int64_t first_page, std::span<const int32_t> tokens) {
  Sha256 sha;
  sha.add(parent.data(), parent.size());
  sha.add(&first_page, sizeof first_page);
  sha.add(tokens.data(), tokens.size_bytes());
  return sha.finish();
}

bool SegmentHead::has_sizes_of(const SegmentHead& other) const {
  return n_layers == other.n_layers && rows_page_bytes == other.rows_page_bytes &&
         keys_page_bytes == other.keys_page_bytes;
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

// Writes through O_DIRECT until the file system refuses it, then through the page cache. Stops at an error.
int write_segment(FileSystem& fs, int fd, int direct_fd, const SegmentInfo& info,
                  std::span<const PageSource> pages) {
  const uint64_t page_bytes = info.page_bytes(), head_bytes = info.page_offset(0);
  const AlignedBuffer block = aligned_buffer(std::max(page_bytes, head_bytes));
  if (!block) return -ENOMEM;
  int result = 0;
  const auto write = [&](uint64_t n_bytes, uint64_t offset) {
    if (result == 0 && direct_fd >= 0) {
      result = write_fully(fs, direct_fd, {block.get(), n_bytes}, offset, kBlock);
      if (result != -EINVAL) return;
      direct_fd = -1, result = 0;
    }
    if (result == 0) result = write_fully(fs, fd, {block.get(), n_bytes}, offset);
  };
  SegmentHeader header{};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.version = kVersion;
  header.endian_tag = kEndianTag;
  header.page_tokens = kPageTokens;
  header.head = info;
  for (size_t page = 0; page < pages.size(); ++page) {
    gather(info, pages[page], block.get());
    header.page_sums[page] = sum_of(block.get(), page_bytes);
    write(page_bytes, info.page_offset(static_cast<int64_t>(page)));
  }
  header.sum = sum_of(header);
  std::memset(block.get(), 0, head_bytes);
  std::memcpy(block.get(), &header, sizeof header);
  std::memcpy(&block[kBlock], info.tokens.data(), info.tokens.size() * sizeof(int32_t));
  write(head_bytes, 0);
  const SegmentTrailer trailer = trailer_of(info, header.sum);
  std::memcpy(block.get(), &trailer, sizeof trailer);
  write(kBlock, info.file_bytes() - kBlock);
  if (result == 0) result = fs.fdatasync(fd);  // covers the writes of both descriptors
  if (direct_fd < 0) fs.drop_cached(fd);
  return result;
}

SegmentFault SegmentFile::read_info(FileSystem& fs, int directory, const std::string& name, SegmentInfo& info,
                                    FileInfo& file) {
  SegmentFile segment(fs, 1);
  SegmentFault fault = segment.open_own(directory, name, file);
  if (fault == SegmentFault::none) fault = segment.read_head(file);
  info = std::move(segment.info_);
  return fault;
}

std::shared_ptr<const SegmentFile> SegmentFile::open(FileSystem& fs, int directory, const std::string& name,
                                                     SegmentFault& fault) {
  // A file system may refuse O_DIRECT when the file is opened, or only when it is read.
  for (const uint64_t unit : {kBlock, uint64_t{1}}) {
    const std::shared_ptr<SegmentFile> segment(new SegmentFile(fs, unit));
    FileInfo file;
    fault = segment->open_own(directory, name, file);
    if (fault == SegmentFault::none) fault = segment->read_head(file);
    if (fault == SegmentFault::none) fault = segment->read_trailer();
    if (fault == SegmentFault::none) return segment;
    if (fault != SegmentFault::unreadable) break;
  }
  return nullptr;
}

// Opens only regular files of this user: merely opening some devices makes them act.
SegmentFault SegmentFile::open_own(int directory, const std::string& name, FileInfo& file) {
  if (const int result = fs_.stat_at(directory, name, file); result != 0) return fault_of(result);
  if (!is_own_file(file)) return SegmentFault::foreign;
  fd_ = OwnedFd(fs_, fs_.open_at(directory, name, O_RDONLY | (unit_ > 1 ? O_DIRECT : 0)));
  if (!fd_.is_open()) return fault_of(fd_.error());
  if (const int result = fs_.stat(fd_.get(), file); result != 0) return fault_of(result);
  return is_own_file(file) ? SegmentFault::none : SegmentFault::unreadable;  // replaced meanwhile
}

// Header and tokens.
SegmentFault SegmentFile::read_head(const FileInfo& file) {
  const AlignedBuffer head = aligned_buffer(kHeadBytes);
  if (!head) return SegmentFault::unreadable;
  if (const SegmentFault fault = read({{head.get(), kHeadBytes}}, 0); fault != SegmentFault::none)
    return fault;
  SegmentHeader header;
  std::memcpy(&header, head.get(), sizeof header);
  if (const SegmentFault fault = check_header(header); fault != SegmentFault::none) return fault;
  static_cast<SegmentHead&>(info_) = header.head;
  std::ranges::copy(header.page_sums, sums_.begin());
  header_sum_ = header.sum;
  if (file.n_bytes != info_.file_bytes()) return SegmentFault::damaged;
  info_.tokens.resize(static_cast<size_t>(info_.n_pages * kPageTokens));
  std::memcpy(info_.tokens.data(), &head[kBlock], info_.tokens.size() * sizeof(int32_t));
  const bool is_whole = info_.chain == chain_next(info_.parent, info_.first_page, info_.tokens);
  return is_whole ? SegmentFault::none : SegmentFault::damaged;
}

SegmentFault SegmentFile::read_trailer() const {
  const AlignedBuffer end = aligned_buffer(kBlock);
  if (!end) return SegmentFault::unreadable;
  const SegmentFault fault = read({{end.get(), kBlock}}, info_.file_bytes() - kBlock);
  if (fault != SegmentFault::none) return fault;
  const SegmentTrailer trailer = trailer_of(info_, header_sum_);
  return std::memcmp(end.get(), &trailer, kBlock) == 0 ? SegmentFault::none : SegmentFault::damaged;
}

// Reads all parts; a file that ends early is damaged.
SegmentFault SegmentFile::read(std::vector<iovec> parts, uint64_t offset) const {
  int64_t n_bytes = 0;
  for (const iovec& part : parts) n_bytes += static_cast<int64_t>(part.iov_len);
  const int64_t n_read = read_fully(fs_, fd_.get(), std::move(parts), offset, unit_);
  if (n_read < 0) return fault_of(n_read);
  return n_read < n_bytes ? SegmentFault::damaged : SegmentFault::none;
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
    const uint64_t n_bytes = std::min<uint64_t>(block.size(), info_.page_bytes() - at);
    const SegmentFault fault = read({{block.data(), n_bytes}}, info_.page_offset(page) + at);
    if (fault != SegmentFault::none) return fault;
    summer.add(block.data(), n_bytes);
  }
  return summer.sum() == sums_[static_cast<size_t>(page)] ? SegmentFault::none : SegmentFault::damaged;
}

SegmentFault SegmentFile::read_pages(int64_t first, std::span<const PageTarget> targets) const {
  assert(first >= 0 && first + std::ssize(targets) <= info_.n_pages);
  const auto n_for_bytes = static_cast<int64_t>(kBatchBytes / info_.page_bytes());
  const auto n_at_once =
      static_cast<size_t>(std::max<int64_t>(1, std::min(kMaxParts / (info_.n_layers + 1), n_for_bytes)));
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
  const SegmentFault fault = read(std::move(parts), info_.page_offset(first));
  if (fault != SegmentFault::none) return fault;

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
