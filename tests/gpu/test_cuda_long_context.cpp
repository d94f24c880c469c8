// 128K tokens of context: what the GPU has written and how it reads it, against the CPU.
//
// The CPU would need an hour for such a prompt. So the GPU prefills it; its rows and keys are copied into the
// CPU's cache; the last tokens then run on both.
#include <cmath>
#include <cstring>

#include "engine/session.h"
#include "model/forward.h"
#include "tests/gpu/gpu_test.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

using namespace dsv32;

namespace {

constexpr int64_t kContext = 131072, kTail = 72, kDecoded = 8;

// No choice among experts; rows are chosen, 1024 of up to 128K.
void write_long_model(const std::string& path) {
  TinyModel shape;
  shape.n_layers = 3, shape.n_dense_layers = 1;
  shape.index_topk = 1024;
  shape.n_routed_experts = shape.n_activated_experts = 4;
  shape.n_expert_groups = shape.n_limited_groups = 1;
  shape.context_length = kContext;
  write_tiny_model(path, shape);
}

std::vector<int32_t> random_tokens(int64_t n) {
  Rng rng(5);
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < n; ++i) tokens.push_back(static_cast<int32_t>(rng.next() % 250));
  return tokens;
}

EngineOptions options_of(const char* backend, KvType kv_type, int64_t topk_buffer) {
  EngineOptions options;
  options.backend = backend;
  options.kv_type = kv_type;
  options.context = kContext;
  options.topk_buffer = topk_buffer;
  return options;
}

// Runs tokens [begin, end) as one step and returns all their logits.
std::vector<float> run_step(Engine& engine, Sequence& sequence, const std::vector<int32_t>& tokens,
                            int64_t begin, int64_t end) {
  Step step;
  step.tokens.assign(tokens.begin() + begin, tokens.begin() + end);
  for (int64_t pos = begin; pos < end; ++pos)
    step.pos.push_back(static_cast<int32_t>(pos)), step.seq.push_back(0);
  step.sequences = {&sequence};
  engine.cache().reserve(sequence, end);
  engine.forward().run(step);
  engine.cache().set_length(sequence, end);
  return engine.forward().logits();
}

// Both caches gave their only sequence the pages 0, 1, 2, ... : the pools can be copied as they are.
void copy_cache(Engine& from, Engine& to, Sequence& target) {
  to.cache().reserve(target, kContext - kTail);
  to.cache().set_length(target, kContext - kTail);
  const CachePlan& plan = from.plan().cache;
  const int64_t n_pages = plan.n_pages();
  for (int64_t layer = 0; layer < plan.n_layers; ++layer) {
    const CacheView source = from.cache().enter(layer), view = to.cache().enter(layer);
    std::memcpy(view.rows, source.rows, static_cast<size_t>(n_pages * kPageTokens * plan.layout.row_bytes()));
    from.backend().download(view.key_pages, source.key_pages,
                            static_cast<size_t>(n_pages * plan.layout.key_page_bytes()));
  }
}

// The tail's logits: a prefill step, then single tokens.
std::vector<float> tail_logits(Engine& engine, Sequence& sequence, const std::vector<int32_t>& tokens) {
  std::vector<float> all = run_step(engine, sequence, tokens, kContext - kTail, kContext - kDecoded);
  for (int64_t pos = kContext - kDecoded; pos < kContext; ++pos) {
    const std::vector<float> row = run_step(engine, sequence, tokens, pos, pos + 1);
    all.insert(all.end(), row.begin(), row.end());
  }
  return all;
}

