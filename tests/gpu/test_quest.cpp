// Quest on the GPU: bounds are the CPU's bytes, scores are near the CPU's, spans are selected exactly; and in
// the whole forward pass the bits of a token depend on its sequence and role alone.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <optional>
#include <vector>

#include "backend/cpu_backend.h"
#include "cuda/cuda_backend.h"
#include "cuda/kernels.h"
#include "tests/gpu/gpu_test.h"
#include "tests/gpu/twin_cache.h"
#include "tests/support/company.h"
#include "tests/support/same_bits.h"
#include "tests/support/talk_on_disk.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(gpu_quest, *boost::unit_test::precondition(needs_gpu))

namespace {

constexpr int64_t kTopk = 48, kRank = 512, kRope = 64;

const GgufFile& tiny_file() {
  static const TempDir dir;
  static const GgufFile file = [] {
    TinyModel shape;
    shape.architecture = "deepseek2", shape.has_indexer = false, shape.has_mtp = false;
    shape.n_layers = 3, shape.n_dense_layers = 1, shape.n_heads = 40;
    write_tiny_model(dir.file("tiny.gguf"), shape);
    return GgufFile(dir.file("tiny.gguf"));
  }();
  return file;
}

EngineOptions quest_options(std::optional<int64_t> topk_buffer = {}, KvType kv_type = KvType::fp8) {
  EngineOptions options;
  options.backend = "cuda", options.kv_type = kv_type, options.topk_buffer = topk_buffer;
  options.select = SelectPolicy::quest, options.quest_rows = kTopk, options.context = 512;
  return options;
}

std::vector<float> logits_of(const EngineOptions& options, Forward::BufferTally* tally = nullptr) {
  Engine engine(tiny_file(), options);
  std::vector<float> logits = run_alone(engine, random_tokens(300, 1), 200);
  if (tally) *tally = engine.forward().buffer_tally();
  return logits;
}

// Random rows as they are stored, on both sides, and the bounds that each side computes of them.
struct Bounded {
  static constexpr int64_t kTokens = 700;
  TwinCache cache;
  std::vector<int32_t> pos, seq;
  DeviceArray<int32_t> d_pos, d_seq;

  Bounded(TestLaunch& gpu, KvType kv_type)
      : cache({kv_type, kRank, kRope, 0, true}, 0),
        pos(positions()),
        seq(kTokens, 1),
        d_pos(pos),
        d_seq(seq) {
    Rng rng(1);
    std::vector<float> frequencies(kRope / 2, 0.01f), qr(kTokens * 8, 1), q_norm(8, 1), kv_norm(kRank, 1), kv,
        c(kTokens * kRank);
    for (int64_t i = 0; i < kTokens * (kRank + kRope); ++i) kv.push_back(rng.unit() * (i % 7 == 0 ? 5 : 1));
    StoreTokens op{step(), cache.host(), frequencies.data(), 1e-6f};
    op.qr = qr.data(), op.q_norm = q_norm.data(), op.q_lora_rank = 8;
    op.kv = kv.data(), op.kv_norm = kv_norm.data(), op.c = c.data();
    CpuBackend(1).store_tokens(op);
    cache.d_rows.fill(cache.rows);
    std::vector<uint8_t> without = cache.keys;  // the scales, but not the bounds
    const CacheLayout& layout = cache.layout;
    for (int64_t page = 0; page < cache.n_pages; ++page)
      std::fill_n(without.begin() + page * layout.key_page_bytes() + layout.bounds_offset(),
                  layout.key_page_bytes() - layout.bounds_offset(), uint8_t{0});
    cache.d_keys.fill(without);
    StepTokens on_device = step();
    on_device.pos = d_pos.data(), on_device.seq = d_seq.data();
    cuda::store_bounds(on_device, cache.device(), gpu.launch());
  }
  StepTokens step() const {
    return {kTokens, 2, kTokens - 1, nullptr, pos.data(), seq.data(), Role::prefill};
  }
  static std::vector<int32_t> positions() {
    std::vector<int32_t> all(kTokens);
    std::iota(all.begin(), all.end(), 0);
    return all;
  }
};

}  // namespace

BOOST_AUTO_TEST_CASE(bounds_are_those_of_the_cpu) {
  TestLaunch gpu;
  for (const KvType kv_type : {KvType::fp8, KvType::bf16, KvType::f32}) {
    const Bounded bounded(gpu, kv_type);
    BOOST_TEST((bounded.cache.d_keys.values() == bounded.cache.keys),
               "kv type " << static_cast<int>(kv_type));
  }
}

