#include "prefix/fingerprint.h"

#include <bit>

namespace dsv32 {
namespace {

static_assert(std::endian::native == std::endian::little,
              "token ids are hashed and stored as they lie in memory");

// Tags keep these hashes apart from every other use of SHA-256. Their versions change with what is hashed,
// the first one's also with the meaning of a page's bytes, and with what is read of a model file.
constexpr std::string_view kTag = "dsv32 fingerprint 3", kRootTag = "dsv32 prefix chain 1";

}  // namespace

Hash256 fingerprint(const Hash256& model, const CacheLayout& layout, const std::string& numerics) {
  Sha256 sha;
  sha.add_field(kTag);
  sha.add_field(numerics);
  sha.add_number(static_cast<uint64_t>(layout.kv_type));
  for (const int64_t n : {layout.kv_lora_rank, layout.qk_rope_head_dim, layout.index_head_dim, kPageTokens})
    sha.add_number(static_cast<uint64_t>(n));
  sha.add(model.data(), model.size());
  return sha.finish();
}

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

}  // namespace dsv32
