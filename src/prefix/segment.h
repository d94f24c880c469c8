// A segment on disk: an immutable file that describes itself. Only this code knows its bytes.
//
//   offset   bytes            what
//   0        4096             SegmentHeader; its last 16 bytes: XXH3-128 of the 4080 before
//   4096     n_pages * 256    token ids, int32, padded to 4096
//   ...      each page        rows [n_layers][rows_page_bytes], keys [n_layers][keys_page_bytes], to 4096
//   ...      4096             SegmentTrailer: the file's length and the header's checksum again
//
// Consecutive pages can be read in one large request. Everything begins at a multiple of 4096, for O_DIRECT.
// Little-endian; the header's tag says so. Magic, version and the place of the header's checksum are the same
// in every version, so that a newer file can be told from a damaged one. The header holds a checksum of each
// page; the chain hash covers the tokens.
//
// Functions throw when memory or the cryptography library fails. Every field is checked before it is used,
// and every count bounded before memory is allocated by it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file_system.h"
#include "base/sha256.h"

namespace dsv32 {

constexpr int64_t kMaxSegmentPages = 16;

// A token sequence is named by chained SHA-256: a segment's hash covers its tokens and, through its parent's
// hash, all tokens before them. The root covers the fingerprint (model_digest.h) and the salt, so that
// sequences of two models or two salts never meet. Hashes only find; tokens are compared too.
Hash256 chain_root(const Hash256& fingerprint, std::string_view salt);
// `tokens` begin at `first_page` of their prompt, which says from which of the parent's pages they continue.
Hash256 chain_next(const Hash256& parent, int64_t first_page, std::span<const int32_t> tokens);

// Where the bytes of one page lie.
template <typename Byte>
struct PageBytes {
  std::span<Byte* const> rows;  // [n_layers], rows_page_bytes each
  Byte* keys = nullptr;         // [n_layers * keys_page_bytes]
};
using PageTarget = PageBytes<uint8_t>;  // rows at multiples of 4096 are read without a copy
using PageSource = PageBytes<const uint8_t>;

// The part of a segment's header that describes it, as it lies there.
struct SegmentHead {
  Hash256 fingerprint{}, parent{}, chain{};  // parent, chain: hashes of the tokens before, and up to its end
  int64_t first_page = 0, n_pages = 1;       // first_page: index in the prompt
  int64_t n_layers = 0, rows_page_bytes = 0, keys_page_bytes = 0;
  uint64_t created = 0;  // a logical time: UseRecord

  bool has_sizes_of(const SegmentHead& other) const;  // of a layer's page
  bool has_sane_sizes() const;                        // counts and sizes are within the limits
  uint64_t page_bytes() const;                        // padded
  uint64_t page_offset(int64_t page) const;
  uint64_t file_bytes() const;
};

struct SegmentInfo : SegmentHead {
  std::vector<int32_t> tokens;  // [n_pages * 64]
};

enum class SegmentFault {
  none,
  vanished,    // no such file
  foreign,     // not a regular file of this user
  newer,       // written by a later version: left alone
  damaged,     // to be removed
  unreadable,  // cannot be read now (out of descriptors or memory, no permission)
};

// Writes all of a segment to `fd`, a new file, and makes its bytes durable. `direct_fd`: the same file opened
// with O_DIRECT, or -1. 0 or a negative errno; after an error the file is useless.
int write_segment(FileSystem& fs, int fd, int direct_fd, const SegmentInfo& info,
                  std::span<const PageSource> pages);

// An open segment whose header, tokens and trailer have been verified. Reading: any number of threads.
class SegmentFile {
 public:
  // Null with `fault` set. Does not read the pages.
  static std::shared_ptr<const SegmentFile> open(FileSystem& fs, int directory, const std::string& name,
                                                 SegmentFault& fault);

  // Reads the head and verifies its checksum and chain hash; does not read the trailer. Reads through the
  // page cache, where the next start finds it.
  static SegmentFault read_info(FileSystem& fs, int directory, const std::string& name, SegmentInfo& info,
                                FileInfo& file);

  const SegmentInfo& info() const { return info_; }

  // Reads all pages and verifies their checksums, in little memory whatever the sizes. `n_whole`: the number
  // of pages before the first that fails.
  SegmentFault verify(int64_t& n_whole) const;

  // Reads pages [first, first + targets.size()), which must exist, and verifies their checksums, in requests
  // of at most 1024 parts and 16 MiB. After a fault the targets' content is undefined.
  SegmentFault read_pages(int64_t first, std::span<const PageTarget> targets) const;

 private:
  using Sum = std::array<uint8_t, 16>;
  SegmentFile(FileSystem& fs, uint64_t unit) : fs_(fs), unit_(unit) {}
  SegmentFault open_own(int directory, const std::string& name, FileInfo& file);
  SegmentFault read_head(const FileInfo& file);
  SegmentFault read_trailer() const;
  SegmentFault read(std::vector<iovec> parts, uint64_t offset) const;
  SegmentFault verify_page(int64_t page, std::span<uint8_t> block) const;
  SegmentFault read_batch(int64_t first, std::span<const PageTarget> targets) const;

  FileSystem& fs_;
  OwnedFd fd_;
  uint64_t unit_;  // 4096 with O_DIRECT, else 1
  SegmentInfo info_;
  std::array<Sum, kMaxSegmentPages> sums_{};  // of the pages
  Sum header_sum_{};
};

}  // namespace dsv32
