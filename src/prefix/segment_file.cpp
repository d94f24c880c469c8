#include "prefix/segment_file.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>

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
constexpr uint32_t kVersion = 2;
constexpr uint32_t kEndianTag = 0x01020304;

using Sum = std::array<uint8_t, 16>;

struct SegmentHeader {
  char magic[8];
  uint32_t version, endian_tag;
  uint32_t page_tokens, n_pages;
  int64_t first_page, n_layers, rows_page_bytes, keys_page_bytes;
  uint64_t file_bytes;
  Hash256 fingerprint, parent, chain;
  int64_t layers_per_slab;
  std::array<Sum, kMaxSlabs> page_sums[kMaxSegmentPages];
  uint64_t created;
  uint8_t zeros[1856];
  Sum sum;
};
static_assert(sizeof(SegmentHeader) == kBlock);

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

Sum sum_of(const SegmentInfo& info, const PageTarget& page) {
  Summer summer;
  for (const uint8_t* rows : page.rows) summer.add(rows, static_cast<size_t>(info.rows_page_bytes));
  summer.add(page.keys, page.rows.size() * static_cast<size_t>(info.keys_page_bytes));
  return summer.sum();
}

struct Free {
  void operator()(uint8_t* memory) const { std::free(memory); }
};
using AlignedBuffer = std::unique_ptr<uint8_t[], Free>;

AlignedBuffer aligned_buffer(uint64_t n_bytes) {
  return AlignedBuffer(static_cast<uint8_t*>(std::aligned_alloc(kBlock, std::max(padded(n_bytes), kBlock))));
}

// Writes through O_DIRECT until the file system refuses it, then through the page cache.
class BlockWriter {
 public:
  BlockWriter(FileSystem& fs, int fd, int direct_fd) : fs_(fs), fd_(fd), direct_fd_(direct_fd) {}

  int write(std::span<const uint8_t> block, uint64_t offset) {
    if (direct_fd_ >= 0) {
      const int result = write_fully(fs_, direct_fd_, block, offset, kBlock);
      if (result != -EINVAL) return result;
      direct_fd_ = -1;
    }
    return write_fully(fs_, fd_, block, offset);
  }

  // Both descriptors are of one file: its bytes are durable after this.
  int finish() {
    const int result = fs_.fdatasync(fd_);
    if (direct_fd_ < 0) fs_.drop_cached(fd_);
    return result;
  }

 private:
  FileSystem& fs_;
  int fd_, direct_fd_;
};

// A page's share of a slab as it lies in the file; the padding is zero. Returns how many bytes are not
// padding.
size_t gather(const SegmentInfo& info, const PageSource& page, int64_t slab, uint8_t* record) {
  const size_t first = static_cast<size_t>(info.first_layer(slab));
  const size_t n_layers = static_cast<size_t>(info.n_layers_of(slab));
  const size_t rows_bytes = static_cast<size_t>(info.rows_page_bytes);
  const size_t keys_bytes = static_cast<size_t>(info.keys_page_bytes);
  uint8_t* to = record;
  for (const uint8_t* rows : page.rows.subspan(first, n_layers))
    std::memcpy(to, rows, rows_bytes), to += rows_bytes;
  if (keys_bytes > 0) std::memcpy(to, page.keys + first * keys_bytes, n_layers * keys_bytes);
  to += n_layers * keys_bytes;
  const size_t n_bytes = static_cast<size_t>(to - record);
  std::memset(to, 0, info.slab_bytes(slab) - n_bytes);
  return n_bytes;
}

SegmentHeader header_of(const SegmentInfo& info) {
  SegmentHeader header{};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.version = kVersion;
  header.endian_tag = kEndianTag;
  header.page_tokens = kPageTokens;
  header.n_pages = static_cast<uint32_t>(info.n_pages);
  header.first_page = info.first_page;
  header.n_layers = info.n_layers;
  header.rows_page_bytes = info.rows_page_bytes;
  header.keys_page_bytes = info.keys_page_bytes;
  header.file_bytes = info.file_bytes();
  header.fingerprint = info.fingerprint;
  header.parent = info.parent;
  header.chain = info.chain;
  header.layers_per_slab = info.layers_per_slab;
  header.created = info.created;
  return header;
}

