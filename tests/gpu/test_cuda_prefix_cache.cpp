// Prefixes on disk with the GPU: rows and keys come back as they were, and what follows them is computed to
// the same bits as behind the rows that never left; with every row resident and with a small top-k buffer.
#include <cstring>

#include "engine/generation.h"
#include "engine/session.h"
#include "tests/gpu/gpu_test.h"
#include "tests/support/slab_gate.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

using namespace dsv32;

namespace {

std::vector<int32_t> random_tokens(int64_t n) {
  Rng rng(3);
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < n; ++i) tokens.push_back(static_cast<int32_t>(rng.next() % 250));
  return tokens;
}

// The sequence's rows in the host pool and its key pages, page by page.
std::vector<uint8_t> remembered(Engine& engine, const Session& session, int64_t n_pages) {
  LatentCache& cache = engine.cache();
  std::vector<PoolPage> pages;
  for (int64_t i = 0; i < n_pages; ++i) pages.push_back(cache.page(session.sequence(), i));
  std::vector<uint8_t> bytes;
  for (const std::vector<uint8_t>& keys : cache.download_keys(pages))
    bytes.insert(bytes.end(), keys.begin(), keys.end());
  const int64_t n = kPageTokens * cache.plan().layout.row_bytes();
  for (const PoolPage& page : pages)
    for (int64_t layer = 0; layer < cache.plan().n_layers; ++layer)
      bytes.insert(bytes.end(), cache.page_rows(page, layer), cache.page_rows(page, layer) + n);
  return bytes;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(gpu_prefix_cache, *boost::unit_test::precondition(needs_gpu))

BOOST_AUTO_TEST_CASE(restored_prefixes_are_those_that_were_computed) {
  const TempDir dir;
  const std::string path = dir.file("tiny.gguf");
  write_tiny_model(path, {});
  const GgufFile file(path);
  constexpr int64_t kPages = 6;
  const std::vector<int32_t> all = random_tokens(kPages * kPageTokens + 40);
  const auto prefix = std::span(all).first(kPages * kPageTokens);
  int n_cases = 0;
  for (const KvType kv_type : {KvType::fp8, KvType::bf16})
    for (const std::optional<int64_t> topk_buffer : {std::optional<int64_t>(), std::optional<int64_t>(64)}) {
      EngineOptions options;
      options.backend = "cuda", options.kv_type = kv_type, options.topk_buffer = topk_buffer;
      options.context = 512;
      options.cache.emplace();
      options.cache->directory = dir.file("cache" + std::to_string(n_cases++));
      options.cache->prefetch = PrefetchPolicy::wait_complete;
      options.cache->least_tokens = 1;
      std::vector<float> expected, steps;
      std::vector<uint8_t> bytes;
      {
        Engine engine(file, options);
        Session session(engine);
        session.sync(prefix);
        bytes = remembered(engine, session, kPages);
        session.sync(all);
        expected = session.logits();
        session.step(7);
        steps = session.logits();
      }
      Engine engine(file, options);
      Session session(engine);
      BOOST_TEST(session.sync(all) == kPages * kPageTokens);
      BOOST_TEST((remembered(engine, session, kPages) == bytes));
      BOOST_TEST((session.logits() == expected));
      session.step(7);
      BOOST_TEST((session.logits() == steps));
      // A prompt that leaves the known one in the middle of a page.
      std::vector<int32_t> other(all.begin(), all.begin() + 2 * kPageTokens + 9);
      other.push_back(251);
      BOOST_TEST(session.sync(other) == 2 * kPageTokens + 9);
    }
}

// Each layer's slab is given out when the step has come to that layer: with rows mirrored on the device, and
// streamed through windows.
BOOST_AUTO_TEST_CASE(prefixes_come_layer_by_layer) {
  const TempDir dir;
  const std::string path = dir.file("tiny.gguf");
  write_tiny_model(path, {});
  const GgufFile file(path);
  constexpr int64_t kPages = 4;
  const std::vector<int32_t> all = random_tokens(kPages * kPageTokens + 40);
  const auto prefix = std::span(all).first(kPages * kPageTokens);
  for (const std::optional<int64_t> topk_buffer : {std::optional<int64_t>(), std::optional<int64_t>(64)}) {
    EngineOptions options;
    options.backend = "cuda", options.topk_buffer = topk_buffer, options.context = 512;
    options.cache.emplace();
    options.cache->directory = dir.file(topk_buffer ? "buffer" : "resident");
    options.cache->prefetch = PrefetchPolicy::wait_complete;
    options.cache->least_tokens = 1, options.cache->layers_per_slab = 1;
    options.cache->write = WritePolicy::write_back;
    std::vector<float> expected, steps;
    std::vector<uint8_t> bytes;
    SegmentInfo segment;
    {
      Engine engine(file, options);
      const CachePlan& plan = engine.cache().plan();
      segment.n_pages = kPages, segment.n_layers = plan.n_layers, segment.layers_per_slab = 1;
      segment.rows_page_bytes = kPageTokens * plan.layout.row_bytes();
      segment.keys_page_bytes = plan.layout.key_page_bytes();
      Session session(engine);
      session.sync(prefix);
      bytes = remembered(engine, session, kPages);
      session.sync(all);
      expected = session.logits();
      session.step(7);
      steps = session.logits();
    }
    SlabGate gate(segment);
    options.cache->files = &gate;
    Engine engine(file, options);
    Session session(engine);
    int64_t n_too_early = 0;
    engine.forward().set_observer([&](const Observation& seen) {
      n_too_early += gate.n_given_out() > seen.layer + 2;
      gate.open(seen.layer + 2);  // windows are filled a layer ahead
    });
    BOOST_TEST(session.sync(all) == kPages * kPageTokens);
    engine.forward().set_observer({});
    BOOST_TEST(n_too_early == 0);
    BOOST_TEST((session.logits() == expected));
    BOOST_TEST((remembered(engine, session, kPages) == bytes));
    session.step(7);
    BOOST_TEST((session.logits() == steps));
  }
}

BOOST_AUTO_TEST_CASE(greedy_answers_are_the_same_from_disk) {
  const TempDir dir;
  const std::string path = dir.file("tiny.gguf");
  write_tiny_model(path, {});
  const GgufFile file(path);
  const std::unique_ptr<Tokenizer> tokenizer = Tokenizer::make(load_vocabulary(file));
  const std::vector<int32_t> prompt = tokenizer->encode(std::string(600, 'x') + " what is a row?", false);
  const auto whole = std::span(prompt).first(prompt.size() / kPageTokens * kPageTokens);
  EngineOptions options;
  options.backend = "cuda", options.context = 1024;
  options.cache.emplace();
  options.cache->directory = dir.file("cache");
  options.cache->prefetch = PrefetchPolicy::wait_complete;
  options.cache->least_tokens = 1;
  options.cache->write = WritePolicy::write_back;
  const auto answer = [&](bool is_first, int64_t& n_cached) {
    Engine engine(file, options);
    Session session(engine);
    if (is_first) session.sync(whole);  // so that both compute the same rest in one step
    GenerationOptions generation;
    generation.sampling.temperature = 0;
    generation.max_tokens = 256;
    generation.thinking = false;
    Listener silent;
    const GenerationResult result = generate(session, *tokenizer, prompt, generation, silent);
    n_cached = result.n_cached_tokens;
    return result.completion.content;
  };
  int64_t n_cached = 0;
  const std::string cold = answer(true, n_cached), warm = answer(false, n_cached);
  BOOST_TEST(!cold.empty());
  BOOST_TEST(cold == warm);
  BOOST_TEST(n_cached >= std::ssize(whole));
}

BOOST_AUTO_TEST_SUITE_END()
