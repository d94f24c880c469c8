#include "prefix/page_file.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <new>
#include <type_traits>

#include <fcntl.h>
#include <sys/mman.h>
#include <xxhash.h>

#include "backend/cache_layout.h"
#include "base/error.h"
#include "prefix/cache_files.h"

namespace dsv32 {
namespace {

constexpr uint64_t kBlock = 4096, kHugePage = uint64_t{1} << 21;
constexpr uint64_t kMostVerified = uint64_t{1} << 28;  // bytes: no page is larger
constexpr char kMagic[] = "dsv32p1";                   // its end is the version
constexpr uint32_t kEndianTag = 0x01020304;

using Sum = std::array<uint8_t, 16>;

struct Header {
  char magic[8];
  uint32_t endian_tag, page_tokens;
  PageFormat format;
  PageName name;
  int32_t tokens[kPageTokens];
  Sum data_sum;
  uint8_t zeros[3704];
  Sum sum;  // of all before it
};
static_assert(sizeof(Header) == kBlock && std::is_trivially_copyable_v<Header>);

Sum sum_of(const void* bytes, size_t n_bytes) {
  XXH128_canonical_t sum;
  XXH128_canonicalFromHash(&sum, XXH3_128bits(bytes, n_bytes));
  return std::to_array(sum.digest);
}

struct alignas(kHugePage) HugePage {
  uint8_t bytes[kHugePage];
};

// This thread's: fresh memory costs as much time as a checksum, or as the disk. Of huge pages a device takes
// a request in fewer pieces: 16 threads read pages of 3 MB at 2.4 GB/s, else at 2.0 (a virtual disk).
std::span<uint8_t> buffer(uint64_t n_bytes) {
  thread_local std::unique_ptr<HugePage[]> memory;
  thread_local uint64_t n_allocated = 0;
  if (n_allocated < n_bytes) {
    const uint64_t n_pages = (n_bytes + sizeof(HugePage) - 1) / sizeof(HugePage);
    memory = std::make_unique_for_overwrite<HugePage[]>(n_pages);
    n_allocated = n_pages * sizeof(HugePage);
    madvise(memory.get(), n_allocated, MADV_HUGEPAGE);  // what refuses gives small ones
  }
  return {memory[0].bytes, n_bytes};
}

// The header with which a file of these bytes must begin.
Header header_of(const PageFormat& format, const PageName& name, std::span<const int32_t> tokens,
                 std::span<const uint8_t> file) {
  Header header{};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.endian_tag = kEndianTag;
  header.page_tokens = kPageTokens;
  header.format = format;
  header.name = name;
  std::ranges::copy(tokens, header.tokens);
  header.data_sum = sum_of(&file[kBlock], file.size() - kBlock);
  header.sum = sum_of(&header, offsetof(Header, sum));
  return header;
}

// EIO alone means that the file is damaged; other errors may pass.
PageFault fault_of(int64_t negative_errno) {
  if (negative_errno == -ENOENT) return PageFault::vanished;
  return negative_errno == -EIO ? PageFault::damaged : PageFault::unreadable;
}

// Fills `bytes` with a file of this size. Opens only regular files of this user: merely opening some devices
// makes them act. A file system may refuse O_DIRECT when the file is opened, or only when it is read.
PageFault read_file(FileSystem& fs, int folder, const std::string& name, std::span<uint8_t> bytes) {
  FileInfo file;
  int64_t n_read = fs.stat_at(folder, name, file);
  if (n_read != 0) return fault_of(n_read);
  if (!is_own_file(file) || file.n_bytes != bytes.size()) return PageFault::damaged;
  for (const int direct : {O_DIRECT, 0}) {
    const OwnedFd fd(fs, fs.open_at(folder, name, O_RDONLY | direct));
    n_read = fd.error();
    if (fd.is_open()) n_read = read_fully(fs, fd.get(), bytes.data(), bytes.size(), 0, direct ? kBlock : 1);
    if (fd.is_open() && !direct) fs.drop_cached(fd.get());
    if (n_read >= 0 || fault_of(n_read) != PageFault::unreadable) break;
  }
  if (n_read < 0) return fault_of(n_read);
  return n_read < std::ssize(bytes) ? PageFault::damaged : PageFault::none;
}

// Creates a temporary file with a flock, which says that it is being written. Another process may take it for
// a leftover before it has the flock: then another one is created.
int create_locked(FileSystem& fs, int folder, std::string& name, OwnedFd& fd) {
  constexpr int kTries = 10;
  int result = 0;
  for (int i = 0; i < kTries; ++i) {
    name = CacheFiles::new_temporary();
    fd = OwnedFd(fs, fs.open_at(folder, name, O_RDWR | O_CREAT | O_EXCL));
    if (!fd.is_open()) return fd.error();
    FileInfo info;
    result = fs.try_lock(fd.get());
    if (result == 0) result = fs.stat_at(folder, name, info);
    if (result != -EWOULDBLOCK && result != -ENOENT) break;
    fs.unlink(folder, name);
  }
  return result;
}

// Through O_DIRECT, unless the file system refuses it.
int write_bytes(FileSystem& fs, int folder, UnnamedPage& file, std::span<const uint8_t> bytes) {
  const OwnedFd direct(fs, fs.open_at(folder, file.temporary, O_WRONLY | O_DIRECT));
  const int result = direct.is_open() ? write_fully(fs, direct.get(), bytes, 0, kBlock) : -EINVAL;
  file.is_cached = result == -EINVAL;
  return file.is_cached ? write_fully(fs, file.fd.get(), bytes, 0) : result;
}

}  // namespace

PageHash next_hash(const PageHash& parent, std::span<const int32_t> page) try {
  Sha256 sha;
  sha.add(parent.data(), parent.size());
  sha.add(page.data(), page.size_bytes());
  const Hash256 whole = sha.finish();
  PageHash half;
  std::copy_n(whole.begin(), half.size(), half.begin());
  return half;
} catch (const Error&) {  // the library fails only without memory
  throw std::bad_alloc();
}

std::optional<PageName> PageName::parse(const std::string& file) {
  PageName name;
  if (file.size() != 4 * sizeof(PageHash) + 1) return std::nullopt;
  const char* digits = file.data();
  for (PageHash* hash : {&name.parent, &name.own}) {
    for (uint8_t& byte : *hash) std::from_chars(digits, digits + 2, byte, 16), digits += 2;
    ++digits;
  }
  return name.file() == file ? std::optional(name) : std::nullopt;
}

uint64_t PageFormat::file_bytes() const {
  const auto n_bytes = static_cast<uint64_t>(n_layers * (rows_page_bytes + keys_page_bytes));
  return kBlock + (n_bytes + kBlock - 1) / kBlock * kBlock;
}

PageFault read_page(FileSystem& fs, int folder, const PageFormat& format, const PageName& name,
                    std::span<const int32_t> tokens, const PageBytes& target) {
  const std::span<uint8_t> bytes = buffer(format.file_bytes());
  const PageFault fault = read_file(fs, folder, name.file(), bytes);
  if (fault != PageFault::none) return fault;
  const Header header = header_of(format, name, tokens, bytes);
  if (std::memcmp(&header, bytes.data(), kBlock) != 0) return PageFault::damaged;
  const uint8_t* from = &bytes[kBlock];
  for (const std::span<uint8_t> part : target) {
    std::copy_n(from, part.size(), part.begin());
    from += part.size();
  }
  return PageFault::none;
}

PageFault verify_page(FileSystem& fs, int folder, const std::string& folder_name, const PageName& name) {
  FileInfo file;
  if (const int result = fs.stat_at(folder, name.file(), file); result != 0) return fault_of(result);
  if (file.n_bytes < kBlock || file.n_bytes > kMostVerified) return PageFault::damaged;
  const std::span<uint8_t> bytes = buffer(file.n_bytes);
  const PageFault fault = read_file(fs, folder, name.file(), bytes);
  if (fault != PageFault::none) return fault;
  Header found;
  std::memcpy(&found, bytes.data(), kBlock);
  const Header header = header_of(found.format, name, found.tokens, bytes);
  const bool is_whole = std::memcmp(&header, &found, kBlock) == 0 && found.format.folder() == folder_name &&
                        next_hash(name.parent, found.tokens) == name.own;
  return is_whole ? PageFault::none : PageFault::damaged;
}

int write_page(FileSystem& fs, int folder, const PageFormat& format, const NewPage& page, UnnamedPage& file) {
  FileInfo found;
  int result = fs.stat_at(folder, page.name.file(), found);
  if (result != -ENOENT) return result == 0 ? -EEXIST : result;
  const std::span<uint8_t> bytes = buffer(format.file_bytes());
  uint8_t* to = &bytes[kBlock];
  for (const std::span<uint8_t> part : page.bytes) to = std::ranges::copy(part, to).out;
  std::fill(to, bytes.data() + bytes.size(), 0);
  const Header header = header_of(format, page.name, page.tokens, bytes);
  std::memcpy(bytes.data(), &header, kBlock);

  result = create_locked(fs, folder, file.temporary, file.fd);
  if (result == 0) result = fs.reserve(file.fd.get(), bytes.size());
  if (result == 0) result = write_bytes(fs, folder, file, bytes);
  return result;
}

int sync_page(FileSystem& fs, const UnnamedPage& file) {
  const int result = fs.fdatasync(file.fd.get());
  ++fs.n_steps_done;
  if (file.is_cached) fs.drop_cached(file.fd.get());
  return result;
}

}  // namespace dsv32
