// Drawing tokens on the GPU against the CPU: the same rule and random number must give the same token.
//
// Weights differ by the rounding of exp, a few parts in 10^7, so a border between two tokens' shares moves by
// as much: where the shares are large every draw must agree, and over a whole vocabulary all but 1 in 100.
// Log-probabilities agree to 1e-4: f32 sums against f64.
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstdio>
#include <limits>
#include <set>
#include <vector>

#include "backend/cpu_backend.h"
#include "cuda/kernels.h"
#include "tests/gpu/gpu_test.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(gpu_sample)

namespace {

constexpr size_t kVocabSize = 129280;

struct Drawn {
  std::vector<SampledToken> tokens;  // one a rule
  std::vector<TokenLogprob> top;     // [n_rules, n_top]
};

// logits [vocab_size] for every rule. masks [n_rules, n_mask_words], or empty.
Drawn draw_on_gpu(const std::vector<float>& logits, const std::vector<SampleRule>& rules, int64_t n_top,
                  const std::vector<uint32_t>& masks = {}) {
  TestLaunch gpu(1 << 20);
  std::vector<float> rows;
  for (size_t t = 0; t < rules.size(); ++t) rows.insert(rows.end(), logits.begin(), logits.end());
  const DeviceArray<float> device_rows(rows);
  const DeviceArray<uint32_t> device_masks(masks.empty() ? std::vector<uint32_t>(1) : masks);
  const DeviceArray<SampledToken> tokens(rules.size());
  const DeviceArray<TokenLogprob> top(rules.size() * static_cast<size_t>(std::max<int64_t>(n_top, 0)));
  cuda::sample(
      {device_rows.data(), static_cast<int64_t>(rules.size()), static_cast<int64_t>(logits.size()),
       rules.data(), n_top, tokens.data(), top.data(), masks.empty() ? nullptr : device_masks.data()},
      gpu.launch());
  return {tokens.values(), top.values()};
}

Drawn draw_on_cpu(const std::vector<float>& logits, const std::vector<SampleRule>& rules, int64_t n_top,
                  const std::vector<uint32_t>& masks = {}) {
  CpuBackend cpu(0);
  std::vector<float> rows;
  for (size_t t = 0; t < rules.size(); ++t) rows.insert(rows.end(), logits.begin(), logits.end());
  Drawn drawn{std::vector<SampledToken>(rules.size()),
              std::vector<TokenLogprob>(rules.size() * static_cast<size_t>(std::max<int64_t>(n_top, 0)))};
  cpu.sample({rows.data(), static_cast<int64_t>(rules.size()), static_cast<int64_t>(logits.size()),
              rules.data(), n_top, drawn.tokens.data(), drawn.top.data(), masks.data()});
  return drawn;
}

// n random numbers spread over [0, 1), the ends with them.
std::vector<SampleRule> with_uniforms(SampleRule rule, size_t n) {
  std::vector<SampleRule> rules;
  for (size_t i = 0; i < n; ++i) {
    rule.uniform = i + 1 == n ? 1 - 0x1p-53 : static_cast<double>(i) / static_cast<double>(n);
    rules.push_back(rule);
  }
  return rules;
}

void check_draws(const char* label, const std::vector<float>& logits, const std::vector<SampleRule>& rules,
                 size_t n_may_differ, const std::vector<uint32_t>& masks = {}) {
  const Drawn ours = draw_on_gpu(logits, rules, -1, masks), expected = draw_on_cpu(logits, rules, -1, masks);
  size_t n_differ = 0;
  for (size_t t = 0; t < rules.size(); ++t) {
    BOOST_REQUIRE_EQUAL(ours.tokens[t].is_finite, 1);
    BOOST_TEST(ours.tokens[t].logprob == 0);
    n_differ += ours.tokens[t].id != expected.tokens[t].id;
  }
  BOOST_TEST(n_differ <= n_may_differ,
             label << ": " << n_differ << " of " << rules.size() << " draws differ");
}

// Logits like a model's: near a normal distribution, a few far above.
std::vector<float> model_logits(size_t n, uint64_t seed) {
  std::vector<float> logits = random_floats(n, seed, 2), others = random_floats(n, seed + 1, 1.5f);
  for (size_t i = 0; i < n; ++i) logits[i] += others[i];
  for (size_t i = 0; i < 40; ++i) logits[i * 7919 % n] += 6 + static_cast<float>(i % 10) * 0.5f;
  return logits;
}

const std::vector<SampleRule> kRules = {
    {1, 0, 1, 0, 0},       {1, 0, 0.95f, 0, 0},    {1, 40, 1, 0, 0},       {0.7f, 50, 0.9f, 0.02f, 0},
    {1, 0, 1, 0.05f, 0},   {1.5f, 0, 0.99f, 0, 0}, {0.01f, 0, 0.5f, 0, 0}, {100, 1000, 0.3f, 0, 0},
    {1, 129279, 1, 0, 0},  {1, 1, 1, 0, 0},        {1, 0, 0, 0, 0},        {1e-40f, 0, 0.9f, 0, 0},
    {2, 20000, 0.9f, 0, 0}};

}  // namespace

