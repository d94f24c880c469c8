// One digest of all rows and keys that a backend makes of a fixed prompt, in prefill and in decode, and the
// digests that were seen before: tests/golden/row_digests.txt, a line "NUMERICS DIGEST" for each.
//
// When a digest changes under the same numerics, disks hold rows with other bits than this program computes:
// the backend's epoch must rise, and the file gets a line for the new name.
#pragma once

#include <optional>
#include <string>

namespace dsv32 {

struct RowDigest {
  std::string numerics;  // Backend::numerics()
  std::string digest;    // SHA-256, hexadecimal
};

// Of the tiny model's 200 tokens of prompt in steps of 150 and 12 decoded ones, with rows as f32 and as fp8.
RowDigest row_digest(const std::string& backend);

// What it is to be; nothing for numerics that nobody has written down.
std::optional<std::string> expected_row_digest(const std::string& numerics);

}  // namespace dsv32
