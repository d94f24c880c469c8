// A model file with an engine and a sequence, random prompts for it, and the rows and keys it computed.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/sequence.h"
#include "gguf/random_weights.h"

namespace dsv32 {

// Ids below 250, which every tiny vocabulary has.
inline std::vector<int32_t> random_tokens(int64_t n, uint64_t seed) {
  Rng rng(seed);
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < n; ++i) tokens.push_back(static_cast<int32_t>(rng.next() % 250));
  return tokens;
}

struct TinySequence {
  GgufFile file;
  // A thread that hangs may warn after the sequence is gone.
  std::shared_ptr<std::vector<std::string>> kept_warnings = std::make_shared<std::vector<std::string>>();
  std::vector<std::string>& warnings = *kept_warnings;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<ByHand> sequence;
  TinySequence(const std::string& path, EngineOptions options) : file(path) {
    if (options.cache)
      options.cache->warn = [kept = kept_warnings](const std::string& line) { kept->push_back(line); };
    engine = std::make_unique<Engine>(file, options);
    while (engine->prefix_cache() && engine->prefix_cache()->store_more()) std::this_thread::yield();
    sequence = std::make_unique<ByHand>(*engine);
  }
};

// The bytes of all rows and keys of a sequence's first n_tokens, and of the bounds of its whole spans,
// without the rest of the last page.
inline std::vector<uint8_t> remembered(Engine& engine, const ByHand& sequence, int64_t n_tokens) {
  LatentCache& cache = engine.cache();
  const CacheLayout& layout = cache.plan().layout;
  std::vector<PoolPage> pages;
  for (int64_t i = 0; i * kPageTokens < n_tokens; ++i) pages.push_back(sequence.cached().page(i));
  const std::vector<std::vector<uint8_t>> keys = cache.download_keys(pages);
  std::vector<uint8_t> bytes;
  const auto add = [&](const uint8_t* from, int64_t n) { bytes.insert(bytes.end(), from, from + n); };
  for (int64_t layer = 0; layer < cache.plan().n_layers; ++layer)
    for (size_t i = 0; i < pages.size(); ++i) {
      const int64_t n = std::min(kPageTokens, n_tokens - static_cast<int64_t>(i) * kPageTokens);
      const uint8_t* key_page = keys[i].data() + layer * layout.key_page_bytes();
      add(cache.page_rows(pages[i], layer), n * layout.row_bytes());
      add(key_page, n * layout.scale_bytes());
      add(key_page + layout.keys_offset(), n * layout.key_bytes());
      add(key_page + layout.key_scales_offset(), n * layout.key_scale_bytes());
      add(key_page + layout.bounds_offset(), n / kSpanTokens * layout.span_bytes());
    }
  return bytes;
}

inline std::vector<uint8_t> remembered(Engine& engine, const ByHand& sequence) {
  return remembered(engine, sequence, sequence.cached().n_tokens());
}

}  // namespace dsv32
