// A page's keys are a random piece of one long row of random values, which is much faster than drawing each:
// the scales, drawn for each, make no two of them equal.
#include "cli/inspect/fabricated.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/numbers.h"
#include "gguf/random_weights.h"

namespace dsv32 {
namespace {

constexpr int64_t kPagesTogether = 64;  // whose keys wait on the host
constexpr uint8_t kScaleOfOne = 127;    // ue8m0

class RandomKeys {
 public:
  explicit RandomKeys(const CachePlan& plan) : plan_(plan) {
    constexpr int64_t kMoreValues = int64_t{1} << 20;
    const int64_t n_values = kPageTokens * plan.layout.index_head_dim + kMoreValues;
    for (int64_t i = 0; i < n_values; ++i) floats_.push_back(rng_.unit());
    for (const float value : floats_) e4m3_.push_back(f32_to_e4m3(value));
  }

  // Of every layer, [n_layers, key_page_bytes].
  std::vector<uint8_t> page() {
    std::vector<uint8_t> bytes(static_cast<size_t>(plan_.n_layers * plan_.layout.key_page_bytes()));
    for (int64_t layer = 0; layer < plan_.n_layers; ++layer)
      fill(bytes.data() + layer * plan_.layout.key_page_bytes());
    return bytes;
  }

 private:
  void fill(uint8_t* page) {
    const CacheLayout& layout = plan_.layout;
    std::fill_n(page, kPageTokens * layout.scale_bytes(), kScaleOfOne);
    const size_t n_values = static_cast<size_t>(kPageTokens * layout.index_head_dim);
    const size_t first = rng_.next() % (floats_.size() - n_values + 1);
    const void* values = layout.kv_type == KvType::f32 ? static_cast<const void*>(floats_.data() + first)
                                                       : static_cast<const void*>(e4m3_.data() + first);
    std::memcpy(page + layout.keys_offset(), values, static_cast<size_t>(kPageTokens * layout.key_bytes()));
    uint8_t* scale = page + layout.key_scales_offset();
    for (int64_t i = 0; i < kPageTokens * layout.key_scale_bytes(); i += sizeof(float)) {
      const float value = 0.5f + rng_.uniform();
      std::memcpy(scale + i, &value, sizeof value);
    }
  }

  const CachePlan& plan_;
  Rng rng_{5};
  std::vector<float> floats_;  // between -2 and 2
  std::vector<uint8_t> e4m3_;  // the same
};

std::vector<int32_t> random_tokens(int64_t n, int64_t vocab_size) {
  Rng rng(3);
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < n; ++i)
    tokens.push_back(static_cast<int32_t>(rng.next() % static_cast<uint64_t>(vocab_size)));
  return tokens;
}

}  // namespace

std::vector<std::unique_ptr<ByHand>> fabricate_sessions(Engine& engine, int64_t n, int64_t n_tokens) {
  const std::vector<int32_t> tokens = random_tokens(n_tokens, engine.args().vocab_size);
  LatentCache& cache = engine.cache();
  std::vector<std::unique_ptr<ByHand>> sessions;
  for (int64_t i = 0; i < n; ++i) {
    Timeline& timeline = sessions.emplace_back(std::make_unique<ByHand>(engine))->timeline();
    cache.reserve(timeline, n_tokens);
    cache.append(timeline, tokens);
  }
  RandomKeys random(cache.plan());
  const int64_t n_pages = pages_for(n_tokens);
  for (int64_t first = 0; first < n_pages; first += kPagesTogether) {
    const int64_t end = std::min(first + kPagesTogether, n_pages);
    std::vector<std::vector<uint8_t>> keys;
    for (int64_t i = first; i < end; ++i) keys.push_back(random.page());
    for (const std::unique_ptr<ByHand>& session : sessions) {
      std::vector<PoolPage> pages;
      for (int64_t i = first; i < end; ++i) pages.push_back(session->timeline().page(i));
      cache.publish(pages, keys);
    }
  }
  return sessions;
}

// The kind with scores wants a token for each byte; these, and the one that ends answers, come after the ids
// that the model can draw.
std::unique_ptr<Tokenizer> fabricate_tokenizer(int64_t n_vocab) {
  Vocabulary vocabulary;
  const auto add = [&](std::string name, TokenType type) {
    vocabulary.tokens.push_back(std::move(name));
    vocabulary.types.push_back(type);
    vocabulary.scores.push_back(0);
  };
  for (int64_t i = 0; i < n_vocab; ++i) add("\u2581" + std::to_string(i), TokenType::normal);
  for (int byte = 0; byte < 256; ++byte) add(format("<0x%02X>", byte), TokenType::byte);
  add("<unknown>", TokenType::unknown);
  vocabulary.model = "llama";
  vocabulary.bos_id = vocabulary.eos_id = static_cast<int32_t>(vocabulary.tokens.size()) - 1;
  return Tokenizer::make(std::move(vocabulary));
}

}  // namespace dsv32