// Writes a slab of all pages in blocks of some MiB and notes their checksums in the header.
int write_slab(BlockWriter& writer, const SegmentInfo& info, int64_t slab, std::span<const PageSource> pages,
               SegmentHeader& header) {
  const uint64_t slab_bytes = info.slab_bytes(slab);
  const size_t n_at_once = std::clamp<size_t>(kBatchBytes / 4 / slab_bytes, 1, pages.size());
  const AlignedBuffer staging = aligned_buffer(n_at_once * slab_bytes);
  if (!staging) return -ENOMEM;
  for (size_t page = 0; page < pages.size(); page += n_at_once) {
    const size_t n = std::min(n_at_once, pages.size() - page);
    for (size_t i = 0; i < n; ++i) {
      uint8_t* record = &staging[i * slab_bytes];
      const size_t n_bytes = gather(info, pages[page + i], slab, record);
      header.page_sums[page + i][static_cast<size_t>(slab)] = sum_of(record, n_bytes);
    }
    const int result =
        writer.write({staging.get(), n * slab_bytes}, info.slab_offset(slab) + page * slab_bytes);
    if (result != 0) return result;
  }
  return 0;
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
                       header.page_tokens == kPageTokens && header.n_pages <= kMaxSegmentPages;
  return is_ours ? SegmentFault::none : SegmentFault::damaged;
}

SegmentInfo info_of(const SegmentHeader& header) {
  SegmentInfo info;
  info.fingerprint = header.fingerprint;
  info.parent = header.parent;
  info.chain = header.chain;
  info.first_page = header.first_page;
  info.n_pages = header.n_pages;
  info.n_layers = header.n_layers;
  info.rows_page_bytes = header.rows_page_bytes;
  info.keys_page_bytes = header.keys_page_bytes;
  info.layers_per_slab = header.layers_per_slab;
  info.created = header.created;
  return info;
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
  info = info_of(header);
  if (!info.has_sane_sizes() || header.file_bytes != info.file_bytes() || file.n_bytes != info.file_bytes())
    return SegmentFault::damaged;
  info.tokens.resize(static_cast<size_t>(info.n_pages * kPageTokens));
  std::memcpy(info.tokens.data(), &head[kBlock], info.tokens.size() * sizeof(int32_t));
  const bool is_whole = info.chain == chain_next(info.parent, info.first_page, info.tokens);
  return is_whole ? SegmentFault::none : SegmentFault::damaged;
}

}  // namespace

bool SegmentInfo::has_sizes_of(const SegmentInfo& other) const {
  return n_layers == other.n_layers && rows_page_bytes == other.rows_page_bytes &&
         keys_page_bytes == other.keys_page_bytes && layers_per_slab == other.layers_per_slab;
}
bool SegmentInfo::is_same(const SegmentInfo& other) const {
  return fingerprint == other.fingerprint && parent == other.parent && chain == other.chain &&
         first_page == other.first_page && n_pages == other.n_pages && has_sizes_of(other);
}

bool SegmentInfo::has_sane_sizes() const {
  const auto is_within = [](int64_t value, int64_t least, int64_t most) {
    return value >= least && value <= most;
  };
  return is_within(n_pages, 1, kMaxSegmentPages) && is_within(first_page, 0, kMaxPage) &&
         is_within(n_layers, 1, kMaxLayers) && is_within(rows_page_bytes, 1, kMaxPartBytes) &&
         is_within(keys_page_bytes, 0, kMaxPartBytes) && is_within(layers_per_slab, 1, n_layers) &&
         n_slabs() <= kMaxSlabs;
}

int64_t SegmentInfo::n_layers_of(int64_t slab) const {
  return std::min(layers_per_slab, n_layers - first_layer(slab));
}
uint64_t SegmentInfo::slab_bytes(int64_t slab) const {
  return padded(static_cast<uint64_t>(n_layers_of(slab) * (rows_page_bytes + keys_page_bytes)));
}
uint64_t SegmentInfo::slab_offset(int64_t slab) const {
  const uint64_t tokens_bytes = padded(static_cast<uint64_t>(n_pages * kPageTokens) * sizeof(int32_t));
  return kBlock + tokens_bytes + static_cast<uint64_t>(n_pages * slab) * slab_bytes(0);
}
uint64_t SegmentInfo::file_bytes() const {
  const int64_t last = n_slabs() - 1;
  return slab_offset(last) + static_cast<uint64_t>(n_pages) * slab_bytes(last) + kBlock;
}

