// Quest on the CPU: bounds are those of the rows as they are stored, scores follow the formula, the best
// spans are selected; and decode has the same bits in company, from buffers, after a resumed talk and from
// disk.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstring>
#include <numeric>
#include <optional>
#include <vector>

#include "backend/cpu_backend.h"
#include "backend/cpu_common.h"
#include "base/error.h"
#include "engine/compare.h"
#include "tests/support/apart_backend.h"
#include "tests/support/company.h"
#include "tests/support/same_bits.h"
#include "tests/support/sanitized.h"
#include "tests/support/talk_on_disk.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"
#include "tests/support/tiny_sequence.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(quest)

namespace {

constexpr int64_t kTopk = 48, kTokens = 200;

// In [-1, 1].
float some_value(Rng& rng) { return static_cast<float>(rng.next() % 2001) / 1000 - 1; }

// A sequence's pages of rows and keys, in reverse order, and what a step needs.
struct Scene {
  static constexpr int64_t kPages = 3, kRank = 80, kRope = 16, kHeads = 5, kQRank = 8;
  CacheLayout layout;
  std::vector<uint8_t> rows, keys;
  std::vector<int32_t> pages{2, 1, 0}, tokens, pos, seq;
  CpuBackend backend{1};

  explicit Scene(KvType kv_type) : layout{kv_type, kRank, kRope, 0, true} {
    rows.resize(static_cast<size_t>(kPages * kPageTokens * layout.row_bytes()));
    keys.resize(static_cast<size_t>(kPages * layout.key_page_bytes()));
  }
  CacheView cache() {
    CacheView view;
    view.layout = layout, view.rows = view.slots = rows.data(), view.key_pages = keys.data();
    view.pages = view.slot_pages = pages.data(), view.max_pages = kPages;
    return view;
  }
  StepTokens step(int64_t first, int64_t n) {
    pos.resize(static_cast<size_t>(n)), seq.assign(static_cast<size_t>(n), 0);
    std::iota(pos.begin(), pos.end(), static_cast<int32_t>(first));
    return {n, 1, first + n - 1, seq.data(), pos.data(), seq.data(), Role::prefill};
  }
  // Stores random tokens at positions [first, first + n).
  void store(int64_t first, int64_t n, Rng& rng) {
    std::vector<float> frequencies(kRope / 2, 0.01f), qr(static_cast<size_t>(n * kQRank), 1),
        q_norm(kQRank, 1), kv, kv_norm(kRank, 1), c(static_cast<size_t>(n * kRank));
    for (int64_t i = 0; i < n * (kRank + kRope); ++i) kv.push_back(some_value(rng) * (i % 7 == 0 ? 5 : 1));
    StoreTokens op{step(first, n), cache(), frequencies.data(), 1e-6f};
    op.qr = qr.data(), op.q_norm = q_norm.data(), op.q_lora_rank = kQRank;
    op.kv = kv.data(), op.kv_norm = kv_norm.data(), op.c = c.data();
    backend.store_tokens(op);
  }
  std::vector<float> row(int64_t at) {
    std::vector<float> padded_row(static_cast<size_t>(padded(kRank) + padded(kRope))), row;
    decode_row(layout, rows.data() + row_number(pages.data(), cache(), 0, at) * layout.row_bytes(),
               key_entry(cache(), 0, at).scales, padded_row.data());
    row.assign(padded_row.begin(), padded_row.begin() + kRank);
    row.insert(row.end(), padded_row.begin() + padded(kRank), padded_row.begin() + padded(kRank) + kRope);
    return row;
  }
  const uint8_t* bounds(int64_t span) const {
    const int64_t first = span * kSpanTokens;
    return keys.data() + pages[static_cast<size_t>(first / kPageTokens)] * layout.key_page_bytes() +
           layout.bounds_offset() + first % kPageTokens / kSpanTokens * layout.span_bytes();
  }
  // Bound i of a span, by the layout's description; side 0: the largest.
  float bound(int64_t span, int64_t side, int64_t i) const {
    const int64_t at = side * layout.row_values() + i;
    const uint8_t* of_span = bounds(span);
    float step;
    std::memcpy(&step, of_span + layout.steps_offset() + (i < kRank ? i / 64 : (kRank + 63) / 64) * 4,
                sizeof step);
    return step * static_cast<float>((at % 2 ? of_span[at / 2] >> 4 : of_span[at / 2] & 15) - 8);
  }
};

EngineOptions quest_options(std::optional<int64_t> topk_buffer = {}, int64_t topk = kTopk) {
  EngineOptions options;
  options.select = SelectPolicy::quest, options.quest_rows = topk, options.topk_buffer = topk_buffer;
  options.context = 512, options.n_threads = 1;
  return options;
}

const GgufFile& tiny_file(bool has_indexer = false) {
  struct Tiny {
    TempDir dir;
    std::optional<GgufFile> file;
    explicit Tiny(bool indexed) {
      TinyModel shape;
      shape.n_layers = 2, shape.n_dense_layers = 1, shape.has_indexer = indexed, shape.index_topk = 32;
      if (!indexed) shape.architecture = "deepseek2", shape.has_mtp = false;
      write_tiny_model(dir.file("tiny.gguf"), shape);
      file.emplace(dir.file("tiny.gguf"));
    }
  };
  static const Tiny without(false), with(true);
  return has_indexer ? *with.file : *without.file;
}

std::vector<float> decoded_logits(const EngineOptions& options, int64_t n_prompt, const GgufFile& file,
                                  Forward::BufferTally* tally = nullptr) {
  Engine engine(file, options);
  std::vector<float> logits = run_alone(engine, random_tokens(kTokens, 1), n_prompt);
  if (tally) *tally = engine.forward().buffer_tally();
  return logits;
}

}  // namespace

