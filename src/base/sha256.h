// SHA-256, by OpenSSL: the hash behind all names, digests and fingerprints.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

struct evp_md_ctx_st;

namespace dsv32 {

using Hash256 = std::array<uint8_t, 32>;

// Computes one hash. All functions throw Error{internal} when the library fails. One thread.
class Sha256 {
 public:
  Sha256();
  void add(const void* bytes, size_t n_bytes);
  void add_field(std::string_view bytes);  // with its length in front
  void add_number(uint64_t value);         // eight bytes, little-endian
  Hash256 finish();                        // once, the last call

 private:
  std::unique_ptr<evp_md_ctx_st, void (*)(evp_md_ctx_st*)> context_;
};

Hash256 sha256(std::string_view bytes);

std::string hex(std::span<const uint8_t> bytes);  // lower case

}  // namespace dsv32