int write_segment(FileSystem& fs, int fd, int direct_fd, const SegmentInfo& info,
                  std::span<const PageSource> pages) {
  BlockWriter writer(fs, fd, direct_fd);
  SegmentHeader header = header_of(info);
  for (int64_t slab = 0; slab < info.n_slabs(); ++slab)
    if (const int result = write_slab(writer, info, slab, pages, header); result != 0) return result;
  header.sum = sum_of(header);

  const uint64_t head_bytes = info.slab_offset(0);
  const AlignedBuffer head = aligned_buffer(head_bytes);
  if (!head) return -ENOMEM;
  std::memset(head.get(), 0, head_bytes);
  std::memcpy(head.get(), &header, sizeof header);
  std::memcpy(&head[kBlock], info.tokens.data(), info.tokens.size() * sizeof(int32_t));
  if (const int result = writer.write({head.get(), head_bytes}, 0); result != 0) return result;

  SegmentTrailer trailer{};
  std::memcpy(trailer.commit_mark, kCommitMark, sizeof kCommitMark);
  trailer.file_bytes = header.file_bytes;
  trailer.header_sum = header.sum;
  std::memcpy(head.get(), &trailer, sizeof trailer);
  const int result = writer.write({head.get(), kBlock}, header.file_bytes - kBlock);
  return result != 0 ? result : writer.finish();
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
  SegmentTrailer trailer;
  std::memcpy(&trailer, end.get(), sizeof trailer);
  const bool is_whole = n_tail == static_cast<int64_t>(kBlock) && trailer.file_bytes == header.file_bytes &&
                        trailer.header_sum == header.sum &&
                        std::memcmp(trailer.commit_mark, kCommitMark, sizeof kCommitMark) == 0;
  return is_whole ? SegmentFault::none : SegmentFault::damaged;
}

int64_t SegmentFile::read_block(std::span<uint8_t> block, uint64_t offset) const {
  return read_fully(fs_, fd_.get(), {{block.data(), block.size()}}, offset, unit_);
}

SegmentFault SegmentFile::verify(int64_t& n_whole) const {
  constexpr uint64_t kVerifyBytes = 1 << 20;
  const AlignedBuffer block = aligned_buffer(kVerifyBytes);
  if (!block) return SegmentFault::unreadable;
  for (n_whole = 0; n_whole < info_.n_pages; ++n_whole)
    for (int64_t slab = 0; slab < info_.n_slabs(); ++slab)
      if (const SegmentFault fault = verify(n_whole, slab, {block.get(), kVerifyBytes});
          fault != SegmentFault::none)
        return fault;
  return SegmentFault::none;
}

// A page's share of a slab is one run of bytes, and its checksum that of the run without the padding.
SegmentFault SegmentFile::verify(int64_t page, int64_t slab, std::span<uint8_t> block) const {
  const uint64_t slab_bytes = info_.slab_bytes(slab);
  const uint64_t begin = info_.slab_offset(slab) + static_cast<uint64_t>(page) * slab_bytes;
  uint64_t n_summed = static_cast<uint64_t>(info_.n_layers_of(slab)) *
                      static_cast<uint64_t>(info_.rows_page_bytes + info_.keys_page_bytes);
  Summer summer;
  for (uint64_t at = 0; at < slab_bytes; at += block.size()) {
    const std::span<uint8_t> part = block.first(std::min<uint64_t>(block.size(), slab_bytes - at));
    const int64_t n_read = read_block(part, begin + at);
    if (n_read < 0) return fault_of(n_read);
    if (n_read < std::ssize(part)) return SegmentFault::damaged;
    const uint64_t n = std::min<uint64_t>(n_summed, part.size());
    summer.add(part.data(), n);
    n_summed -= n;
  }
  const bool is_whole = summer.sum() == sums_[static_cast<size_t>(page)][static_cast<size_t>(slab)];
  return is_whole ? SegmentFault::none : SegmentFault::damaged;
}

