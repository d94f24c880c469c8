// The sampler on the CPU backend: what each option keeps, reproducibility by seed, log-probabilities, refusal
// of what is not a number, and masks. And stop strings.
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <map>
#include <set>
#include <vector>

#include "backend/cpu_backend.h"
#include "base/error.h"
#include "engine/sampler.h"
#include "engine/sequence.h"
#include "gguf/random_weights.h"
#include "tests/support/apart_backend.h"
#include "tests/support/one_row.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(sampler)

namespace {

// Probabilities 0.4, 0.3, 0.2, 0.1 for ids 2, 0, 3, 1.
const std::vector<float> kLogits = {std::log(0.3f), std::log(0.1f), std::log(0.4f), std::log(0.2f)};

CpuBackend& cpu() {
  static CpuBackend backend(1);
  return backend;
}

int32_t drawn(OneRow& sampler, const std::vector<float>& logits) { return sampler.sample(logits).chosen.id; }

std::map<int32_t, int> draw(const SamplingOptions& options, int n) {
  OneRow sampler(options, cpu());
  std::map<int32_t, int> counts;
  for (int i = 0; i < n; ++i) ++counts[drawn(sampler, kLogits)];
  return counts;
}

SamplingOptions options_with(float temperature, int64_t top_k, float top_p, float min_p) {
  return {temperature, top_k, top_p, min_p, 42};
}

std::set<int32_t> kept(const SamplingOptions& options) {
  std::set<int32_t> ids;
  for (const auto& [id, count] : draw(options, 3000)) ids.insert(id);
  return ids;
}

}  // namespace

BOOST_AUTO_TEST_CASE(temperature_zero_takes_the_best_and_the_lower_id_of_two) {
  OneRow sampler(options_with(0, 0, 1, 0), cpu());
  BOOST_TEST(drawn(sampler, kLogits) == 2);
  BOOST_TEST(drawn(sampler, {1, 5, 5, 2}) == 1);
}

BOOST_AUTO_TEST_CASE(frequencies_follow_the_probabilities) {
  const auto counts = draw(options_with(1, 0, 1, 0), 40000);
  const double expected[] = {0.3, 0.1, 0.4, 0.2};
  for (int32_t id = 0; id < 4; ++id) BOOST_TEST(std::abs(counts.at(id) / 40000.0 - expected[id]) < 0.01);
}

BOOST_AUTO_TEST_CASE(temperature_sharpens_and_flattens) {
  BOOST_TEST(draw(options_with(0.25f, 0, 1, 0), 10000).at(2) > 7000);  // 0.4^4 / sum = 0.723
  BOOST_TEST(draw(options_with(50, 0, 1, 0), 10000).at(1) > 2200);     // nearly a quarter each
}

BOOST_AUTO_TEST_CASE(top_k_top_p_and_min_p_keep_what_they_should) {
  BOOST_TEST((kept(options_with(1, 2, 1, 0)) == std::set<int32_t>{2, 0}));
  BOOST_TEST((kept(options_with(1, 0, 0.65f, 0)) == std::set<int32_t>{2, 0}));
  BOOST_TEST((kept(options_with(1, 0, 0.75f, 0)) == std::set<int32_t>{2, 0, 3}));
  BOOST_TEST((kept(options_with(1, 0, 0, 0)) == std::set<int32_t>{2}));  // the best always stays
  BOOST_TEST((kept(options_with(1, 0, 1, 0.6f)) == std::set<int32_t>{2, 0}));
  BOOST_TEST((kept(options_with(1, 3, 0.5f, 0)) == std::set<int32_t>{2, 0}));  // p is of what top-k left
}

