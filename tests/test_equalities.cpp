// The equalities that make a cache trustworthy, on the CPU bit for bit: however tokens are cut into steps,
// prefilled or decoded, wherever rows are read from, however many threads work and whoever else is in the
// step, the logits are the same bits.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "backend/cpu_backend.h"
#include "base/error.h"
#include "engine/loop.h"
#include "tests/support/apart_backend.h"
#include "tests/support/company.h"
#include "tests/support/generate_by_hand.h"
#include "tests/support/same_bits.h"
#include "tests/support/sanitized.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"
#include "tests/support/tiny_sequence.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(equalities)

namespace {

constexpr int64_t kTokens = 150;  // well past the tiny model's top-k of 32

struct Tiny {
  TempDir dir;
  std::string path = dir.file("tiny.gguf");
  explicit Tiny(TinyModel shape = {}) {
    shape.n_layers = 3, shape.n_dense_layers = 1, shape.index_topk = 32;
    write_tiny_model(path, shape);
  }
};

const std::string& tiny_path() {
  static const Tiny tiny;
  return tiny.path;
}

struct Run {
  KvType kv_type = KvType::fp8;
  int64_t chunk = 512;
  bool decodes = false;  // every token is a decode step
  std::optional<int64_t> topk_buffer = {};
  int n_threads = 1;
  std::string path = {};
};

EngineOptions options_of(const Run& run) {
  EngineOptions options;
  options.kv_type = run.kv_type;
  options.chunk = run.chunk;
  options.topk_buffer = run.topk_buffer;
  options.n_threads = run.n_threads;
  options.context = 512;
  return options;
}

std::vector<float> logits_of(const Run& run, const std::vector<int32_t>& tokens,
                             Forward::BufferTally* tally = nullptr) {
  const GgufFile file(run.path.empty() ? tiny_path() : run.path);
  Engine engine(file, options_of(run));
  std::vector<float> logits = run_alone(engine, tokens, run.decodes ? 0 : std::ssize(tokens));
  if (tally) *tally = engine.forward().buffer_tally();
  return logits;
}

const std::vector<float>& whole(KvType kv_type) {
  static std::map<KvType, std::vector<float>> known;
  auto& logits = known[kv_type];
  if (logits.empty()) logits = logits_of({.kv_type = kv_type}, random_tokens(kTokens, 1));
  return logits;
}

const KvType kKvTypes[] = {KvType::fp8, KvType::bf16, KvType::f32};

void check_company(const Company& company) {
  const GgufFile file(tiny_path());
  ApartBackend backend(company.is_apart);
  const CompanyLogits together = run_together(backend, file, company);
  for (int64_t s = 0; s < company.n_seqs; ++s)
    BOOST_TEST(same_bits(together.of[static_cast<size_t>(s)], logits_of({}, company.tokens(s))),
               "sequence " << s << " of " << company.n_seqs << ", buffer of " << company.buffer_rows
                           << (company.is_apart ? ", memories apart" : ""));
  if (company.buffer_rows) BOOST_TEST(together.n_misses > 0);
}

}  // namespace

BOOST_AUTO_TEST_CASE(decode_one_by_one_and_any_chunk_equal_prefill_at_once) {
  for (const KvType kv_type : kKvTypes) {
    BOOST_TEST(same_bits(logits_of({.kv_type = kv_type, .decodes = true}, random_tokens(kTokens, 1)),
                         whole(kv_type)));
    for (const int64_t chunk : {1, 2, 7, 64, 149}) {
      if (kIsSanitized && chunk != 7 && chunk != 149) continue;
      BOOST_TEST(same_bits(logits_of({.kv_type = kv_type, .chunk = chunk}, random_tokens(kTokens, 1)),
                           whole(kv_type)),
                 "chunk " << chunk << ", kv type " << static_cast<int>(kv_type));
    }
  }
}

// Resident while the buffer holds them, then through the buffer: with a page of slots, and with two, which
// hold nearly all.
BOOST_AUTO_TEST_CASE(any_topk_buffer_equals_full_residency) {
  for (const KvType kv_type : kKvTypes)
    for (const int64_t n_rows : {32, 63, 64, 127}) {  // a page of slots, two
      if (kIsSanitized && n_rows != 32 && n_rows != 127) continue;
      Forward::BufferTally tally;
      const Run run{.kv_type = kv_type, .decodes = true, .topk_buffer = n_rows};
      BOOST_TEST(same_bits(logits_of(run, random_tokens(kTokens, 1), &tally), whole(kv_type)),
                 "buffer of " << n_rows);
      BOOST_TEST(tally.n_rows > 0);
      BOOST_TEST(tally.n_misses > 0);  // rows really left and came back
      BOOST_TEST(tally.n_misses < tally.n_rows);
    }
}

