// One page on disk: an immutable file that its tokens and all tokens before them name. Only this code knows
// its bytes.
//
//   offset   bytes                         what
//   0        4096                          Header: format, fingerprint, sizes, names, tokens, checksums
//   4096     n_layers * rows_page_bytes    rows
//   ...      n_layers * keys_page_bytes    keys, with zeros up to a multiple of 4096, for O_DIRECT
//
// The file is PARENT-OWN, two hashes in hexadecimal. Tokens are those of a history (CachedSequence::history).
// A reader knows the whole header but the checksums, and takes a file only if all of it agrees: no count of a
// file is believed. When the meaning of a file changes, so must the fingerprint (model_digest.cpp).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/file_system.h"
#include "base/sha256.h"

namespace dsv32 {

// Half of a SHA-256 of the page before and of the page's tokens: stands for all tokens up to its end. Where
// prompts begin it is zeros.
using PageHash = std::array<uint8_t, 16>;

// `page`: kPageTokens tokens. Throws std::bad_alloc.
PageHash next_hash(const PageHash& parent, std::span<const int32_t> page);

struct PageName {
  PageHash parent{}, own{};
  std::string file() const { return hex(parent) + "-" + hex(own); }
  static std::optional<PageName> parse(const std::string& file);  // nothing: no page has this name
};

// What all pages under a fingerprint have in common.
struct PageFormat {
  Hash256 fingerprint{};
  int64_t n_layers = 0, rows_page_bytes = 0, keys_page_bytes = 0;
  std::string folder() const { return hex(fingerprint); }
  uint64_t file_bytes() const;
};

// Where the bytes of a page lie in memory: n_layers parts of rows_page_bytes, and one of n_layers *
// keys_page_bytes.
using PageBytes = std::vector<std::span<uint8_t>>;

struct NewPage {
  PageName name;
  std::span<const int32_t> tokens;  // [kPageTokens]
  PageBytes bytes;
};

enum class PageFault {
  none,
  vanished,    // no such file
  damaged,     // or no file of this user
  unreadable,  // cannot be read now (out of descriptors or memory, no permission)
};

// Reads and verifies a page; writes to `target` only if it is whole.
PageFault read_page(FileSystem& fs, int folder, const PageFormat& format, const PageName& name,
                    std::span<const int32_t> tokens, const PageBytes& target);

// Verifies a file by its name and by the folder's.
PageFault verify_page(FileSystem& fs, int folder, const std::string& folder_name, const PageName& name);

// A page's file before it has its name. Who gives it none unlinks it.
struct UnnamedPage {
  std::string temporary;
  OwnedFd fd;
  bool is_cached = false;  // O_DIRECT was refused
};

// Writes a page beside. 0; -EEXIST: it is there; or another negative errno.
int write_page(FileSystem& fs, int folder, const PageFormat& format, const NewPage& page, UnnamedPage& file);

// Makes its bytes durable, whichever descriptor wrote them. A failed sync must not be tried again, because
// the kernel may have dropped the bytes. 0 or a negative errno.
int sync_page(FileSystem& fs, const UnnamedPage& file);

}  // namespace dsv32
