#include "base/sha256.h"

#include <bit>

#include <openssl/evp.h>

#include "base/error.h"

namespace dsv32 {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are hashed as they lie in memory");

void check(bool is_ok) {
  if (!is_ok) fail(ErrorKind::internal, "SHA-256 failed in the cryptography library");
}

}  // namespace

Sha256::Sha256() : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
  check(context_ && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr));
}

void Sha256::add(const void* bytes, size_t n_bytes) {
  check(EVP_DigestUpdate(context_.get(), bytes, n_bytes));
}

void Sha256::add_field(std::string_view bytes) {
  add_number(bytes.size());
  add(bytes.data(), bytes.size());
}

void Sha256::add_number(uint64_t value) { add(&value, sizeof value); }

Hash256 Sha256::finish() {
  Hash256 hash{};
  check(EVP_DigestFinal_ex(context_.get(), hash.data(), nullptr));
  return hash;
}

Hash256 sha256(std::string_view bytes) {
  Sha256 sha;
  sha.add(bytes.data(), bytes.size());
  return sha.finish();
}

std::string hex(std::span<const uint8_t> bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const uint8_t byte : bytes) text += kDigits[byte >> 4], text += kDigits[byte & 15];
  return text;
}

}  // namespace dsv32
