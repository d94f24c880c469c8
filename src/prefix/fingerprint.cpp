#include "prefix/fingerprint.h"

#include <string_view>

namespace dsv32 {
namespace {

// Its version changes with what is hashed, and with the meaning of a page's bytes.
constexpr std::string_view kTag = "dsv32 fingerprint 2";

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

}  // namespace dsv32