// Also with heads that do not fill a block, and alone as among others.
BOOST_AUTO_TEST_CASE(scores_are_near_those_of_the_cpu) {
  TestLaunch gpu;
  const Bounded bounded(gpu, KvType::fp8);
  const std::vector<int32_t> pos{699, 300, 16, 15, 563}, seq(pos.size(), 1);
  const auto n_tokens = std::ssize(pos);
  for (const int64_t n_heads : {128, 40, 5}) {
    const int64_t head_dim = 192, stride = 44;
    Rng rng(2);
    std::vector<float> q_c(static_cast<size_t>(n_tokens * n_heads * kRank)),
        q(static_cast<size_t>(n_tokens * n_heads * head_dim)),
        bounds(static_cast<size_t>(n_tokens * n_heads * stride)),
        scores(static_cast<size_t>(n_tokens * stride));
    for (float& value : q_c) value = rng.unit();
    for (float& value : q) value = rng.unit();
    QuestScores op{{n_tokens, 2, 699, nullptr, pos.data(), seq.data(), Role::decode},
                   bounded.cache.host(),
                   n_heads,
                   q_c.data(),
                   q.data() + head_dim - kRope,
                   n_heads * head_dim,
                   head_dim,
                   0.02f,
                   bounds.data(),
                   scores.data(),
                   stride};
    CpuBackend(1).quest_scores(op);
    const DeviceArray<float> d_q_c(q_c), d_q(q), d_bounds(bounds.size()), d_scores(scores.size());
    const DeviceArray<int32_t> d_pos(pos), d_seq(seq);
    op.step.pos = d_pos.data(), op.step.seq = d_seq.data(), op.cache = bounded.cache.device();
    op.q_c = d_q_c.data(), op.q_pe = d_q.data() + head_dim - kRope;
    op.bounds = d_bounds.data(), op.scores = d_scores.data();
    cuda::quest_scores(op, gpu.launch());
    const std::vector<float> found = d_scores.values();
    double worst = 0;
    for (size_t t = 0; t < pos.size(); ++t)
      for (int64_t p = 0; p < pos[t] / kSpanTokens; ++p) {
        const auto at = static_cast<size_t>(static_cast<int64_t>(t) * stride + p);
        worst = std::max(worst, std::fabs(static_cast<double>(found[at]) - scores[at]) / scores[at]);
      }
    std::printf("quest_scores, %d heads: largest relative error %.2e\n", static_cast<int>(n_heads), worst);
    BOOST_TEST(worst < 3e-2);  // queries are rounded to bf16
    op.step.n_tokens = 1, op.step.pos = d_pos.data() + 4, op.step.seq = d_seq.data();
    op.step.max_pos = 4095, op.scores_stride = 256;
    const DeviceArray<float> more_bounds(static_cast<size_t>(n_heads * 256)), more_scores(256);
    op.q_c += 4 * n_heads * kRank, op.q_pe += 4 * n_heads * head_dim;
    op.bounds = more_bounds.data(), op.scores = more_scores.data();
    cuda::quest_scores(op, gpu.launch());
    const std::vector<float> alone = more_scores.values();
    BOOST_TEST(std::memcmp(alone.data(), found.data() + 4 * stride, 35 * sizeof(float)) == 0);
  }
}