BOOST_AUTO_TEST_CASE(greedy_takes_the_likeliest_and_the_lower_id_of_two,
                     *boost::unit_test::precondition(needs_gpu)) {
  for (const size_t n : {size_t{1}, size_t{2}, size_t{31}, size_t{1024}, size_t{1025}, kVocabSize}) {
    std::vector<float> logits = random_floats(n, n, 3);
    for (const size_t best : {n - 1, n / 2, n / 3, size_t{0}}) {  // each equals the ones before
      logits[best] = 50;
      BOOST_TEST(draw_on_gpu(logits, {{0, 0, 1, 0, 0}}, -1).tokens[0].id == static_cast<int32_t>(best));
    }
  }
  BOOST_TEST(draw_on_gpu({-1, -0.0f, 0.0f}, {{0, 0, 1, 0, 0}}, -1).tokens[0].id == 1);
  BOOST_TEST(draw_on_gpu(std::vector<float>(5000, -7), {{0, 0, 1, 0, 0}}, -1).tokens[0].id == 0);
}

BOOST_AUTO_TEST_CASE(every_rule_draws_what_the_cpu_draws,
                     *boost::unit_test::precondition(needs_gpu) * boost::unit_test::label("large")) {
  const std::vector<float> logits = model_logits(kVocabSize, 5);
  for (size_t i = 0; i < kRules.size(); ++i) {
    const std::string label = "rule " + std::to_string(i);
    check_draws(label.c_str(), logits, with_uniforms(kRules[i], 100), 1);
  }
}

// Logits on a coarse grid: hundreds of tokens share the one at which a cut falls, so ids decide.
BOOST_AUTO_TEST_CASE(ties_at_the_cut_are_decided_by_id,
                     *boost::unit_test::precondition(needs_gpu) * boost::unit_test::label("large")) {
  std::vector<float> logits = model_logits(kVocabSize, 6);
  for (float& logit : logits) logit = std::round(logit * 4) / 4;
  for (size_t i = 0; i < kRules.size(); ++i) {
    const std::string label = "rule " + std::to_string(i) + " with ties";
    check_draws(label.c_str(), logits, with_uniforms(kRules[i], 100), 1);
  }
}

BOOST_AUTO_TEST_CASE(small_vocabularies_keep_the_same_sets, *boost::unit_test::precondition(needs_gpu)) {
  int n_cases = 0;
  for (const size_t n : {size_t{1}, size_t{2}, size_t{5}, size_t{33}, size_t{300}})
    for (size_t i = 0; i < kRules.size(); ++i) {
      if (is_left_out(n_cases, 20)) continue;
      const std::vector<float> logits = random_floats(n, 10 * n + i, 2);
      const std::string label = "rule " + std::to_string(i) + " of " + std::to_string(n) + " tokens";
      // 509 is prime, so that a random number falls on no border of equal shares.
      check_draws(label.c_str(), logits, with_uniforms(kRules[i], 509), n < 50 ? 0 : 1);
    }
}