// However a span's tokens are cut into steps. A step is a seventh of the largest magnitude of 64 values.
BOOST_AUTO_TEST_CASE(bounds_are_those_of_the_stored_rows_to_half_a_step) {
  for (const KvType kv_type : {KvType::fp8, KvType::bf16, KvType::f32}) {
    Rng rng(1);
    Scene scene(kv_type);
    for (int64_t at = 0, n; at < 160; at += n) {
      n = std::min<int64_t>(160 - at, 1 + static_cast<int64_t>(rng.next() % 40));
      scene.store(at, n, rng);
    }
    int n_wrong = 0;
    for (int64_t span = 0; span < 10; ++span) {
      std::vector<std::vector<float>> rows;
      for (int64_t i = 0; i < kSpanTokens; ++i) rows.push_back(scene.row(span * kSpanTokens + i));
      const auto tile = [](size_t i) { return i < 64 ? 0 : i < Scene::kRank ? 1 : 2; };
      float most[3] = {};
      for (const std::vector<float>& row : rows)
        for (size_t i = 0; i < row.size(); ++i) most[tile(i)] = std::max(most[tile(i)], std::fabs(row[i]));
      for (size_t i = 0; i < rows[0].size(); ++i) {
        float largest = rows[0][i], smallest = rows[0][i];
        for (const std::vector<float>& row : rows)
          largest = std::max(largest, row[i]), smallest = std::min(smallest, row[i]);
        const float half = most[tile(i)] / 14 * 1.0001f;
        n_wrong += std::fabs(scene.bound(span, 0, static_cast<int64_t>(i)) - largest) > half;
        n_wrong += std::fabs(scene.bound(span, 1, static_cast<int64_t>(i)) - smallest) > half;
      }
    }
    BOOST_TEST(n_wrong == 0);
  }
}

// A row that is not finite, or nothing but zeros, leaves codes of four bits.
BOOST_AUTO_TEST_CASE(bounds_of_rows_that_are_not_finite_are_codes) {
  for (const float value : {0.0f, 1e-40f, std::nanf(""), static_cast<float>(INFINITY)}) {
    Rng rng(4);
    Scene scene(KvType::f32);
    scene.store(0, 15, rng);
    std::vector<float> row(static_cast<size_t>(Scene::kRank + Scene::kRope), value);
    for (int64_t at = 0; at < 15; ++at)
      std::memcpy(
          scene.rows.data() + row_number(scene.pages.data(), scene.cache(), 0, at) * scene.layout.row_bytes(),
          row.data(), row.size() * sizeof(float));
    scene.store(15, 1, rng);
    const uint8_t* codes = scene.bounds(0);
    BOOST_TEST(std::all_of(codes, codes + scene.layout.row_values(),
                           [](uint8_t two) { return two % 16 > 0 && two / 16 > 0; }),
               "value " << value);  // 8 - 7 to 8 + 7
  }
}