BOOST_AUTO_TEST_CASE(selected_spans_are_those_of_the_cpu) {
  TestLaunch gpu;
  CpuBackend cpu(1);
  for (const auto& [topk, longest] : {std::pair<int64_t, int64_t>{48, 600}, {2048, 200'000}}) {
    Rng rng(3);
    std::vector<int32_t> pos{5, 47, 48, 63, 64, 511};
    for (int i = 0; i < 6; ++i)
      pos.push_back(static_cast<int32_t>(rng.next() % static_cast<uint64_t>(longest)));
    const auto n = pos.size();
    const int64_t stride = (longest / kSpanTokens + 4) / 4 * 4;
    std::vector<float> scores(n * static_cast<size_t>(stride));
    for (float& score : scores) score = std::floor(rng.unit() * 300);  // with ties
    std::vector<int32_t> seq(n), selected(n * static_cast<size_t>(topk)), counts(n);
    const StepTokens step{std::ssize(pos), 1, longest, nullptr, pos.data(), seq.data(), Role::decode};
    cpu.select_topk({step, scores.data(), stride, topk, selected.data(), counts.data(), 0, kSpanTokens});
    const DeviceArray<float> d_scores(scores);
    const DeviceArray<int32_t> d_pos(pos), d_selected(selected.size()), d_counts(n);
    StepTokens on_device = step;
    on_device.pos = d_pos.data();
    cuda::select_topk(
        {on_device, d_scores.data(), stride, topk, d_selected.data(), d_counts.data(), 0, kSpanTokens},
        gpu.launch());
    BOOST_TEST(d_counts.values() == counts);
    const std::vector<int32_t> found = d_selected.values();
    for (size_t t = 0; t < n; ++t) {
      const auto first = static_cast<int64_t>(t) * topk;
      BOOST_TEST(
          std::equal(selected.begin() + first, selected.begin() + first + counts[t], found.begin() + first),
          "at " << pos[t]);
    }
  }
}

BOOST_AUTO_TEST_CASE(any_buffer_equals_full_residency) {
  for (const KvType kv_type : {KvType::fp8, KvType::bf16}) {
    const std::vector<float> expected = logits_of(quest_options(kEveryRow, kv_type));
    for (const int64_t n_rows : {kTopk, int64_t{127}}) {
      Forward::BufferTally tally;
      BOOST_TEST(same_bits(logits_of(quest_options(n_rows, kv_type), &tally), expected),
                 "buffer of " << n_rows);
      BOOST_TEST(tally.n_misses > 0);
    }
  }
}

BOOST_AUTO_TEST_CASE(company_changes_no_bit) {
  for (const int64_t n_rows : {int64_t{0}, kTopk}) {
    const Company company{.buffer_rows = n_rows, .is_apart = true, .quest_topk = kTopk};
    const std::shared_ptr<Backend> backend = make_cuda_backend(0);
    const CompanyLogits together = run_together(*backend, tiny_file(), company);
    for (int64_t s = 0; s < company.n_seqs; ++s) {
      Engine engine(tiny_file(), quest_options());
      BOOST_TEST(same_bits(together.of[static_cast<size_t>(s)],
                           run_alone(engine, company.tokens(s), company.n_prompt(s))),
                 "sequence " << s << ", buffer of " << n_rows);
    }
  }
}

BOOST_AUTO_TEST_CASE(prefixes_on_disk_have_their_bounds) {
  TalkOnDisk talk{.make_backend = [] { return make_cuda_backend(0); }};
  talk.options = quest_options();
  talk.options.quest_rows = 32;
  talk.check_resumed();
  talk.check_random_places(4);
}

// What a layer's scores and selection take at 32K and 128K.
BOOST_AUTO_TEST_CASE(times, *boost::unit_test::precondition(needs_gpu)) {
  TestLaunch gpu;
  for (const int64_t n_visible : {32768, 131072}) {
    const int64_t n_heads = 128, n_pages = n_visible / kPageTokens, stride = n_visible / kSpanTokens + 4;
    const CacheLayout layout{KvType::fp8, kRank, kRope, 0, true};
    std::vector<int32_t> table(static_cast<size_t>(n_pages));
    std::iota(table.begin(), table.end(), 0);
    const std::vector<int32_t> pos{static_cast<int32_t>(n_visible - 1)}, seq{0};
    const DeviceArray<int32_t> d_table(table), d_pos(pos), d_seq(seq), selected(2048), n_selected(1);
    const DeviceArray<uint8_t> keys(
        std::vector<uint8_t>(static_cast<size_t>(n_pages * layout.key_page_bytes())));
    const DeviceArray<float> q_c(std::vector<float>(static_cast<size_t>(n_heads * kRank), 1)),
        q(std::vector<float>(static_cast<size_t>(n_heads * 192), 1)),
        bounds(static_cast<size_t>(n_heads * stride)), scores(static_cast<size_t>(stride));
    CacheView cache;
    cache.layout = layout, cache.key_pages = keys.data(), cache.pages = d_table.data();
    cache.max_pages = n_pages;
    const StepTokens step{1, 1, n_visible - 1, nullptr, d_pos.data(), d_seq.data(), Role::decode};
    const double of_scores = gpu.seconds([&] {
      cuda::quest_scores({step, cache, n_heads, q_c.data(), q.data() + 128, n_heads * 192, 192, 0.02f,
                          bounds.data(), scores.data(), stride},
                         gpu.launch());
    });
    const double of_topk = gpu.seconds([&] {
      cuda::select_topk(
          {step, scores.data(), stride, 2048, selected.data(), n_selected.data(), 0, kSpanTokens},
          gpu.launch());
    });
    std::printf("quest at %d: scores %.1f us, selection %.1f us\n", static_cast<int>(n_visible),
                of_scores * 1e6, of_topk * 1e6);
  }
}

BOOST_AUTO_TEST_SUITE_END()