BOOST_AUTO_TEST_CASE(equal_logits_keep_the_lowest_ids,
                     *boost::unit_test::precondition(needs_gpu) * boost::unit_test::label("large")) {
  const std::vector<float> logits(kVocabSize, 0.25f);
  const auto ids = [&](const SampleRule& rule) {
    std::set<int32_t> seen;
    for (const SampledToken& token : draw_on_gpu(logits, with_uniforms(rule, 200), -1).tokens)
      seen.insert(token.id);
    return seen;
  };
  const std::set<int32_t> few = ids({1, 5, 1, 0, 0});
  BOOST_TEST((few == std::set<int32_t>{0, 1, 2, 3, 4}));
  const std::set<int32_t> half = ids({1, 0, 0.5f, 0, 0});
  BOOST_TEST(*half.begin() == 0);
  BOOST_TEST(*half.rbegin() == static_cast<int32_t>(kVocabSize / 2 - 1));
  BOOST_TEST(half.size() == 200u);
  const std::set<int32_t> nested = ids({1, 1000, 0.5f, 0, 0});
  BOOST_TEST(*nested.rbegin() == 499);
}

// More tokens are in the bin of the cut than are compared at once: it is divided again.
BOOST_AUTO_TEST_CASE(flat_rows_are_divided_until_few_tokens_are_left,
                     *boost::unit_test::precondition(needs_gpu) * boost::unit_test::label("large")) {
  const std::vector<float> flat = random_floats(kVocabSize, 14, 0.01f);
  std::vector<float> one_below = flat, one_far_below = flat, one_above = flat, zeros = flat;
  one_below[70000] = -50, one_far_below[70000] = -3e38f, one_above[70000] = 20;
  for (float& logit : zeros) logit = logit < 0 ? -0.0f : 0.0f;
  int n_cases = 0;
  for (const auto& [name, logits] : {std::pair{"one below", &one_below},
                                     {"one far below", &one_far_below},
                                     {"one above", &one_above},
                                     {"zeros of both signs", &zeros}})
    for (size_t i = 0; i < kRules.size(); ++i) {
      if (is_left_out(n_cases, 20)) continue;
      const std::string label = name + std::string(", rule ") + std::to_string(i);
      check_draws(label.c_str(), *logits, with_uniforms(kRules[i], 20), 2);
    }
}

BOOST_AUTO_TEST_CASE(one_far_above_takes_everything, *boost::unit_test::precondition(needs_gpu)) {
  std::vector<float> logits = random_floats(kVocabSize, 8);
  logits[77777] = 3e38f;
  for (const SampleRule& rule : kRules) {
    SampleRule cold = rule;
    cold.temperature = 1;
    for (const double uniform : {0.0, 0.5, 1 - 0x1p-53}) {
      cold.uniform = uniform;
      const Drawn drawn = draw_on_gpu(logits, {cold}, 2);
      // The k likeliest may be others too, but with a weight of 0.
      BOOST_TEST(drawn.tokens[0].id == 77777);
      BOOST_TEST(drawn.tokens[0].logprob == 0);
      BOOST_TEST(drawn.top[0].id == 77777);
    }
  }
}

BOOST_AUTO_TEST_CASE(what_is_not_finite_is_told_with_the_lowest_id,
                     *boost::unit_test::precondition(needs_gpu)) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float bad : {NAN, kInfinity, -kInfinity})
    for (const size_t at : {size_t{0}, size_t{1}, size_t{1023}, kVocabSize - 1})
      for (const float temperature : {0.0f, 1.0f}) {
        std::vector<float> logits = random_floats(kVocabSize, 9);
        logits[at] = bad, logits[kVocabSize - 1] = bad;
        const SampledToken token = draw_on_gpu(logits, {{temperature, 10, 0.9f, 0, 0.5}}, 3).tokens[0];
        BOOST_TEST(token.is_finite == 0);
        BOOST_TEST(token.id == static_cast<int32_t>(at));
        BOOST_TEST((std::isnan(bad) ? std::isnan(token.logprob) : token.logprob == bad));
      }
}