// By the formula, for every span but the token's own.
BOOST_AUTO_TEST_CASE(scores_are_the_heads_shares_of_bounds) {
  Rng rng(2);
  Scene scene(KvType::fp8);
  scene.store(0, 150, rng);
  constexpr int64_t kHeadDim = Scene::kRope + 3, kStride = 12, kSpans = 149 / kSpanTokens;
  constexpr float kScale = 0.2f;
  std::vector<float> q_c(Scene::kHeads * Scene::kRank), q(Scene::kHeads * kHeadDim),
      bounds(Scene::kHeads * kStride), scores(kStride, -1), expected(kSpans);
  for (float& value : q_c) value = some_value(rng);
  for (float& value : q) value = some_value(rng);
  scene.backend.quest_scores({scene.step(149, 1), scene.cache(), Scene::kHeads, q_c.data(), q.data(), 0,
                              kHeadDim, kScale, bounds.data(), scores.data(), kStride});
  for (int64_t h = 0; h < Scene::kHeads; ++h) {
    std::vector<double> exponentials;
    const auto query = [&](int64_t i) {
      return i < Scene::kRank ? q_c[static_cast<size_t>(h * Scene::kRank + i)]
                              : q[static_cast<size_t>(h * kHeadDim + i - Scene::kRank)];
    };
    for (int64_t span = 0; span < kSpans; ++span) {
      double bound = 0;
      for (int64_t i = 0; i < Scene::kRank + Scene::kRope; ++i)
        bound += kScale * std::max(query(i) * scene.bound(span, 0, i), query(i) * scene.bound(span, 1, i));
      exponentials.push_back(std::exp(bound));
    }
    const double sum = std::accumulate(exponentials.begin(), exponentials.end(), 0.0);
    for (size_t span = 0; span < kSpans; ++span)
      expected[span] += static_cast<float>(exponentials[span] / sum);
  }
  for (size_t span = 0; span < kSpans; ++span)
    BOOST_TEST(std::fabs(scores[span] - expected[span]) <= 1e-4f * expected[span]);
  BOOST_TEST(scores[kSpans] == -1);
}

BOOST_AUTO_TEST_CASE(the_best_spans_are_selected_and_the_tokens_own) {
  Rng rng(3);
  CpuBackend backend(1);
  for (const int64_t at : {5, 47, 48, 63, 64, 79, 80, 200, 511}) {
    std::vector<float> scores(32);
    for (float& score : scores) score = static_cast<float>(rng.next() % 8);  // with ties
    const auto pos = static_cast<int32_t>(at);
    const int32_t seq = 0;
    std::vector<int32_t> selected(kTopk, -1), n_selected(1);
    backend.select_topk({{1, 1, at, &seq, &pos, &seq, Role::decode},
                         scores.data(),
                         32,
                         kTopk,
                         selected.data(),
                         n_selected.data(),
                         0,
                         kSpanTokens});
    std::vector<int32_t> spans(static_cast<size_t>(at / kSpanTokens)), expected;
    std::iota(spans.begin(), spans.end(), 0);
    std::ranges::stable_sort(spans, std::greater(),
                             [&](int32_t p) { return scores[static_cast<size_t>(p)]; });
    if (at >= kTopk) spans.resize(kTopk / kSpanTokens - 1);
    std::ranges::sort(spans);
    spans.push_back(pos / kSpanTokens);
    for (const int32_t span : spans)
      for (int32_t i = span * kSpanTokens; i < (span + 1) * kSpanTokens && i <= pos; ++i)
        expected.push_back(i);
    selected.resize(static_cast<size_t>(n_selected[0]));
    BOOST_TEST(selected == expected, "at " << at);
  }
}

// While all rows are selected decode is dense; then it is not. The model's own indexer is left out.
BOOST_AUTO_TEST_CASE(decode_is_dense_while_every_row_is_selected) {
  EngineOptions dense = quest_options();
  dense.select = SelectPolicy::all, dense.quest_rows.reset();
  for (const bool has_indexer : {false, true}) {
    const std::vector<float> expected = decoded_logits(dense, 10, tiny_file(has_indexer));
    BOOST_TEST(same_bits(decoded_logits(quest_options({}, 208), 10, tiny_file(has_indexer)), expected));
    const std::vector<float> sparse = decoded_logits(quest_options(), 10, tiny_file(has_indexer));
    const size_t n_dense = kTopk * expected.size() / kTokens;
    BOOST_TEST(std::equal(sparse.begin(), sparse.begin() + static_cast<int64_t>(n_dense), expected.begin()));
    BOOST_TEST(!same_bits(sparse, expected));
  }
}