BOOST_AUTO_TEST_CASE(the_seed_decides_and_zero_is_a_seed) {
  const auto sequence = [](uint64_t seed) {
    SamplingOptions options = options_with(1, 0, 1, 0);
    options.seed = seed;
    OneRow sampler(options, cpu());
    std::vector<int32_t> ids;
    for (int i = 0; i < 50; ++i) ids.push_back(drawn(sampler, kLogits));
    return ids;
  };
  BOOST_TEST(sequence(0) == sequence(0));
  BOOST_TEST(sequence(7) == sequence(7));
  BOOST_TEST(sequence(0) != sequence(1));
}

BOOST_AUTO_TEST_CASE(what_is_not_finite_is_refused) {
  OneRow sampler(options_with(0, 0, 1, 0), cpu());
  for (const float bad : {NAN, INFINITY, -INFINITY})
    BOOST_CHECK_EXCEPTION(sampler.sample(std::vector<float>{1, bad, 2}), Error,
                          [](const Error& error) { return error.kind() == ErrorKind::model; });
}

// Each row by its own rule, and one that is damaged spoils no other.
BOOST_AUTO_TEST_CASE(rows_at_once_are_drawn_as_each_alone) {
  std::vector<float> rows;
  for (const std::vector<float>& row : {kLogits, {3, 1, 2, 9}, {0, NAN, 1, 2}, {5, 5, 5, 5}})
    rows.insert(rows.end(), row.begin(), row.end());
  const std::vector<SampleRule> rules = {
      {1, 0, 1, 0, 0.95}, {0, 0, 1, 0, 0}, {1, 0, 1, 0, 0.5}, {1, 2, 1, 0, 0.9}};
  RowSampler sampler(cpu(), 4);
  const std::vector<TokenRecord> together = sample_rows(sampler, rows.data(), 4, rules, 2);
  BOOST_REQUIRE(together.size() == 4u);
  for (size_t i = 0; i < 4; ++i) {
    const TokenRecord alone = sample_rows(sampler, rows.data() + 4 * i, 4, {&rules[i], 1}, 2).front();
    BOOST_TEST(together[i].chosen.id == alone.chosen.id);
    BOOST_TEST(together[i].is_finite == (i != 2));
    if (i == 2) continue;
    BOOST_TEST(together[i].chosen.logprob == alone.chosen.logprob);
    for (size_t k = 0; k < 2; ++k) BOOST_TEST(together[i].top[k].id == alone.top[k].id);
  }
  BOOST_TEST(together[1].chosen.id == 3);
}

BOOST_AUTO_TEST_CASE(options_out_of_range_are_refused) {
  for (const SamplingOptions& bad :
       {options_with(NAN, 0, 1, 0), options_with(-1, 0, 1, 0), options_with(1, -2, 1, 0),
        options_with(1, int64_t{1} << 31, 1, 0), options_with(1, 0, 2, 0), options_with(1, 0, 1, 1.5f)}) {
    GenerationOptions options;
    options.sampling = bad;
    BOOST_CHECK_EXCEPTION(options.check(), Error,
                          [](const Error& error) { return error.kind() == ErrorKind::usage; });
  }
}

BOOST_AUTO_TEST_CASE(log_probabilities_are_those_of_the_softmax) {
  OneRow sampler(options_with(0.5f, 1, 1, 0), cpu());  // they are at temperature 1 whatever the rule
  const TokenRecord record = sampler.sample(kLogits, 3);
  BOOST_TEST(record.chosen.id == 2);
  BOOST_TEST(std::abs(record.chosen.logprob - std::log(0.4f)) < 1e-6f);
  BOOST_TEST(record.top.size() == 3u);
  BOOST_TEST(record.top[0].id == 2);
  BOOST_TEST(record.top[1].id == 0);
  BOOST_TEST(std::abs(record.top[1].logprob - std::log(0.3f)) < 1e-6f);
  BOOST_TEST(record.top[2].id == 3);
  BOOST_TEST(std::abs(record.top[2].logprob - std::log(0.2f)) < 1e-6f);
  BOOST_TEST(sampler.sample(kLogits, 20).top.size() == 4u);
  BOOST_TEST(sampler.sample(kLogits, 0).top.empty());
  BOOST_TEST(std::abs(sampler.sample(kLogits, 0).chosen.logprob - std::log(0.4f)) < 1e-6f);
}