BOOST_AUTO_TEST_CASE(log_probabilities_and_the_likeliest, *boost::unit_test::precondition(needs_gpu)) {
  for (const bool has_ties : {false, true})
    for (const size_t n : {size_t{1}, size_t{20}, size_t{1000}, kVocabSize}) {
      std::vector<float> logits = model_logits(n, 11 + n);
      if (has_ties)
        for (float& logit : logits) logit = std::round(logit);
      const int64_t most = std::min<int64_t>(static_cast<int64_t>(n), kMostTopLogprobs);
      for (const int64_t n_top : {int64_t{0}, int64_t{1}, most}) {
        const std::vector<SampleRule> rules = with_uniforms({0.8f, 0, 0.9f, 0, 0}, 9);
        const Drawn ours = draw_on_gpu(logits, rules, n_top), expected = draw_on_cpu(logits, rules, n_top);
        for (size_t t = 0; t < rules.size(); ++t)
          if (ours.tokens[t].id == expected.tokens[t].id)
            BOOST_TEST(std::fabs(ours.tokens[t].logprob - expected.tokens[t].logprob) < 1e-4f);
        for (size_t i = 0; i < expected.top.size(); ++i) {
          BOOST_REQUIRE_EQUAL(ours.top[i].id, expected.top[i].id);
          BOOST_TEST(std::fabs(ours.top[i].logprob - expected.top[i].logprob) < 1e-4f);
        }
      }
    }
}

// As many blocks share a row as there is room for, so launches of few rows and of many cut it differently.
BOOST_AUTO_TEST_CASE(a_draws_bits_do_not_depend_on_the_rows_beside_it,
                     *boost::unit_test::precondition(needs_gpu)) {
  constexpr int64_t kTop = 20;
  const std::vector<float> logits = model_logits(kVocabSize, 12);
  const std::vector<SampleRule> rules = with_uniforms({1, 5000, 0.95f, 0, 0}, 300);
  const Drawn all = draw_on_gpu(logits, rules, kTop);
  size_t first = 0;
  for (const size_t n : {size_t{300}, size_t{1}, size_t{2}, size_t{17}, size_t{64}, size_t{100}}) {
    if (first + n > rules.size()) first = 0;
    const Drawn some = draw_on_gpu(logits, {rules.begin() + first, rules.begin() + first + n}, kTop);
    for (size_t t = 0; t < n; ++t) {
      BOOST_TEST(some.tokens[t].id == all.tokens[first + t].id);
      BOOST_TEST(some.tokens[t].logprob == all.tokens[first + t].logprob);
    }
    for (size_t i = 0; i < n * kTop; ++i) {
      BOOST_TEST(some.top[i].id == all.top[first * kTop + i].id);
      BOOST_TEST(some.top[i].logprob == all.top[first * kTop + i].logprob);
    }
    first += n;
  }
}

// --- Masks