void prefill(Engine& engine, Sequence& sequence, const std::vector<int32_t>& tokens) {
  const int64_t chunk = engine.forward().max_tokens();
  for (int64_t begin = 0; begin < kContext - kTail; begin += chunk) {
    const int64_t end = std::min(begin + chunk, kContext - kTail);
    Step step;
    step.tokens.assign(tokens.begin() + begin, tokens.begin() + end);
    for (int64_t pos = begin; pos < end; ++pos)
      step.pos.push_back(static_cast<int32_t>(pos)), step.seq.push_back(0);
    step.sequences = {&sequence};
    step.first_logits = step.n_tokens() - 1;
    engine.cache().reserve(sequence, end);
    engine.forward().run(step);
    engine.cache().set_length(sequence, end);
  }
  engine.backend().download(nullptr, nullptr, 0);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(gpu_long_context, *boost::unit_test::precondition(needs_gpu))

// A row's logits move when one of its 1024 rows is another near tie: the deviation is that of a few rows'
// share, and the likeliest token stays.
BOOST_AUTO_TEST_CASE(the_last_tokens_of_128k_agree_with_the_cpu) {
  const TempDir dir;
  const std::string path = dir.file("long.gguf");
  write_long_model(path);
  const GgufFile file(path);
  const std::vector<int32_t> tokens = random_tokens(kContext);
  for (const KvType kv_type : {KvType::fp8, KvType::bf16}) {
    Engine gpu(file, options_of("cuda", kv_type, kEveryRow)),
        cpu(file, options_of("cpu", kv_type, kEveryRow));
    const std::unique_ptr<Sequence> on_gpu = gpu.cache().open(), on_cpu = cpu.cache().open();
    prefill(gpu, *on_gpu, tokens);
    copy_cache(gpu, cpu, *on_cpu);
    const std::vector<float> ours = tail_logits(gpu, *on_gpu, tokens);
    const std::vector<float> expected = tail_logits(cpu, *on_cpu, tokens);
    const size_t width = static_cast<size_t>(gpu.args().vocab_size);
    BOOST_REQUIRE(ours.size() == expected.size());
    float largest = 0;
    for (const float x : expected) largest = std::max(largest, std::fabs(x));
    size_t n_close = 0, n_same = 0;
    double worst_of_all = 0;
    for (size_t begin = 0; begin < ours.size(); begin += width) {
      float worst = 0;
      for (size_t i = begin; i < begin + width; ++i) {
        const float difference = std::fabs(ours[i] - expected[i]);
        worst = std::max(worst, std::isfinite(difference) ? difference : INFINITY);
      }
      const auto likeliest = [&](const std::vector<float>& logits) {
        const auto row = logits.begin() + static_cast<ptrdiff_t>(begin);
        return std::max_element(row, row + static_cast<ptrdiff_t>(width)) - row;
      };
      n_close += worst <= 2e-2f * largest;
      n_same += likeliest(ours) == likeliest(expected);
      worst_of_all = std::max(worst_of_all, static_cast<double>(worst / largest));
    }
    std::printf(
        "kv type %d at 128K: %zu of %lld rows within 2e-2, %zu with the same likeliest token, worst %.2g\n",
        static_cast<int>(kv_type), n_close, static_cast<long long>(kTail), n_same, worst_of_all);
    BOOST_TEST(n_close == static_cast<size_t>(kTail));
    BOOST_TEST(n_same >= static_cast<size_t>(kTail) - 2);
  }
}

// 128K tokens streamed through the windows, then decoded through a small buffer: the bits of full residency.
BOOST_AUTO_TEST_CASE(windows_and_buffers_change_no_bit_at_128k) {
  const TempDir dir;
  const std::string path = dir.file("long.gguf");
  write_long_model(path);
  const GgufFile file(path);
  const std::vector<int32_t> tokens = random_tokens(kContext);
  std::vector<float> all[2];
  for (const int64_t n_rows : {kEveryRow, int64_t{2048}}) {
    Engine engine(file, options_of("cuda", KvType::fp8, n_rows));
    const std::unique_ptr<Sequence> sequence = engine.cache().open();
    prefill(engine, *sequence, tokens);
    all[n_rows != kEveryRow] = tail_logits(engine, *sequence, tokens);
    if (n_rows != kEveryRow) BOOST_TEST(engine.forward().buffer_tally().n_misses > 0);
  }
  BOOST_REQUIRE(all[0].size() == all[1].size());
  BOOST_TEST(std::memcmp(all[0].data(), all[1].data(), all[0].size() * sizeof(float)) == 0);
}

BOOST_AUTO_TEST_SUITE_END()