// The random number runs through the kept ids in ascending order.
BOOST_AUTO_TEST_CASE(the_draw_takes_the_id_whose_share_holds_the_random_number) {
  const auto drawn_at = [](double uniform, SampleRule rule) {
    rule.uniform = uniform;
    SampledToken token{};
    cpu().sample({kLogits.data(), 1, 4, &rule, -1, &token, nullptr});
    BOOST_TEST(token.is_finite == 1);
    return token.id;
  };
  const double just_below_one = 1 - 0x1p-53;
  const SampleRule all{1, 0, 1, 0, 0}, two{1, 2, 1, 0, 0};  // shares 0.3 0.1 0.4 0.2 | 3/7 - 4/7 -
  for (const auto& [uniform, id] : {std::pair{0.0, 0},
                                    {0.299, 0},
                                    {0.301, 1},
                                    {0.399, 1},
                                    {0.401, 2},
                                    {0.799, 2},
                                    {0.801, 3},
                                    {just_below_one, 3}})
    BOOST_TEST(drawn_at(uniform, all) == id);
  for (const auto& [uniform, id] : {std::pair{0.0, 0}, {0.428, 0}, {0.429, 2}, {just_below_one, 2}})
    BOOST_TEST(drawn_at(uniform, two) == id);
}

BOOST_AUTO_TEST_CASE(of_equal_logits_the_lower_ids_are_kept) {
  const std::vector<float> rows(2 * 100, -3.5f);
  std::set<int32_t> by_count, by_share;
  for (int i = 0; i < 200; ++i) {
    const SampleRule rules[] = {{1, 7, 1, 0, i / 200.0}, {1, 0, 0.1f, 0, i / 200.0}};
    SampledToken tokens[2] = {};
    cpu().sample({rows.data(), 2, 100, rules, -1, tokens, nullptr});
    by_count.insert(tokens[0].id), by_share.insert(tokens[1].id);
  }
  BOOST_TEST((by_count == std::set<int32_t>{0, 1, 2, 3, 4, 5, 6}));
  BOOST_TEST(by_share.size() >= 10u);  // 0.1f is a little more than a tenth
  BOOST_TEST(*by_share.rbegin() <= 10);
}

// --- Masks

namespace {

// Logits on a coarse grid, so that many are equal.
std::vector<float> masked_row(size_t n, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> logits(n);
  for (float& logit : logits) logit = std::round(rng.unit() * 8) / 4;
  return logits;
}

// One token in one_of, and at least one.
std::vector<int32_t> some_ids(size_t n, uint64_t one_of, uint64_t seed) {
  Rng rng(seed);
  std::vector<int32_t> ids;
  for (size_t id = 0; id < n; ++id)
    if (rng.next() % one_of == 0) ids.push_back(static_cast<int32_t>(id));
  if (ids.empty()) ids.push_back(static_cast<int32_t>(rng.next() % n));
  return ids;
}

void write_mask(std::span<uint32_t> mask, const std::vector<int32_t>& ids) {
  std::ranges::fill(mask, 0);
  for (const int32_t id : ids) mask[static_cast<size_t>(id / 32)] |= uint32_t{1} << (id % 32);
}

const std::vector<SampleRule> kMaskedRules = {
    {0, 0, 1, 0, 0},    {1, 0, 1, 0, 0}, {0.5f, 0, 1, 0, 0}, {1, 3, 1, 0, 0},          {1, 1000, 1, 0, 0},
    {1, 0, 0.6f, 0, 0}, {1, 0, 0, 0, 0}, {1, 0, 1, 0.3f, 0}, {0.8f, 9, 0.7f, 0.1f, 0}, {2, 40, 0.9f, 0, 0}};

}  // namespace

