#include "tests/support/row_digests.h"

#include <fstream>

#include "base/error.h"
#include "base/sha256.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"
#include "tests/support/tiny_sequence.h"

namespace dsv32 {

RowDigest row_digest(const std::string& backend) {
  const TempDir dir;
  write_tiny_model(dir.file("tiny.gguf"), {});
  const std::vector<int32_t> tokens = random_tokens(212, 11);
  Sha256 sha;
  RowDigest found;
  for (const KvType kv_type : {KvType::f32, KvType::fp8}) {
    EngineOptions options;
    options.backend = backend, options.kv_type = kv_type;
    options.context = 256, options.chunk = 150;
    TinySequence tiny(dir.file("tiny.gguf"), options);
    tiny.sequence->sync(std::span(tokens).first(200));
    for (const int32_t token : std::span(tokens).subspan(200)) tiny.sequence->step(token);
    const std::vector<uint8_t> bytes = remembered(*tiny.engine, *tiny.sequence);
    sha.add(bytes.data(), bytes.size());
    found.numerics = tiny.engine->backend().numerics();
  }
  found.digest = hex(sha.finish());
  return found;
}

std::optional<std::string> expected_row_digest(const std::string& numerics) {
  std::ifstream file("tests/golden/row_digests.txt");
  if (!file)
    fail(ErrorKind::io, "tests/golden/row_digests.txt cannot be read", "the tests run from the root");
  for (std::string name, digest; file >> name >> digest;)
    if (name == numerics) return digest;
  return std::nullopt;
}

}  // namespace dsv32