// Prompts attend to every row: their bits are those of dense attention, in any chunks.
BOOST_AUTO_TEST_CASE(prompts_are_dense) {
  EngineOptions dense = quest_options();
  dense.select = SelectPolicy::all, dense.quest_rows.reset();
  const std::vector<float> expected = decoded_logits(dense, kTokens, tiny_file());
  for (const int64_t chunk : {7, 64, 512}) {
    EngineOptions options = quest_options();
    options.chunk = chunk;
    BOOST_TEST(same_bits(decoded_logits(options, kTokens, tiny_file()), expected), "chunks of " << chunk);
  }
}

BOOST_AUTO_TEST_CASE(any_buffer_equals_full_residency) {
  for (const KvType kv_type : {KvType::fp8, KvType::bf16, KvType::f32}) {
    EngineOptions options = quest_options();
    options.kv_type = kv_type;
    const std::vector<float> expected = decoded_logits(options, 100, tiny_file());
    for (const int64_t n_rows : {kTopk, int64_t{63}, int64_t{127}}) {
      Forward::BufferTally tally;
      options.topk_buffer = n_rows;
      BOOST_TEST(same_bits(decoded_logits(options, 100, tiny_file(), &tally), expected),
                 "buffer of " << n_rows);
      BOOST_TEST(tally.n_misses > 0);
      BOOST_TEST(tally.n_misses < tally.n_rows);
    }
  }
}

BOOST_AUTO_TEST_CASE(company_changes_no_bit) {
  for (const bool is_apart : {false, true})
    for (const int64_t n_rows : {int64_t{0}, kTopk}) {
      const Company company{.buffer_rows = n_rows, .is_apart = is_apart, .quest_topk = kTopk};
      ApartBackend backend(is_apart);
      const CompanyLogits together = run_together(backend, tiny_file(), company);
      for (int64_t s = 0; s < company.n_seqs; ++s) {
        Engine engine(tiny_file(), quest_options());
        BOOST_TEST(same_bits(together.of[static_cast<size_t>(s)],
                             run_alone(engine, company.tokens(s), company.n_prompt(s))),
                   "sequence " << s << ", buffer of " << n_rows << (is_apart ? ", memories apart" : ""));
      }
    }
}

// Decode's rows are others than a prompt's: a talk that is resumed says which they are.
BOOST_AUTO_TEST_CASE(prefixes_on_disk_have_their_bounds_and_roles) {
  TalkOnDisk talk{.make_backend = [] { return std::make_unique<CpuBackend>(1); }};
  talk.options = quest_options();
  talk.options.backends = {}, talk.options.quest_rows = 32;
  talk.check_resumed();
  talk.check_random_places(kIsSanitized ? 3 : 8);
}

// What `check --select quest` tells.
BOOST_AUTO_TEST_CASE(what_selection_loses_is_measured) {
  const std::vector<int32_t> tokens = random_tokens(kTokens, 1);
  const SelectionLoss none = compare_selection(tiny_file(), quest_options({}, 208), tokens),
                      some = compare_selection(tiny_file(), quest_options(), tokens);
  BOOST_TEST(none.n_steps == 64);
  BOOST_TEST(none.n_same_choice == 64);
  BOOST_TEST(std::fabs(none.kept - 1) < 1e-9);
  BOOST_TEST(none.largest_difference == 0);
  BOOST_TEST((some.kept > 0.1 && some.kept < 0.99));
  BOOST_TEST(some.least_kept < some.kept);
  BOOST_TEST(some.largest_difference > some.mean_difference);
  BOOST_TEST(some.mean_difference > 0);
}

BOOST_AUTO_TEST_CASE(flags_that_do_not_fit_each_other_are_refused) {
  const auto refused = [](const EngineOptions& options) {
    BOOST_CHECK_EXCEPTION(Engine(tiny_file(), options), Error,
                          [](const Error& error) { return error.kind() == ErrorKind::usage; });
  };
  for (const int64_t topk : {0, 16, 50}) refused(quest_options({}, topk));
  refused(quest_options(kTopk - 1));
  EngineOptions options = quest_options();
  options.n_guesses = 1;
  refused(options);
  options = quest_options();
  options.select = SelectPolicy::model;
  refused(options);
}

BOOST_AUTO_TEST_SUITE_END()