namespace {

std::vector<SampleRule> masked(std::vector<SampleRule> rules) {
  for (SampleRule& rule : rules) rule.is_masked = true;
  return rules;
}

bool is_allowed(const std::vector<uint32_t>& masks, size_t n, size_t row, int32_t id) {
  const size_t n_words = (n + 31) / 32;
  return masks[row * n_words + static_cast<size_t>(id / 32)] >> (id % 32) & 1;
}

// For each row one token in `one_of`, and at least one: in turn the first, the last and a random one. Bits
// past the vocabulary are set.
std::vector<uint32_t> random_masks(size_t n_rows, size_t n, uint64_t one_of, uint64_t seed) {
  const size_t n_words = (n + 31) / 32;
  std::vector<uint32_t> masks(n_rows * n_words);
  Rng rng(seed);
  for (size_t row = 0; row < n_rows; ++row) {
    const auto allow = [&](size_t id) { masks[row * n_words + id / 32] |= uint32_t{1} << (id % 32); };
    for (size_t id = 0; id < n_words * 32; ++id)
      if (id >= n || rng.next() % one_of == 0) allow(id);
    allow(row % 3 == 0 ? 0 : row % 3 == 1 ? n - 1 : rng.next() % n);
  }
  return masks;
}

constexpr uint64_t kOnlyOne = uint64_t{1} << 62;

// Every rule, each draw with its own mask; both kinds of logits: a model's, and those with ties.
void check_masked(size_t n, uint64_t one_of, size_t n_draws) {
  std::vector<float> logits = model_logits(n, 20 + n);
  for (const bool has_ties : {false, true}) {
    if (has_ties)
      for (float& logit : logits) logit = std::round(logit * 4) / 4;
    for (size_t i = 0; i <= kRules.size(); ++i) {
      const SampleRule greedy{.temperature = 0};
      const std::vector<SampleRule> rules =
          masked(with_uniforms(i < kRules.size() ? kRules[i] : greedy, n_draws));
      const std::vector<uint32_t> masks = random_masks(rules.size(), n, one_of, n + i);
      const std::string label = "rule " + std::to_string(i) + " of " + std::to_string(n) +
                                " tokens, one in " + std::to_string(one_of) + " allowed" +
                                (has_ties ? ", ties" : "");
      check_draws(label.c_str(), logits, rules, one_of == kOnlyOne || i == kRules.size() ? 0 : 1, masks);
    }
  }
}

}  // namespace

BOOST_AUTO_TEST_CASE(masked_rows_are_drawn_as_by_the_cpu, *boost::unit_test::precondition(needs_gpu)) {
  int n_cases = 0;
  for (const size_t n : {size_t{1}, size_t{31}, size_t{33}, size_t{4096}, size_t{5003}})
    for (const uint64_t one_of : {uint64_t{1}, uint64_t{2}, uint64_t{20}, uint64_t{1000}, kOnlyOne})
      if (!is_left_out(n_cases, 20)) check_masked(n, one_of, 37);
}

BOOST_AUTO_TEST_CASE(masked_rows_of_whole_vocabularies_are_drawn_as_by_the_cpu,
                     *boost::unit_test::precondition(needs_gpu) * boost::unit_test::label("large")) {
  for (const size_t n : {kVocabSize, kVocabSize + 1, size_t{100003}})
    for (const uint64_t one_of : {uint64_t{2}, uint64_t{3000}, kOnlyOne}) check_masked(n, one_of, 19);
}

BOOST_AUTO_TEST_CASE(a_mask_of_one_token_gives_it_whatever_its_logit,
                     *boost::unit_test::precondition(needs_gpu)) {
  constexpr size_t kN = 5003, kWords = (kN + 31) / 32;
  std::vector<float> logits = model_logits(kN, 21);
  for (const size_t id : {size_t{0}, size_t{31}, size_t{32}, size_t{2500}, kN - 1}) {
    logits[id] = -3e38f;
    std::vector<uint32_t> one(kWords), masks;
    one[id / 32] = uint32_t{1} << (id % 32);
    for (size_t i = 0; i < kRules.size(); ++i) masks.insert(masks.end(), one.begin(), one.end());
    for (const double uniform : {0.0, 0.5, 1 - 0x1p-53}) {
      std::vector<SampleRule> rules = masked(kRules);
      for (SampleRule& rule : rules) rule.uniform = uniform;
      for (const SampledToken& token : draw_on_gpu(logits, rules, -1, masks).tokens)
        BOOST_TEST(token.id == static_cast<int32_t>(id));
    }
  }
}

