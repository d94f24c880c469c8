// See compare.h. Layers are looked into only at the first position that deviates, in a second run: all
// intermediates of a prompt would not fit in memory.
//
// Logits are compared step by step for the same reason.
#include "engine/compare.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "engine/by_hand.h"

namespace dsv32 {
namespace {

using Tokens = std::span<const int32_t>;

constexpr size_t kDecodeSteps = 64;  // at the prompt's end

size_t prefill_tokens(Tokens tokens) { return tokens.size() - std::min(tokens.size(), kDecodeSteps); }

// Where steps begin, and the end: chunks, then single tokens.
std::vector<size_t> step_borders(Tokens tokens, int64_t chunk) {
  std::vector<size_t> borders{0};
  while (borders.back() < tokens.size()) {
    const size_t at = borders.back(), n_prefill = prefill_tokens(tokens);
    borders.push_back(at < n_prefill ? std::min(at + static_cast<size_t>(chunk), n_prefill) : at + 1);
  }
  return borders;
}

// Computes a step of those borders; the logits of its tokens.
std::vector<float> run_step(ByHand& session, Tokens tokens, const std::vector<size_t>& borders, size_t step) {
  const size_t at = borders[step];
  if (at < prefill_tokens(tokens)) return session.all_logits(tokens.subspan(at, borders[step + 1] - at));
  session.step(tokens[at]);
  return session.logits();
}

// [n_steps, vocab_size] of the decode steps.
std::vector<float> decode_logits(Engine& engine, Tokens tokens) {
  ByHand session(engine);
  const size_t n_prefill = prefill_tokens(tokens);
  if (n_prefill > 0) session.sync(tokens.first(n_prefill));
  std::vector<float> all;
  for (const int32_t token : tokens.subspan(n_prefill)) {
    session.step(token);
    all.insert(all.end(), session.logits().begin(), session.logits().end());
  }
  return all;
}

double deviation(std::span<const float> values, std::span<const float> reference) {
  float worst = 0, largest = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const float difference = std::fabs(values[i] - reference[i]);
    if (!std::isfinite(difference)) return INFINITY;
    worst = std::max(worst, difference);
    largest = std::max(largest, std::fabs(reference[i]));
  }
  return worst == 0 ? 0 : static_cast<double>(worst) / static_cast<double>(largest);
}

// Both ascending.
double deviation(const std::vector<int32_t>& values, const std::vector<int32_t>& reference) {
  std::vector<int32_t> lacking;
  std::ranges::set_difference(reference, values, std::back_inserter(lacking));
  return static_cast<double>(lacking.size()) / static_cast<double>(reference.size());
}

// What one token of a step leaves at one stage of a layer.
struct SeenStage {
  std::string name;
  int64_t layer = 0;
  std::vector<float> values;
  std::vector<int32_t> ints;
};

std::vector<SeenStage> stages_at(Engine& engine, Tokens tokens, const std::vector<size_t>& borders,
                                 size_t pos) {
  std::vector<SeenStage> stages;
  const size_t last = static_cast<size_t>(std::ranges::upper_bound(borders, pos) - borders.begin()) - 1;
  const int64_t row = static_cast<int64_t>(pos - borders[last]);
  const auto keep_row = [&](const Observation& seen) {
    SeenStage stage{seen.stage, seen.layer, {}, {}};
    if (!seen.values.empty())
      stage.values.assign(seen.values.begin() + row * seen.width,
                          seen.values.begin() + (row + 1) * seen.width);
    // A token cannot select more positions than there are; what follows them in the row is left over.
    const int64_t n_ints = std::min(seen.width, static_cast<int64_t>(pos) + 1);
    if (!seen.ints.empty())
      stage.ints.assign(seen.ints.begin() + row * seen.width, seen.ints.begin() + row * seen.width + n_ints);
    stages.push_back(std::move(stage));
  };
  ByHand session(engine);
  for (size_t step = 0; step < last; ++step) run_step(session, tokens, borders, step);
  engine.forward().set_observer(keep_row);
  run_step(session, tokens, borders, last);
  engine.forward().set_observer({});
  return stages;
}

void locate(Deviation& found, const std::vector<SeenStage>& stages, const std::vector<SeenStage>& reference) {
  for (size_t i = 0; i < std::min(stages.size(), reference.size()); ++i) {
    const double d = reference[i].ints.empty() ? deviation(stages[i].values, reference[i].values)
                                               : deviation(stages[i].ints, reference[i].ints);
    if (d <= kDeviationTolerance) continue;
    found.layer = reference[i].layer, found.stage = reference[i].name, found.stage_deviation = d;
    return;
  }
}

// Both [n, width]; the first row is of position `pos`.
void compare_rows(Deviation& found, std::span<const float> rows, std::span<const float> reference,
                  size_t width, size_t pos) {
  for (size_t at = 0; at < rows.size(); at += width, ++pos) {
    const auto row = rows.subspan(at, width), expected = reference.subspan(at, width);
    const double d = deviation(row, expected);
    ++found.n_rows;
    found.n_same_choice +=
        std::ranges::max_element(row) - row.begin() == std::ranges::max_element(expected) - expected.begin();
    if (d > found.largest) found.largest = d, found.largest_pos = static_cast<int64_t>(pos);
    if (d > kDeviationTolerance && found.first_pos < 0) found.first_pos = static_cast<int64_t>(pos);
  }
}

}  // namespace