SegmentFault SegmentFile::read_pages(int64_t first, int64_t slab, std::span<const PageTarget> targets) const {
  if (first < 0 || static_cast<int64_t>(targets.size()) > info_.n_pages - first) return SegmentFault::damaged;
  if (slab < 0 || slab >= info_.n_slabs()) return SegmentFault::damaged;
  const bool is_direct = unit_ > 1;
  bool has_aligned_rows = !is_direct || info_.rows_page_bytes % static_cast<int64_t>(kBlock) == 0;
  bool has_aligned_keys = true;
  for (const PageTarget& page : targets) {
    has_aligned_rows &= !is_direct || std::ranges::all_of(page.rows, is_aligned);
    has_aligned_keys &= !is_direct || is_aligned(page.keys);
  }
  const size_t n_at_once = static_cast<size_t>(
      std::max<int64_t>(1, std::min<int64_t>(kMaxParts / (info_.n_layers_of(slab) + 2),
                                             static_cast<int64_t>(kBatchBytes / info_.slab_bytes(slab)))));
  for (size_t page = 0; page < targets.size(); page += n_at_once) {
    const auto batch = targets.subspan(page, std::min(n_at_once, targets.size() - page));
    const SegmentFault fault =
        read_batch(first + static_cast<int64_t>(page), slab, batch, has_aligned_rows, has_aligned_keys);
    if (fault != SegmentFault::none) return fault;
  }
  if (!is_direct) fs_.drop_cached(fd_.get());
  return SegmentFault::none;
}

// One request. Of a page, what its target's alignment allows is read in place, the rest through `bounce`.
SegmentFault SegmentFile::read_batch(int64_t first, int64_t slab, std::span<const PageTarget> targets,
                                     bool has_aligned_rows, bool has_aligned_keys) const {
  const size_t slab_bytes = info_.slab_bytes(slab), n_layers = static_cast<size_t>(info_.n_layers_of(slab));
  const size_t rows_bytes = static_cast<size_t>(info_.rows_page_bytes);
  const size_t keys_bytes = n_layers * static_cast<size_t>(info_.keys_page_bytes);
  const size_t all_rows_bytes = rows_bytes * n_layers;
  // A page's first bytes that are read in place: no rows, the rows, or the rows and the keys' whole blocks.
  size_t n_in_place = has_aligned_rows ? all_rows_bytes : 0;
  if (has_aligned_rows && has_aligned_keys) n_in_place += keys_bytes / unit_ * unit_;
  const size_t n_bounced = slab_bytes - n_in_place;
  const AlignedBuffer bounce = aligned_buffer(n_bounced * targets.size());
  if (!bounce) return SegmentFault::unreadable;

  std::vector<iovec> parts;
  for (size_t i = 0; i < targets.size(); ++i) {
    for (uint8_t* rows : targets[i].rows)
      if (has_aligned_rows) parts.push_back({rows, rows_bytes});
    if (n_in_place > all_rows_bytes) parts.push_back({targets[i].keys, n_in_place - all_rows_bytes});
    parts.push_back({&bounce[i * n_bounced], n_bounced});
  }
  const uint64_t offset = info_.slab_offset(slab) + static_cast<uint64_t>(first) * slab_bytes;
  const int64_t n_read = read_fully(fs_, fd_.get(), std::move(parts), offset, unit_);
  if (n_read < 0) return fault_of(n_read);
  if (n_read < static_cast<int64_t>(slab_bytes * targets.size())) return SegmentFault::damaged;

  for (size_t i = 0; i < targets.size(); ++i) {
    const uint8_t* from = &bounce[i * n_bounced];
    for (uint8_t* rows : targets[i].rows)
      if (!has_aligned_rows) std::memcpy(rows, from, rows_bytes), from += rows_bytes;
    const size_t n_keys_there = n_in_place > all_rows_bytes ? n_in_place - all_rows_bytes : 0;
    if (keys_bytes > n_keys_there)
      std::memcpy(targets[i].keys + n_keys_there, from, keys_bytes - n_keys_there);
    const Sum& sum = sums_[static_cast<size_t>(first) + i][static_cast<size_t>(slab)];
    if (sum_of(info_, targets[i]) != sum) return SegmentFault::damaged;
  }
  return SegmentFault::none;
}

}  // namespace dsv32