// Resident as long as its slots hold it: it grows out of them, is cut back, and gets fewer and more of them.
BOOST_AUTO_TEST_CASE(residency_comes_and_goes_with_a_sequences_length) {
  const std::vector<int32_t> tokens = random_tokens(kTokens, 1);
  const GgufFile file(tiny_path());
  Engine engine(file, options_of({.topk_buffer = 127}));
  ByHand sequence(engine);
  CachedSequence& cached = sequence.cached();
  const auto n_missed = [&] { return engine.forward().buffer_tally().n_misses; };
  // Decodes up to `end`, each step with the bits of full residency.
  const auto decode_to = [&](size_t end) {
    const std::vector<float>& expected = whole(KvType::fp8);
    const auto width = static_cast<size_t>(engine.args().vocab_size);
    for (size_t i = static_cast<size_t>(cached.n_tokens()); i < end; ++i) {
      sequence.step(tokens[i]);
      BOOST_TEST(std::memcmp(sequence.logits().data(), expected.data() + i * width, width * 4) == 0,
                 "token " << i);
    }
  };
  sequence.sync(std::span(tokens).first(100));
  decode_to(110);
  BOOST_TEST(cached.is_resident());
  engine.cache().set_most_slots(cached, 1);
  BOOST_TEST(!cached.is_resident());
  decode_to(115);
  BOOST_TEST(n_missed() > 0);
  engine.cache().set_most_slots(cached, 2);
  BOOST_TEST(cached.is_resident());
  const int64_t n_before = n_missed();
  decode_to(128);
  BOOST_TEST(n_missed() == n_before);
  decode_to(kTokens);
  BOOST_TEST(!cached.is_resident());
  BOOST_TEST(n_missed() > n_before);
  engine.cache().truncate(cached, 70);
  BOOST_TEST(cached.is_resident());
  decode_to(kTokens);
}

BOOST_AUTO_TEST_CASE(prefill_in_a_chunk_then_decode_through_the_buffer_equals_full_residency) {
  const std::vector<int32_t> tokens = random_tokens(kTokens, 1);
  const GgufFile file(tiny_path());
  Engine engine(file, options_of({.topk_buffer = 40}));
  ByHand sequence(engine);
  std::vector<float> logits = sequence.all_logits(std::span(tokens).first(100));
  for (size_t i = 100; i < tokens.size(); ++i) {
    sequence.step(tokens[i]);
    logits.insert(logits.end(), sequence.logits().begin(), sequence.logits().end());
  }
  BOOST_TEST(same_bits(logits, whole(KvType::fp8)));
  BOOST_TEST(engine.forward().buffer_tally().n_misses > 0);
}

// What the sequence holds already, of the same prompt or of another that begins like it, changes nothing: cut
// at random, once with a single token left.
BOOST_AUTO_TEST_CASE(a_held_beginning_changes_nothing) {
  const std::vector<int32_t> tokens = random_tokens(kTokens, 1), others = random_tokens(kTokens, 2);
  const std::vector<float>& expected = whole(KvType::fp8);
  const GgufFile file(tiny_path());
  Rng rng(3);
  for (const std::optional<int64_t> topk_buffer : {std::optional<int64_t>(), std::optional<int64_t>(40)}) {
    Engine engine(file, options_of({.chunk = 64, .topk_buffer = topk_buffer}));
    ByHand sequence(engine);
    for (size_t i = 0; i < 4; ++i) {
      const size_t n = i == 0 ? kTokens - 1 : 1 + rng.next() % (kTokens - 1);
      std::vector<int32_t> mixed(tokens.begin(), tokens.begin() + static_cast<int64_t>(n));
      mixed.insert(mixed.end(), others.begin(), others.begin() + static_cast<int64_t>(rng.next() % 20));
      sequence.sync(mixed);
      BOOST_TEST(sequence.sync(tokens) >= static_cast<int64_t>(n));
      BOOST_TEST(same_bits(sequence.logits(), {expected.end() - engine.args().vocab_size, expected.end()}),
                 n << " tokens held");
    }
  }
}

BOOST_AUTO_TEST_CASE(a_forgotten_tail_leaves_no_trace) {
  const std::vector<int32_t> tokens = random_tokens(kTokens, 1), others = random_tokens(kTokens, 2);
  std::vector<int32_t> mixed(tokens.begin(), tokens.begin() + 70);
  mixed.insert(mixed.end(), others.begin(), others.begin() + 60);
  const GgufFile file(tiny_path());
  Engine engine(file, options_of({.chunk = 16, .topk_buffer = 40}));
  ByHand sequence(engine);
  sequence.sync(mixed);
  for (int32_t i = 0; i < 10; ++i) sequence.step(i);
  BOOST_TEST(sequence.sync(tokens) == 70);
  const std::vector<float>& expected = whole(KvType::fp8);
  BOOST_TEST(same_bits(sequence.logits(), {expected.end() - engine.args().vocab_size, expected.end()}));
  BOOST_TEST(sequence.sync(tokens) == kTokens - 1);  // nothing new: the last token's logits again
  BOOST_TEST(same_bits(sequence.logits(), {expected.end() - engine.args().vocab_size, expected.end()}));
}