// A draw under a mask is the draw from a row that has the allowed tokens alone.
BOOST_AUTO_TEST_CASE(a_masked_row_is_drawn_as_one_without_the_other_tokens) {
  RowSampler sampler(cpu(), 1);
  size_t n_cases = 0, n_ids_seen = 0;
  for (const size_t n : {size_t{1}, size_t{31}, size_t{32}, size_t{33}, size_t{100}, size_t{300}})
    for (const uint64_t one_of : {uint64_t{1}, uint64_t{2}, uint64_t{10}, uint64_t{1000}}) {
      const std::vector<float> logits = masked_row(n, 7 * n + one_of);
      const std::vector<int32_t> ids = some_ids(n, one_of, 11 * n + one_of);
      std::vector<float> allowed;
      for (const int32_t id : ids) allowed.push_back(logits[static_cast<size_t>(id)]);
      RowSampler masked(cpu(), 1);
      write_mask(masked.mask_of(0, static_cast<int64_t>(n)), ids);
      std::set<int32_t> seen;
      for (SampleRule rule : kMaskedRules)
        for (int i = 0; i < 20; ++i, ++n_cases) {
          rule.uniform = i / 20.0;
          rule.is_masked = false;
          const int32_t alone =
              sample_rows(sampler, allowed.data(), std::ssize(allowed), {&rule, 1}).front().chosen.id;
          rule.is_masked = true;
          const int32_t drawn =
              sample_rows(masked, logits.data(), std::ssize(logits), {&rule, 1}).front().chosen.id;
          BOOST_TEST(drawn == ids[static_cast<size_t>(alone)]);
          seen.insert(drawn);
        }
      n_ids_seen += seen.size();
    }
  BOOST_TEST(n_cases == 6u * 4 * 10 * 20);
  BOOST_TEST(n_ids_seen > 100u);  // not the likeliest alone
}

BOOST_AUTO_TEST_CASE(a_mask_of_one_token_gives_it_whatever_its_logit) {
  std::vector<float> logits(70, 5);
  logits[69] = -3e38f;
  RowSampler sampler(cpu(), 1);
  for (const int32_t id : {0, 31, 32, 63, 64, 69}) {
    write_mask(sampler.mask_of(0, 70), {id});
    for (SampleRule rule : kMaskedRules) {
      rule.is_masked = true, rule.uniform = 0.9;
      BOOST_TEST(sample_rows(sampler, logits.data(), 70, {&rule, 1}).front().chosen.id == id);
    }
  }
}

// Of the chosen token, and of the likeliest.
BOOST_AUTO_TEST_CASE(log_probabilities_are_those_without_the_mask) {
  RowSampler sampler(cpu(), 1);
  SampleRule rule{0, 0, 1, 0, 0};
  const TokenRecord plain = sample_rows(sampler, kLogits.data(), 4, {&rule, 1}, 3).front();
  rule.is_masked = true;
  write_mask(sampler.mask_of(0, 4), {1, 3});
  const TokenRecord masked = sample_rows(sampler, kLogits.data(), 4, {&rule, 1}, 3).front();
  BOOST_TEST(masked.chosen.id == 3);
  BOOST_TEST(std::abs(masked.chosen.logprob - std::log(0.2f)) < 1e-6f);
  BOOST_REQUIRE(masked.top.size() == 3u);
  for (size_t i = 0; i < 3; ++i) {
    BOOST_TEST(masked.top[i].id == plain.top[i].id);
    BOOST_TEST(masked.top[i].logprob == plain.top[i].logprob);
  }
  BOOST_TEST(masked.chosen.logprob == masked.top[2].logprob);
}

