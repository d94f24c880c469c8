// A tiny model, a prompt of five pages and some tokens, which may be on disk, and engines that look for its
// prefixes.
#pragma once

#include <boost/test/unit_test.hpp>
#include <memory>
#include <string>
#include <vector>

#include "prefix/model_digest.h"
#include "tests/support/disk_options.h"
#include "tests/support/stored_pages.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"
#include "tests/support/tiny_sequence.h"

namespace dsv32::known_prompt {

struct Tiny {
  TempDir dir;
  std::string path = dir.file("tiny.gguf");
  Tiny() {
    TinyModel shape;
    shape.n_layers = 2, shape.n_dense_layers = 1, shape.index_topk = 32;
    write_tiny_model(path, shape);
  }
};

inline const std::string& tiny_path() {
  static const Tiny tiny;
  return tiny.path;
}

inline constexpr int64_t kBase = 5 * kPageTokens + 20;  // tokens of the known prompt

inline const std::vector<int32_t>& base() {
  static const std::vector<int32_t> tokens = random_tokens(kBase, 1);
  return tokens;
}

// The first n tokens of the known prompt, then three others.
inline std::vector<int32_t> leaving_at(int64_t n) {
  std::vector<int32_t> tokens(base().begin(), base().begin() + n);
  for (const int32_t other : {251, 252, 253}) tokens.push_back(other);
  return tokens;
}

inline EngineOptions options_in(const std::string& directory) {
  EngineOptions options;
  options.context = 512;
  options.n_threads = 2;
  return with_disk(options, directory);
}

struct Opened : TinySequence {
  explicit Opened(const EngineOptions& options) : TinySequence(tiny_path(), options) {}
};

inline void fill(const std::string& directory, KvType kv_type = KvType::fp8) {
  EngineOptions options = options_in(directory);
  options.kv_type = kv_type;
  Opened first(options);
  BOOST_TEST(first.sequence->sync(base()) == 0);
}

// The options of the store that an engine with these options has.
inline StoreOptions store_options_of(const EngineOptions& options) {
  EngineOptions without = options;
  without.cache.reset();
  const Opened opened(without);
  const CachePlan& plan = opened.engine->cache().plan();
  StoreOptions store;
  store.directory = options.cache->directory;
  const ModelDigest model(opened.file.files(), {.most_hashed_first = UINT64_MAX});
  store.format.fingerprint = fingerprint(*model.value(), plan.layout, opened.engine->backend().numerics());
  store.format.n_layers = plan.n_layers;
  store.format.rows_page_bytes = kPageTokens * plan.layout.row_bytes();
  store.format.keys_page_bytes = plan.layout.key_page_bytes();
  return store;
}

inline std::unique_ptr<PageStore> store_of(const EngineOptions& options) {
  const StoreOptions wanted = store_options_of(options);
  std::unique_ptr<PageStore> store = PageStore::open(wanted, wanted.format);
  BOOST_REQUIRE(store);
  return store;
}

}  // namespace dsv32::known_prompt