BOOST_AUTO_TEST_CASE(any_number_of_threads_equals_one) {
  const std::vector<float>& one = whole(KvType::fp8);
  for (const int n_threads : {2, 3, 5})
    BOOST_TEST(same_bits(logits_of({.n_threads = n_threads}, random_tokens(kTokens, 1)), one));
  BOOST_TEST(same_bits(
      logits_of({.decodes = true, .topk_buffer = 40, .n_threads = 3}, random_tokens(kTokens, 1)), one));
}

BOOST_AUTO_TEST_CASE(a_batch_equals_each_of_its_sequences_alone) {
  for (const int64_t buffer_rows : {0, 40})
    for (const bool is_apart : {false, true})
      if (!kIsSanitized) check_company({.buffer_rows = buffer_rows, .is_apart = is_apart});
  check_company(
      {.n_seqs = 8, .n_decoded = 10, .shortest = 1, .longest = 90, .buffer_rows = 40, .is_apart = true});
  // So many that their rows are fetched in two parts.
  if (!kIsSanitized)
    check_company(
        {.n_seqs = 50, .n_decoded = 4, .shortest = 20, .longest = 70, .buffer_rows = 40, .is_apart = true});
}

// The same seed gives the same tokens with the same log-probabilities, however the work is divided; another
// seed others.
BOOST_AUTO_TEST_CASE(a_generation_is_reproducible_by_its_seed) {
  const GgufFile file(tiny_path());
  const std::unique_ptr<Tokenizer> tokenizer = Tokenizer::make(load_vocabulary(file));
  const auto generated = [&](uint64_t seed, const Run& run) {
    Engine engine(file, options_of(run));
    ByHand sequence(engine);
    GenerationOptions options;
    options.sampling.seed = seed;
    options.max_tokens = 40;
    options.n_top_logprobs = 3;
    Listener silent;
    const GenerationResult result = generate(sequence, *tokenizer, random_tokens(50, 3), options, silent);
    std::vector<std::pair<int32_t, float>> records;
    for (const TokenRecord& record : result.logprobs) {
      records.emplace_back(record.chosen.id, record.chosen.logprob);
      for (const TokenLogprob& other : record.top) records.emplace_back(other.id, other.logprob);
    }
    return records;
  };
  const auto first = generated(0, {});
  BOOST_TEST(first.size() > 8u);
  BOOST_TEST((generated(0, {.chunk = 7, .topk_buffer = 40, .n_threads = 3}) == first));
  BOOST_TEST((generated(1, {}) != first));
}

// The indexer matters past top-k positions, and only there: with as large a top-k as the context the model is
// dense.
BOOST_AUTO_TEST_CASE(a_dense_file_equals_a_sparse_one_that_selects_everything) {
  TinyModel shape;
  const std::vector<int32_t> tokens = random_tokens(kTokens, 1);
  shape.replace_u32["deepseek32.attention.indexer.top_k"] = 4096;
  const Tiny everything(shape);
  shape.replace_u32.clear();
  shape.architecture = "deepseek2";
  for (uint32_t layer = 0; layer < shape.n_layers; ++layer)  // left out, so that all else stays as it is
    for (const char* part :
         {"k_norm.weight", "k_norm.bias", "proj.weight", "attn_k.weight", "attn_q_b.weight"})
      shape.without.insert("blk." + std::to_string(layer) + ".indexer." + part);
  const Tiny dense(shape);
  const std::vector<float> selects_all = logits_of({.path = everything.path}, tokens);
  BOOST_TEST(same_bits(logits_of({.path = dense.path}, tokens), selects_all));
  BOOST_TEST(same_bits(logits_of({.decodes = true, .path = dense.path}, tokens), selects_all));
  const auto n_same =
      static_cast<int64_t>(std::ranges::mismatch(selects_all, whole(KvType::fp8)).in1 - selects_all.begin());
  const int64_t vocab_size = static_cast<int64_t>(selects_all.size()) / kTokens;
  BOOST_TEST(n_same / vocab_size == 32);  // the first position that sees more than top-k
}

BOOST_AUTO_TEST_CASE(fused_gate_and_up_equal_two_tensors) {
  TinyModel shape;
  shape.only_types = {TensorType::q8_0};
  const Tiny split(shape);
  shape.fuse_gate_up = true;
  const Tiny fused(shape);
  const std::vector<int32_t> tokens = random_tokens(20, 1);
  const std::vector<float> logits = logits_of({.path = fused.path}, tokens);
  BOOST_TEST(logits.size() > 0u);
  BOOST_TEST(same_bits(logits, logits_of({.path = split.path}, tokens)));
}

BOOST_AUTO_TEST_SUITE_END()
