// Prefixes on disk with the GPU: rows and keys come back as they were, and what follows them is computed to
// the same bits as behind the rows that never left; with every row resident and with a small top-k buffer.
#include <cstring>

#include "cuda/cuda_backend.h"
#include "engine/loop.h"
#include "engine/sequence.h"
#include "tests/gpu/gpu_test.h"
#include "tests/support/disk_options.h"
#include "tests/support/generate_by_hand.h"
#include "tests/support/talk_on_disk.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"
#include "tests/support/tiny_sequence.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(gpu_prefix_cache, *boost::unit_test::precondition(needs_gpu))

namespace {

EngineOptions options_with_disk(const std::string& directory, std::optional<int64_t> topk_buffer) {
  EngineOptions options;
  options.backend = "cuda", options.topk_buffer = topk_buffer, options.context = 512;
  return with_disk(options, directory);
}

// A prompt of which whole pages are kept, and what the engine makes of it.
struct Prompt {
  int64_t n_pages;
  std::vector<int32_t> all = random_tokens(n_pages * kPageTokens + 40, 3);
  int64_t n_kept() const { return n_pages * kPageTokens; }
};

struct Computed {
  std::vector<uint8_t> kept;             // rows and keys of the whole pages
  std::vector<float> logits, next_step;  // behind the prompt, and behind one token more
};

Computed continue_with(TinySequence& tiny, std::vector<uint8_t> kept) {
  Computed computed{std::move(kept), tiny.sequence->logits(), {}};
  tiny.sequence->step(7);
  computed.next_step = tiny.sequence->logits();
  return computed;
}

Computed compute(TinySequence& tiny, const Prompt& prompt) {
  tiny.sequence->sync(prompt.all);
  return continue_with(tiny, remembered(*tiny.engine, *tiny.sequence, prompt.n_kept()));
}

// The sequence has the prompt.
void check_same(TinySequence& tiny, const Prompt& prompt, const Computed& expected) {
  const Computed restored = continue_with(tiny, remembered(*tiny.engine, *tiny.sequence, prompt.n_kept()));
  BOOST_TEST((restored.kept == expected.kept));
  BOOST_TEST((restored.logits == expected.logits));
  BOOST_TEST((restored.next_step == expected.next_step));
}

}  // namespace

BOOST_AUTO_TEST_CASE(restored_prefixes_are_those_that_were_computed) {
  const TempDir dir;
  const std::string path = dir.file("tiny.gguf");
  write_tiny_model(path, {});
  const Prompt prompt{.n_pages = 6};
  int n_cases = 0;
  for (const KvType kv_type : {KvType::fp8, KvType::bf16})
    for (const std::optional<int64_t> topk_buffer : {std::optional<int64_t>(), std::optional<int64_t>(64)}) {
      EngineOptions options = options_with_disk(dir.file("cache" + std::to_string(n_cases++)), topk_buffer);
      options.kv_type = kv_type;
      const Computed expected = [&] {
        TinySequence tiny(path, options);
        return compute(tiny, prompt);
      }();
      TinySequence tiny(path, options);
      BOOST_TEST(tiny.sequence->sync(prompt.all) == prompt.n_kept());
      check_same(tiny, prompt, expected);
      // A prompt that leaves the known one in the middle of a page, which memory has.
      std::vector<int32_t> other(prompt.all.begin(), prompt.all.begin() + 2 * kPageTokens + 9);
      other.push_back(251);
      BOOST_TEST(tiny.sequence->sync(other) == 2 * kPageTokens + 9);
    }
}

BOOST_AUTO_TEST_CASE(cold_and_cached_are_the_same_bits_at_random_places) {
  const TalkOnDisk talk{.make_backend = [] { return make_cuda_backend(0); }, .topk = 64};
  talk.check_random_places(60);
}

BOOST_AUTO_TEST_CASE(a_resumed_talk_goes_on_with_the_same_bits) {
  const TalkOnDisk talk{.make_backend = [] { return make_cuda_backend(0); }, .topk = 64};
  talk.check_resumed();
}

// The pages are on their way before the pool, of 1.7 GB, is pinned.
BOOST_AUTO_TEST_CASE(prefixes_come_while_the_pool_is_pinned, *boost::unit_test::label("large")) {
  const TempDir dir;
  const std::string path = dir.file("tiny.gguf");
  TinyModel shape;
  shape.context_length = 1 << 19;
  write_tiny_model(path, shape);
  const GgufFile file(path);
  const Prompt prompt{.n_pages = 40};
  EngineOptions options = options_with_disk(dir.file("cache"), {});
  options.context = 4096;
  const Computed expected = [&] {
    TinySequence tiny(path, options);
    return compute(tiny, prompt);
  }();
  options.context = 1 << 19;
  for (const std::optional<int64_t> topk_buffer : {std::optional<int64_t>(), std::optional<int64_t>(64)}) {
    options.topk_buffer = topk_buffer;
    Engine engine(file, options, [&](PrefixCache& prefixes) { prefixes.prefetch(prompt.all); });
    ByHand sequence(engine);
    BOOST_TEST(sequence.sync(prompt.all) == prompt.n_kept());
    BOOST_TEST((remembered(engine, sequence, prompt.n_kept()) == expected.kept));
    BOOST_TEST((sequence.logits() == expected.logits));
  }
}

BOOST_AUTO_TEST_CASE(greedy_answers_are_the_same_from_disk) {
  const TempDir dir;
  const std::string path = dir.file("tiny.gguf");
  write_tiny_model(path, {});
  const GgufFile file(path);
  const std::unique_ptr<Tokenizer> tokenizer = Tokenizer::make(load_vocabulary(file));
  std::string text(600, 'x');
  text += " what is a row?";
  const std::vector<int32_t> prompt = tokenizer->encode(text, false);
  EngineOptions options = options_with_disk(dir.file("cache"), {});
  options.context = 1024;
  options.cache->write = WritePolicy::write_back;
  const auto answer = [&](int64_t& n_cached) {
    Engine engine(file, options);
    ByHand sequence(engine);
    GenerationOptions generation;
    generation.sampling.temperature = 0;
    generation.max_tokens = 256;
    generation.thinking = false;
    Listener silent;
    const GenerationResult result = generate(sequence, *tokenizer, prompt, generation, silent);
    n_cached = result.n_cached_tokens;
    return result.completion.content;
  };
  int64_t n_cached = 0;
  const std::string cold = answer(n_cached), warm = answer(n_cached);
  BOOST_TEST(!cold.empty());
  BOOST_TEST(cold == warm);
  BOOST_TEST(n_cached >= std::ssize(prompt) / kPageTokens * kPageTokens);
}

BOOST_AUTO_TEST_SUITE_END()