// More allowed tokens are in the bin of the cut than are compared at once.
BOOST_AUTO_TEST_CASE(masked_flat_rows_are_divided_until_few_tokens_are_left,
                     *boost::unit_test::precondition(needs_gpu) * boost::unit_test::label("large")) {
  std::vector<float> flat = random_floats(kVocabSize, 22, 0.01f), equal(kVocabSize, 0.25f);
  flat[70000] = 20, flat[70001] = -3e38f;  // which some masks do not allow
  for (const std::vector<float>& logits : {flat, equal})
    for (size_t i = 0; i < kRules.size(); ++i) {
      const std::string label = "flat, masked, rule " + std::to_string(i);
      check_draws(label.c_str(), logits, masked(with_uniforms(kRules[i], 19)), 2,
                  random_masks(19, kVocabSize, 2, 23 + i));
    }
}

// Rows without a mask have the bits that they have in a step without masks; all have those that they have
// alone. Log-probabilities are those of the row without its mask.
BOOST_AUTO_TEST_CASE(masked_rows_and_others_do_not_depend_on_each_other,
                     *boost::unit_test::precondition(needs_gpu)) {
  constexpr int64_t kTop = 20;
  constexpr size_t kRows = 160, kN = 32771, kWords = (kN + 31) / 32;
  const std::vector<float> logits = model_logits(kN, 24);
  std::vector<SampleRule> rules;
  for (const SampleRule& drawn : with_uniforms({}, kRows)) {
    const size_t kind = rules.size() % (kRules.size() + 1);
    rules.push_back(kind < kRules.size() ? kRules[kind] : SampleRule{.temperature = 0});
    rules.back().uniform = drawn.uniform;
  }
  const Drawn plain = draw_on_gpu(logits, rules, kTop);
  for (size_t t = 0; t < kRows; ++t) rules[t].is_masked = t % 3 != 1;
  const std::vector<uint32_t> masks = random_masks(kRows, kN, 50, 25);
  const Drawn all = draw_on_gpu(logits, rules, kTop, masks),
              expected = draw_on_cpu(logits, rules, kTop, masks);
  size_t n_differ = 0;
  for (size_t t = 0; t < kRows; ++t) {
    const int32_t id = all.tokens[t].id;
    n_differ += id != expected.tokens[t].id;
    if (id == expected.tokens[t].id)
      BOOST_TEST(std::fabs(all.tokens[t].logprob - expected.tokens[t].logprob) < 1e-4f);
    if (rules[t].is_masked) BOOST_TEST(is_allowed(masks, kN, t, id));
    if (rules[t].is_masked) continue;
    BOOST_TEST(id == plain.tokens[t].id);
    BOOST_TEST(all.tokens[t].logprob == plain.tokens[t].logprob);
  }
  BOOST_TEST(n_differ <= 3u);
  for (size_t i = 0; i < all.top.size(); ++i) {
    BOOST_TEST(all.top[i].id == plain.top[i].id);
    BOOST_TEST(all.top[i].logprob == plain.top[i].logprob);
  }
  size_t first = 0;
  for (const size_t n : {size_t{1}, size_t{2}, size_t{5}, size_t{17}, size_t{64}, size_t{71}}) {
    BOOST_REQUIRE(first + n <= kRows);
    const auto begin = masks.begin() + static_cast<std::ptrdiff_t>(first * kWords);
    const Drawn some = draw_on_gpu(logits,
                                   {rules.begin() + static_cast<std::ptrdiff_t>(first),
                                    rules.begin() + static_cast<std::ptrdiff_t>(first + n)},
                                   kTop, {begin, begin + static_cast<std::ptrdiff_t>(n * kWords)});
    for (size_t t = 0; t < n; ++t) {
      BOOST_TEST(some.tokens[t].id == all.tokens[first + t].id);
      BOOST_TEST(some.tokens[t].logprob == all.tokens[first + t].logprob);
    }
    first += n;
  }
}

