#include "context/fingerprint.h"

#include <algorithm>
#include <memory>
#include <vector>

#include <openssl/evp.h>

#include "base/error.h"

namespace dsv32 {
namespace {

using Digest = std::array<uint8_t, 32>;

// Raised when a change of the program changes the bits of rows or keys.
constexpr uint64_t kNumericsEpoch = 3;
constexpr uint64_t kSampleBytes = 4096;

// SHA-256 over fields that carry a tag and their length, so that no two lists of fields read alike.
class Hasher {
 public:
  Hasher() : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
    check(context_ && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr));
  }
  void field(char tag, const void* bytes, uint64_t n) {
    uint8_t head[9] = {static_cast<uint8_t>(tag)};
    for (int i = 0; i < 8; ++i) head[1 + i] = static_cast<uint8_t>(n >> 8 * i);
    check(EVP_DigestUpdate(context_.get(), head, sizeof head));
    check(EVP_DigestUpdate(context_.get(), bytes, n));
  }
  void number(char tag, uint64_t value) {
    uint8_t bytes[8];
    for (int i = 0; i < 8; ++i) bytes[i] = static_cast<uint8_t>(value >> 8 * i);
    field(tag, bytes, sizeof bytes);
  }
  Digest finish() {
    Digest digest;
    check(EVP_DigestFinal_ex(context_.get(), digest.data(), nullptr));
    return digest;
  }

 private:
  static void check(bool is_ok) {
    if (!is_ok) fail(ErrorKind::internal, "SHA-256 is not available");
  }
  std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context_;
};

// Name, type, shape, and values at the beginning, in the middle and at the end.
Digest tensor_digest(const GgufTensor& tensor) {
  Hasher hasher;
  hasher.field('n', tensor.name.data(), tensor.name.size());
  hasher.number('t', static_cast<uint64_t>(tensor.type));
  for (const uint64_t n : tensor.ne) hasher.number('s', n);
  const uint64_t n_sample = std::min(kSampleBytes, tensor.n_bytes);
  for (const uint64_t at : {uint64_t{0}, (tensor.n_bytes - n_sample) / 2, tensor.n_bytes - n_sample})
    hasher.field('v', tensor.data + at, n_sample);
  return hasher.finish();
}

// The bytes of each part before its first tensor's values: metadata, the tokenizer's among it, and shapes.
void add_headers(Hasher& hasher, const GgufFile& file) {
  std::vector<const GgufTensor*> first(file.n_parts(), nullptr);
  for (const GgufTensor& tensor : file.tensors()) {
    const GgufTensor*& earliest = first[static_cast<size_t>(tensor.part)];
    if (!earliest || tensor.offset < earliest->offset) earliest = &tensor;
  }
  for (const GgufTensor* tensor : first)
    if (tensor) hasher.field('h', tensor->data - tensor->offset, tensor->offset);
}

}  // namespace

Digest fingerprint(const GgufFile& file, const CacheLayout& layout, const std::string& backend) {
  Hasher hasher;
  hasher.number('e', kNumericsEpoch);
  hasher.field('b', backend.data(), backend.size());
  hasher.number('k', static_cast<uint64_t>(layout.kv_type));
  for (const int64_t n : {layout.kv_lora_rank, layout.qk_rope_head_dim, layout.index_head_dim, kPageTokens})
    hasher.number('l', static_cast<uint64_t>(n));
  add_headers(hasher, file);
  const std::vector<GgufTensor>& tensors = file.tensors();
  std::vector<Digest> digests(tensors.size());
  // In parallel because each sample is a wait for the disk.
#pragma omp parallel for schedule(dynamic)
  for (size_t i = 0; i < tensors.size(); ++i) digests[i] = tensor_digest(tensors[i]);
  for (const Digest& digest : digests) hasher.field('d', digest.data(), digest.size());
  return hasher.finish();
}

}  // namespace dsv32
