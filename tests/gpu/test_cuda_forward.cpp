// The whole forward pass on the GPU: against the golden files, against the CPU on the tiny model, and the
// equalities.
#include <cstring>
#include <optional>
#include <span>
#include <string>

#include "cuda/cuda_backend.h"
#include "engine/generation.h"
#include "engine/session.h"
#include "tests/gpu/gpu_test.h"
#include "tests/support/golden.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"
#include "tests/support/tiny_session.h"

using namespace dsv32;

namespace {

struct Run {
  const char* backend = "cuda";
  KvType kv_type = KvType::fp8;
  int64_t chunk = 512;
  std::optional<int64_t> topk_buffer = {};
};

EngineOptions options_of(const Run& run, int64_t context) {
  EngineOptions options;
  options.backend = run.backend;
  options.kv_type = run.kv_type;
  options.chunk = run.chunk;
  options.topk_buffer = run.topk_buffer;
  options.context = context;
  return options;
}

std::vector<float> logits_of(const std::string& path, const Run& run, std::span<const int32_t> tokens,
                             Forward::BufferTally* tally = nullptr) {
  const GgufFile file(path);
  Engine engine(file, options_of(run, static_cast<int64_t>(tokens.size())));
  Session session(engine);
  std::vector<float> logits = session.all_logits(tokens);
  if (tally) *tally = engine.forward().buffer_tally();
  return logits;
}

const std::string& tiny_path() {
  static const TempDir dir;
  static const std::string path = [] {
    const std::string name = dir.file("tiny.gguf");
    write_tiny_model(name, {});
    return name;
  }();
  return path;
}

// A model that chooses neither rows nor experts.
void write_smooth_model(const std::string& path) {
  TinyModel shape;
  shape.index_topk = 4096;
  shape.n_routed_experts = shape.n_activated_experts = 4;
  shape.n_expert_groups = shape.n_limited_groups = 1;
  write_tiny_model(path, shape);
}

// Rows whose deviation from the other's is below 2e-2 of the largest logit, as a share.
double share_of_close_rows(const std::vector<float>& ours, const std::vector<float>& others, size_t n_rows) {
  const size_t width = ours.size() / n_rows;
  float largest = 0;
  for (const float x : others) largest = std::max(largest, std::fabs(x));
  size_t n_close = 0;
  for (size_t r = 0; r < n_rows; ++r) {
    float worst = 0;
    for (size_t i = r * width; i < (r + 1) * width; ++i) {
      const float difference = std::fabs(ours[i] - others[i]);
      worst = std::max(worst, std::isfinite(difference) ? difference : INFINITY);
    }
    n_close += worst <= 2e-2f * largest;
  }
  return static_cast<double>(n_close) / static_cast<double>(n_rows);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(gpu_forward, *boost::unit_test::precondition(needs_gpu))

// Random weights choose chaotically: one other row of top-k, or one other expert, and a logit is somewhere
// else. The golden tokens keep 1e-3 of distance from every such border, which decode's products respect;
// prefill rounds activations to fp16, so there a row may choose otherwise, and the others must agree.
BOOST_AUTO_TEST_CASE(unrounded_storage_agrees_with_the_golden_files) {
  int n_cases = 0;
  for (const char* name : {"small", "groups", "wide", "odd"})
    for (const int64_t chunk : {1, 512}) {
      if (is_left_out(n_cases, 7)) continue;
      const std::string stem = std::string("tests/golden/forward_") + name;
      const Golden golden(stem + ".bin");
      const std::vector<float> logits =
          logits_of(stem + ".gguf", {.kv_type = KvType::f32, .chunk = chunk}, golden.ints("tokens"));
      const auto width = static_cast<int64_t>(logits.size() / golden.ints("tokens").size());
      std::vector<float> kept;
      for (const int32_t pos : golden.ints("positions"))
        kept.insert(kept.end(), logits.begin() + pos * width, logits.begin() + (pos + 1) * width);
      const auto expected = golden.values("logits");
      const double close =
          share_of_close_rows(kept, {expected.begin(), expected.end()}, golden.ints("positions").size());
      std::printf("%s, chunk %lld: %.1f %% of the rows within 2e-2 of the largest logit\n", name,
                  static_cast<long long>(chunk), 100 * close);
      BOOST_TEST(close >= (chunk == 1 ? 1.0 : 0.9));
    }
}

// With nothing to choose (top-k as large as the context, every expert active) the two backends agree in every
// row.
BOOST_AUTO_TEST_CASE(a_model_without_choices_agrees_with_the_cpu) {
  const TempDir dir;
  const std::string path = dir.file("smooth.gguf");
  write_smooth_model(path);
  const std::vector<int32_t> tokens = random_tokens(300, 1);
  int n_cases = 0;
  for (const KvType kv_type : {KvType::fp8, KvType::bf16, KvType::f32}) {
    if (is_left_out(n_cases, 3)) continue;
    const std::vector<float> cpu = logits_of(path, {.backend = "cpu", .kv_type = kv_type}, tokens);
    for (const int64_t chunk : {1, 512}) {
      const std::vector<float> gpu = logits_of(path, {.kv_type = kv_type, .chunk = chunk}, tokens);
      const double close = share_of_close_rows(gpu, cpu, tokens.size());
      std::printf("smooth model, kv type %d, chunk %lld: %.1f %% of the rows within 2e-2, distance %.2g\n",
                  static_cast<int>(kv_type), static_cast<long long>(chunk), 100 * close,
                  relative_error(gpu, cpu));
      if (kv_type == KvType::fp8 && chunk > 1)
        BOOST_TEST(relative_error(gpu, cpu) < 0.03);
      else
        BOOST_TEST(close == 1.0);
    }
  }
}

// Token by token with nothing rounded: what the arg-max of random weights can bear.
BOOST_AUTO_TEST_CASE(greedy_text_equals_the_cpus) {
  const TempDir dir;
  const std::string path = dir.file("smooth.gguf");
  write_smooth_model(path);
  const GgufFile file(path);
  const std::unique_ptr<Tokenizer> tokenizer = Tokenizer::make(load_vocabulary(file));
  const auto text = [&](const char* backend, const char* prompt) {
    Engine engine(file, options_of({.backend = backend, .kv_type = KvType::f32, .chunk = 1}, 256));
    Session session(engine);
    GenerationOptions options;
    options.sampling.temperature = 0;
    options.max_tokens = 40;
    options.thinking = false;
    Listener silent;
    return generate(session, *tokenizer, tokenizer->encode(prompt, false), options, silent)
        .completion.content;
  };
  int n_cases = 0;
  for (const char* prompt : {"What is a latent row?", "one two three", "The key is"}) {
    if (is_left_out(n_cases, 3)) continue;
    const std::string expected = text("cpu", prompt);
    BOOST_TEST(!expected.empty());
    BOOST_TEST(text("cuda", prompt) == expected);
  }
}

// The tiny model chooses among near ties all the time: decode with nothing rounded keeps most rows, and the
// rest is printed.
BOOST_AUTO_TEST_CASE(the_tiny_model_stays_near_the_cpu) {
  const std::vector<int32_t> tokens = random_tokens(300, 1);
  int n_cases = 0;
  for (const KvType kv_type : {KvType::fp8, KvType::f32}) {
    if (is_left_out(n_cases, 2)) continue;
    const std::vector<float> cpu = logits_of(tiny_path(), {.backend = "cpu", .kv_type = kv_type}, tokens);
    for (const int64_t chunk : {1, 512}) {
      const double close = share_of_close_rows(
          logits_of(tiny_path(), {.kv_type = kv_type, .chunk = chunk}, tokens), cpu, tokens.size());
      std::printf(
          "tiny model, kv type %d, chunk %lld: %.1f %% of the rows within 2e-2 of the largest logit\n",
          static_cast<int>(kv_type), static_cast<long long>(chunk), 100 * close);
      if (kv_type == KvType::f32 && chunk == 1) BOOST_TEST(close >= 0.7);
    }
  }
}

// Rows streamed back through the windows are the rows that stayed: the same bits.
BOOST_AUTO_TEST_CASE(prefill_through_windows_equals_resident_prefill) {
  const std::vector<int32_t> tokens = random_tokens(300, 1);
  for (const int64_t chunk : {64, 100}) {
    const std::vector<float> resident = logits_of(tiny_path(), {.chunk = chunk}, tokens);
    const std::vector<float> streamed = logits_of(tiny_path(), {.chunk = chunk, .topk_buffer = 64}, tokens);
    BOOST_TEST(std::memcmp(resident.data(), streamed.data(), resident.size() * sizeof(float)) == 0);
  }
}

// Decode reads the same rows in the same order wherever they lie: the same bits.
BOOST_AUTO_TEST_CASE(any_topk_buffer_equals_full_residency_bit_for_bit) {
  const std::vector<int32_t> tokens = random_tokens(300, 1);
  int n_cases = 0;
  for (const KvType kv_type : {KvType::fp8, KvType::bf16}) {
    if (is_left_out(n_cases, 2)) continue;
    const std::vector<float> full = logits_of(tiny_path(), {.kv_type = kv_type, .chunk = 1}, tokens);
    for (const int64_t n_rows : {64, 65, 100, 256}) {
      Forward::BufferTally tally;
      const std::vector<float> buffered =
          logits_of(tiny_path(), {.kv_type = kv_type, .chunk = 1, .topk_buffer = n_rows}, tokens, &tally);
      BOOST_TEST(std::memcmp(full.data(), buffered.data(), full.size() * sizeof(float)) == 0,
                 "buffer of " << n_rows);
      BOOST_TEST(tally.n_rows > 0);
      if (n_rows <= 100) BOOST_TEST(tally.n_misses > 0);
    }
  }
}

BOOST_AUTO_TEST_CASE(the_same_run_gives_the_same_bits) {
  const std::vector<int32_t> tokens = random_tokens(200, 1);
  int n_cases = 0;
  for (const int64_t chunk : {1, 64, 512})
    if (!is_left_out(n_cases, 2))
      BOOST_TEST(logits_of(tiny_path(), {.chunk = chunk}, tokens) ==
                 logits_of(tiny_path(), {.chunk = chunk}, tokens));
}

BOOST_AUTO_TEST_SUITE_END()
