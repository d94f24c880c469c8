#include "context/token_chain.h"

#include <bit>
#include <memory>

#include <openssl/evp.h>

#include "base/error.h"

namespace dsv32 {
namespace {

static_assert(std::endian::native == std::endian::little,
              "token ids are hashed and stored as they lie in memory");

// The tag keeps these hashes apart from every other use of SHA-256; its version changes with what is hashed.
constexpr std::string_view kRootTag = "dsv32 prefix chain 1";

class Sha256 {
 public:
  Sha256() : context_(EVP_MD_CTX_new()) {
    check(context_ && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr));
  }

  void add(const void* bytes, size_t n_bytes) { check(EVP_DigestUpdate(context_.get(), bytes, n_bytes)); }

  // With its length in front, so that where one field ends and the next begins is part of what is hashed.
  void add_field(std::string_view bytes) {
    const uint64_t n_bytes = bytes.size();
    add(&n_bytes, sizeof n_bytes);
    add(bytes.data(), bytes.size());
  }

  Hash256 finish() {
    Hash256 hash{};
    check(EVP_DigestFinal_ex(context_.get(), hash.data(), nullptr));
    return hash;
  }

 private:
  static void check(bool is_ok) {
    if (!is_ok) fail(ErrorKind::internal, "SHA-256 failed in the cryptography library");
  }
  struct Free {
    void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
  };
  std::unique_ptr<EVP_MD_CTX, Free> context_;
};

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

std::string hex(std::span<const uint8_t> bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const uint8_t byte : bytes) text += kDigits[byte >> 4], text += kDigits[byte & 15];
  return text;
}

}  // namespace dsv32
