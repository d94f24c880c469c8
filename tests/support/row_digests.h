// One digest of all rows and keys that a backend computes for a fixed prompt, in prefill and in decode, and
// the expected digests: tests/golden/row_digests.txt, a line "NUMERICS DIGEST" for each.
//
// If a digest changes under the same numerics, users' disks hold rows with other bits than this program
// computes: the backend's epoch must rise, and the file gets a line for the new name.
#pragma once

#include <optional>
#include <string>

namespace dsv32 {

struct RowDigest {
  std::string numerics;  // Backend::numerics()
  std::string digest;    // SHA-256, hexadecimal
};

// Of 200 prompt tokens in steps of 150 and 12 decoded tokens, on the tiny model, with rows as f32 and as fp8.
RowDigest row_digest(const std::string& backend);

// The expected digest; nothing for numerics that the file does not have.
std::optional<std::string> expected_row_digest(const std::string& numerics);

}  // namespace dsv32
