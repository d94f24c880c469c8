// 128K tokens of context: what the GPU has written and how it reads it, against the CPU.
//
// The CPU would need an hour for such a prompt. So the GPU prefills it; its rows and keys are copied into the
// CPU's cache; the last tokens then run on both.
#include <cmath>
#include <cstring>
#include <iterator>

#include "engine/loop.h"
#include "engine/sequence.h"
#include "model/forward.h"
#include "tests/gpu/gpu_test.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"
#include "tests/support/tiny_sequence.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(gpu_long_context, *boost::unit_test::precondition(needs_gpu))

namespace {

constexpr int64_t kContext = 131072, kTail = 72, kDecoded = 16;

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

EngineOptions options_of(const char* backend, KvType kv_type, int64_t topk_buffer) {
  EngineOptions options;
  options.backend = backend;
  options.kv_type = kv_type;
  options.context = kContext;
  options.topk_buffer = topk_buffer;
  return options;
}

// Runs tokens [begin, end) as one step, a single one as decode, and returns their logits, or those of the
// last.
std::vector<float> run_step(Engine& engine, CachedSequence& sequence, const std::vector<int32_t>& tokens,
                            int64_t begin, int64_t end, bool wants_all = true) {
  const Role role = end - begin == 1 ? Role::decode : Role::prefill;
  engine.forward().run(
      {role, {&sequence}, {tokens.begin() + begin, tokens.begin() + end}, wants_all ? end - begin : 1});
  return engine.forward().logits();
}

// Both caches gave their only sequence the pages 0, 1, 2, ... : the pools can be copied as they are.
void copy_cache(Engine& from, Engine& to, CachedSequence& target, const std::vector<int32_t>& tokens) {
  to.cache().reserve(target, kContext - kTail);
  to.cache().append(target, std::span(tokens).first(kContext - kTail));
  const CachePlan& plan = from.plan().cache;
  StageCache &ours = from.cache().stage(0), &theirs = to.cache().stage(0);
  for (int64_t layer = 0; layer < plan.n_layers; ++layer) {
    std::memcpy(theirs.rows().layer(layer), ours.rows().layer(layer),
                static_cast<size_t>(plan.n_pages() * kPageTokens * plan.layout.row_bytes()));
    from.backend().download(theirs.keys().layer(layer), ours.keys().layer(layer),
                            static_cast<size_t>(plan.n_pages() * plan.layout.key_page_bytes()));
  }
}

// The tail's logits: a prefill step, then single tokens.
std::vector<float> tail_logits(Engine& engine, CachedSequence& sequence, const std::vector<int32_t>& tokens) {
  std::vector<float> all = run_step(engine, sequence, tokens, kContext - kTail, kContext - kDecoded);
  for (int64_t pos = kContext - kDecoded; pos < kContext; ++pos) {
    const std::vector<float> row = run_step(engine, sequence, tokens, pos, pos + 1);
    all.insert(all.end(), row.begin(), row.end());
  }
  return all;
}

void prefill(Engine& engine, CachedSequence& sequence, const std::vector<int32_t>& tokens) {
  const int64_t chunk = engine.plan().chunk;
  for (int64_t begin = 0; begin < kContext - kTail; begin += chunk)
    run_step(engine, sequence, tokens, begin, std::min(begin + chunk, kContext - kTail), false);
}

Observer keep_selected(std::vector<int32_t>& all) {
  return [&all](const Observation& seen) {
    if (std::string(seen.name) == "selected") all.insert(all.end(), seen.ints.begin(), seen.ints.end());
  };
}

void append(std::vector<float>& all, const std::vector<float>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

ptrdiff_t likeliest(const std::vector<float>& logits, size_t begin, size_t width) {
  const auto row = logits.begin() + static_cast<ptrdiff_t>(begin);
  return std::max_element(row, row + static_cast<ptrdiff_t>(width)) - row;
}

// Both [n, topk], each row ascending: the share of one that is in the other, of the row where it is least.
double overlap(const std::vector<int32_t>& ours, const std::vector<int32_t>& others, int64_t topk) {
  BOOST_REQUIRE(ours.size() == others.size());
  double least = 1;
  for (auto a = ours.begin(), b = others.begin(); a != ours.end(); a += topk, b += topk) {
    std::vector<int32_t> both;
    std::set_intersection(a, a + topk, b, b + topk, std::back_inserter(both));
    least = std::min(least, static_cast<double>(both.size()) / static_cast<double>(topk));
  }
  return least;
}

}  // namespace

// With random weights attention is a mean of near noise, and one other row of 1024 moves it: so the CPU
// attends to the rows that the GPU selected, and what it would have selected itself is compared apart. Near
// ties fall either way.
BOOST_AUTO_TEST_CASE(the_last_tokens_of_128k_agree_with_the_cpu) {
  const TempDir dir;
  const std::string path = dir.file("long.gguf");
  write_long_model(path);
  const GgufFile file(path);
  const std::vector<int32_t> tokens = random_tokens(kContext, 5);
  for (const KvType kv_type : {KvType::fp8, KvType::bf16}) {
    Engine gpu(file, options_of("cuda", kv_type, kEveryRow)),
        cpu(file, options_of("cpu", kv_type, kEveryRow));
    const std::unique_ptr<CachedSequence> on_gpu = gpu.cache().open(), on_cpu = cpu.cache().open();
    prefill(gpu, *on_gpu, tokens);
    copy_cache(gpu, cpu, *on_cpu, tokens);
    const size_t width = static_cast<size_t>(gpu.args().vocab_size);
    std::vector<float> ours, expected;
    double least_overlap = 1, mean_overlap = 0;
    for (int64_t pos = kContext - kTail; pos < kContext - kTail + kDecoded; ++pos) {
      std::vector<int32_t> chosen, own;  // [n_layers, topk]
      gpu.forward().set_observer(keep_selected(chosen));
      append(ours, run_step(gpu, *on_gpu, tokens, pos, pos + 1));
      cpu.forward().set_observer(keep_selected(own));
      cpu.forward().set_forced(0, {chosen.data(), nullptr, 1});
      append(expected, run_step(cpu, *on_cpu, tokens, pos, pos + 1));
      const double shared = overlap(chosen, own, gpu.args().index_topk);
      least_overlap = std::min(least_overlap, shared), mean_overlap += shared / kDecoded;
    }
    cpu.forward().set_forced(0, {});
    double worst = 0, largest = 0;
    size_t n_same = 0;
    for (size_t i = 0; i < ours.size(); ++i) {
      const double difference = std::fabs(static_cast<double>(ours[i]) - static_cast<double>(expected[i]));
      worst = std::max(worst, std::isfinite(difference) ? difference : INFINITY);
      largest = std::max(largest, std::fabs(static_cast<double>(expected[i])));
    }
    for (size_t begin = 0; begin < ours.size(); begin += width)
      n_same += likeliest(ours, begin, width) == likeliest(expected, begin, width);
    std::printf(
        "kv type %d at 128K: logits differ by %.2g of the largest, %zu of %lld likeliest tokens equal, "
        "selections share %.2f %% (worst layer %.2f %%)\n",
        static_cast<int>(kv_type), worst / largest, n_same, static_cast<long long>(kDecoded),
        100 * mean_overlap, 100 * least_overlap);
    BOOST_TEST(worst <= 2e-2 * largest);
    BOOST_TEST(n_same == static_cast<size_t>(kDecoded));
    // The generic family rounds queries and weights to bf16, Hopper to fp16.
    BOOST_TEST(least_overlap >= (cuda::card().family == KernelFamily::hopper ? 0.97 : 0.96));
  }
}

// The same tokens as one prefill step and one by one: in the first layer, whose inputs are the same, both
// paths of the indexer select the same rows but for near ties.
BOOST_AUTO_TEST_CASE(prefill_selects_what_decode_selects_at_128k) {
  const TempDir dir;
  const std::string path = dir.file("long.gguf");
  write_long_model(path);
  const GgufFile file(path);
  const std::vector<int32_t> tokens = random_tokens(kContext, 5);
  Engine engine(file, options_of("cuda", KvType::fp8, kEveryRow));
  const std::unique_ptr<CachedSequence> sequence = engine.cache().open();
  prefill(engine, *sequence, tokens);
  std::vector<int32_t> at_once, singly;
  engine.forward().set_observer(keep_selected(at_once));
  run_step(engine, *sequence, tokens, kContext - kTail, kContext);
  engine.cache().truncate(*sequence, kContext - kTail);
  engine.forward().set_observer([&](const Observation& seen) {
    if (seen.layer == 0 && std::string(seen.name) == "selected")
      singly.insert(singly.end(), seen.ints.begin(), seen.ints.end());
  });
  for (int64_t pos = kContext - kTail; pos < kContext; ++pos)
    run_step(engine, *sequence, tokens, pos, pos + 1);
  at_once.resize(singly.size());  // the first layer's
  const double shared = overlap(at_once, singly, engine.args().index_topk);
  std::printf("prefill and decode select %.2f %% of the same rows at 128K, in the token where least\n",
              100 * shared);
  BOOST_TEST(shared >= 0.97);
}

// 128K tokens streamed through the windows, then decoded through a small buffer: the bits of full residency.
BOOST_AUTO_TEST_CASE(windows_and_buffers_change_no_bit_at_128k) {
  const TempDir dir;
  const std::string path = dir.file("long.gguf");
  write_long_model(path);
  const GgufFile file(path);
  const std::vector<int32_t> tokens = random_tokens(kContext, 5);
  std::vector<float> all[2];
  for (const int64_t n_rows : {kEveryRow, int64_t{2048}}) {
    Engine engine(file, options_of("cuda", KvType::fp8, n_rows));
    const std::unique_ptr<CachedSequence> sequence = engine.cache().open();
    prefill(engine, *sequence, tokens);
    all[n_rows != kEveryRow] = tail_logits(engine, *sequence, tokens);
    if (n_rows != kEveryRow) BOOST_TEST(engine.forward().buffer_tally().n_misses > 0);
  }
  BOOST_REQUIRE(all[0].size() == all[1].size());
  BOOST_TEST(std::memcmp(all[0].data(), all[1].data(), all[0].size() * sizeof(float)) == 0);
}

BOOST_AUTO_TEST_SUITE_END()