// Also where the masks must be uploaded; masks between two steps change, and rows without one are as ever.
BOOST_AUTO_TEST_CASE(masked_rows_are_drawn_alike_alone_and_in_company) {
  constexpr int64_t kRows = 7, kVocab = 77;
  for (const bool is_apart : {false, true}) {
    ApartBackend backend(is_apart);
    RowSampler together(backend, kRows);
    for (uint64_t step = 0; step < 20; ++step) {
      std::vector<float> rows;
      std::vector<SampleRule> rules;
      std::vector<std::vector<int32_t>> ids;
      for (uint64_t t = 0; t < kRows; ++t) {
        const std::vector<float> row = masked_row(kVocab, 100 * step + t);
        rows.insert(rows.end(), row.begin(), row.end());
        rules.push_back(kMaskedRules[(step + t) % kMaskedRules.size()]);
        rules.back().uniform = static_cast<double>(step) / 20;
        rules.back().is_masked = (step + t) % 3 != 0 && step != 5;  // no row is masked in step 5
        ids.push_back(some_ids(kVocab, 1 + t * t, 31 * step + t));
        if (rules.back().is_masked) write_mask(together.mask_of(static_cast<int64_t>(t), kVocab), ids.back());
      }
      const std::vector<TokenRecord> drawn = sample_rows(together, rows.data(), kVocab, rules, 2);
      for (size_t t = 0; t < kRows; ++t) {
        RowSampler alone(cpu(), 1);
        if (rules[t].is_masked) write_mask(alone.mask_of(0, kVocab), ids[t]);
        const TokenRecord record =
            sample_rows(alone, rows.data() + t * kVocab, kVocab, {&rules[t], 1}, 2).front();
        BOOST_TEST(drawn[t].chosen.id == record.chosen.id);
        BOOST_TEST(drawn[t].chosen.logprob == record.chosen.logprob);
        if (rules[t].is_masked) BOOST_TEST((std::ranges::find(ids[t], drawn[t].chosen.id) != ids[t].end()));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(what_is_not_finite_is_told_although_no_mask_allows_it) {
  RowSampler sampler(cpu(), 1);
  write_mask(sampler.mask_of(0, 3), {0});
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    const std::vector<float> logits = {1, bad, 2};
    const SampleRule rule{.temperature = 1, .is_masked = true};
    const TokenRecord record = sample_rows(sampler, logits.data(), 3, {&rule, 1}).front();
    BOOST_TEST(!record.is_finite);
    BOOST_TEST(record.chosen.id == 1);
  }
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(stop_strings)

// However the text is cut, what is shown ends just before the earliest stop string.
BOOST_AUTO_TEST_CASE(nothing_of_a_stop_string_is_shown_however_it_is_cut) {
  const std::string text = "one two END three STOP four";
  for (size_t cut = 0; cut <= text.size(); ++cut)
    for (size_t second = cut; second <= text.size(); ++second) {
      StopStrings stops({"STOP", "END", "NDX"});
      std::string shown = stops.push(text.substr(0, cut));
      shown += stops.push(text.substr(cut, second - cut));
      shown += stops.push(text.substr(second));
      shown += stops.finish();
      BOOST_REQUIRE(shown == "one two ");
      BOOST_REQUIRE(stops.found());
    }
}

BOOST_AUTO_TEST_CASE(the_beginning_of_a_stop_string_is_text_when_the_rest_does_not_come) {
  StopStrings stops({"aab"});
  std::string shown;
  for (const char* piece : {"a", "a", "a", "c"}) shown += stops.push(piece);
  BOOST_TEST(shown == "aaac");
  BOOST_TEST(stops.push("xaa") == "x");
  BOOST_TEST(stops.finish() == "aa");
  BOOST_TEST(!stops.found());
}

BOOST_AUTO_TEST_CASE(an_empty_stop_string_stops_nothing) {
  StopStrings stops({""});
  BOOST_TEST(stops.push("text") == "text");
  BOOST_TEST(!stops.found());
}

BOOST_AUTO_TEST_SUITE_END()