BOOST_AUTO_TEST_CASE(what_is_not_finite_is_told_although_no_mask_allows_it,
                     *boost::unit_test::precondition(needs_gpu)) {
  constexpr size_t kN = 5003;
  std::vector<uint32_t> mask((kN + 31) / 32);
  mask[3] = 1;
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()})
    for (const size_t at : {size_t{0}, size_t{96}, kN - 1})
      for (const float temperature : {0.0f, 1.0f}) {
        std::vector<float> logits = random_floats(kN, 26);
        logits[at] = bad;
        const SampledToken token =
            draw_on_gpu(logits, masked({{temperature, 10, 0.9f, 0, 0.5}}), 3, mask).tokens[0];
        BOOST_TEST(token.is_finite == 0);
        BOOST_TEST(token.id == static_cast<int32_t>(at));
      }
}

BOOST_AUTO_TEST_CASE(timing, *boost::unit_test::precondition(needs_gpu) * boost::unit_test::label("timing")) {
  TestLaunch gpu;
  constexpr int64_t kMost = 333;
  const DeviceArray<SampledToken> tokens(kMost);
  const DeviceArray<TokenLogprob> top(kMost * 20);
  const std::vector<float> one = model_logits(kVocabSize, 13);
  std::vector<float> rows;
  for (int t = 0; t < kMost; ++t) rows.insert(rows.end(), one.begin(), one.end());
  const DeviceArray<float> logits(rows);
  const struct {
    const char* name;
    SampleRule rule;
    int64_t n_top;
  } kinds[] = {{"greedy", {0, 0, 1, 0, 0}, -1},
               {"temperature alone", {1, 0, 1, 0, 0.5}, -1},
               {"top-p 0.95", {1, 0, 0.95f, 0, 0.5}, -1},
               {"top-k 40, top-p 0.95", {1, 40, 0.95f, 0, 0.5}, -1},
               {"top-p 0.95, 20 likeliest", {1, 0, 0.95f, 0, 0.5}, 20}};
  for (const int64_t n_tokens : {int64_t{1}, int64_t{8}, int64_t{64}, int64_t{128}, kMost})
    for (const auto& kind : kinds) {
      const std::vector<SampleRule> rules(static_cast<size_t>(n_tokens), kind.rule);
      const double seconds = gpu.seconds([&] {
        cuda::sample({logits.data(), n_tokens, static_cast<int64_t>(kVocabSize), rules.data(), kind.n_top,
                      tokens.data(), top.data()},
                     gpu.launch());
      });
      std::printf("sample of %zu, %lld tokens, %s: %.1f us\n", kVocabSize, static_cast<long long>(n_tokens),
                  kind.name, seconds * 1e6);
    }
  // Masks with their upload.
  constexpr size_t kMasked = 64;
  const DeviceArray<uint32_t> masks(kMasked * static_cast<size_t>(n_mask_words(kVocabSize)));
  DeviceArray<uint32_t> pinned(masks.size(), true);
  for (const uint64_t one_of : {uint64_t{2}, uint64_t{1000}})
    for (const auto& kind : kinds) {
      pinned.fill(random_masks(kMasked, kVocabSize, one_of, 27));
      const std::vector<SampleRule> rules = masked(std::vector<SampleRule>(kMasked, kind.rule));
      const double seconds = gpu.seconds([&] {
        CUDA_CHECK(cudaMemcpyAsync(masks.data(), pinned.data(), masks.size() * sizeof(uint32_t),
                                   cudaMemcpyHostToDevice, gpu.stream()));
        cuda::sample({logits.data(), kMasked, static_cast<int64_t>(kVocabSize), rules.data(), kind.n_top,
                      tokens.data(), top.data(), masks.data()},
                     gpu.launch());
      });
      std::printf("sample of %zu, %zu masked tokens, one in %llu allowed, %s: %.1f us\n", kVocabSize, kMasked,
                  static_cast<unsigned long long>(one_of), kind.name, seconds * 1e6);
    }
}

BOOST_AUTO_TEST_SUITE_END()