DecodeEquality compare_decode(const GgufFile& file, const EngineOptions& options,
                              const EngineOptions& reference, Tokens tokens) {
  DecodeEquality found;
  size_t width = 0;
  const auto run = [&](const EngineOptions& wanted, Forward::BufferTally& tally) {
    Engine engine(file, wanted);
    width = static_cast<size_t>(engine.args().vocab_size);
    std::vector<float> logits = decode_logits(engine, tokens);
    tally = engine.forward().buffer_tally();
    return logits;
  };
  Forward::BufferTally unused;
  const std::vector<float> ours = run(options, found.tally), expected = run(reference, unused);
  const auto is_bad = [&](size_t at) {
    return std::memcmp(ours.data() + at, expected.data() + at, width * sizeof(float)) != 0 ||
           !std::ranges::all_of(std::span(ours).subspan(at, width), [](float x) { return std::isfinite(x); });
  };
  found.n_steps = static_cast<int64_t>(ours.size() / width);
  for (size_t step = 0; step < ours.size() / width && found.first_unequal_pos < 0; ++step)
    if (is_bad(step * width)) found.first_unequal_pos = static_cast<int64_t>(prefill_tokens(tokens) + step);
  return found;
}

CutEquality compare_cuts(Engine& engine, Tokens tokens) {
  const auto n = std::ssize(tokens), n_held = n / 3;
  const auto in_steps = [&](int64_t n_step) {
    ByHand session(engine);
    for (int64_t end = std::min(n_step, n); end < n; end += n_step)
      session.sync(tokens.first(static_cast<size_t>(end)));
    session.sync(tokens);
    return session.logits();
  };
  const std::vector<float> expected = in_steps(n);
  const bool is_finite = std::ranges::all_of(expected, [](float x) { return std::isfinite(x); });
  CutEquality found;
  const auto add = [&](const std::string& way, const std::vector<float>& logits) {
    const bool is_same = std::memcmp(logits.data(), expected.data(), expected.size() * sizeof(float)) == 0;
    ++found.n_ways;
    if (found.first_unequal.empty() && !(is_finite && is_same)) found.first_unequal = way;
  };
  for (const int64_t n_step : {64, 512})
    if (n_step < n) add(format("in steps of %lld", static_cast<long long>(n_step)), in_steps(n_step));
  ByHand session(engine);
  std::vector<int32_t> other(tokens.begin(), tokens.begin() + n_held);
  other.push_back(tokens[static_cast<size_t>(n_held)] == 0);  // a prompt that goes on otherwise
  session.sync(other);
  session.sync(tokens);
  add(format("behind %lld held tokens", static_cast<long long>(n_held)), session.logits());
  session.sync(tokens);  // nothing is new: the last token is computed again
  add("with the last token alone", session.logits());
  return found;
}

Deviation compare_engines(Engine& engine, Engine& reference, Tokens tokens) {
  Deviation found;
  const std::vector<size_t> borders =
      step_borders(tokens, std::min(engine.forward().max_tokens(), reference.forward().max_tokens()));
  {
    ByHand ours(engine), other(reference);  // closed before the second run: a cache holds one sequence
    for (size_t step = 0; step + 1 < borders.size(); ++step) {
      const std::vector<float> rows = run_step(ours, tokens, borders, step),
                               expected = run_step(other, tokens, borders, step);
      compare_rows(found, rows, expected, rows.size() / (borders[step + 1] - borders[step]), borders[step]);
    }
  }
  if (found.first_pos >= 0) {
    const size_t pos = static_cast<size_t>(found.first_pos);
    locate(found, stages_at(engine, tokens, borders, pos), stages_at(reference, tokens, borders, pos));
  }
  return found;
}

}  // namespace dsv32
