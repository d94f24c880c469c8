// Compares logits step by step. A second run observes the layers, only at the first position that deviates:
// observations of a whole prompt would not fit in memory.
#include "engine/compare.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "engine/held_sequence.h"

namespace dsv32 {
namespace {

using Tokens = std::span<const int32_t>;

constexpr size_t kDecodeSteps = 64;  // at the prompt's end

size_t prefill_tokens(Tokens tokens) { return tokens.size() - std::min(tokens.size(), kDecodeSteps); }

// Where the steps (chunks, then single tokens) begin, and where the last one ends.
std::vector<size_t> step_borders(Tokens tokens, int64_t chunk) {
  std::vector<size_t> borders{0};
  while (borders.back() < tokens.size()) {
    const size_t at = borders.back(), n_prefill = prefill_tokens(tokens);
    borders.push_back(at < n_prefill ? std::min(at + static_cast<size_t>(chunk), n_prefill) : at + 1);
  }
  return borders;
}

// Computes step `step`; returns the logits of its tokens.
std::vector<float> run_step(ByHand& sequence, Tokens tokens, const std::vector<size_t>& borders,
                            size_t step) {
  const size_t at = borders[step];
  if (at < prefill_tokens(tokens)) return sequence.all_logits(tokens.subspan(at, borders[step + 1] - at));
  sequence.step(tokens[at]);
  return sequence.logits();
}

// The logits of the decode steps: [n_steps, vocab_size].
std::vector<float> decode_logits(Engine& engine, Tokens tokens) {
  ByHand sequence(engine);
  const size_t n_prefill = prefill_tokens(tokens);
  if (n_prefill > 0) sequence.sync(tokens.first(n_prefill));
  std::vector<float> all;
  for (const int32_t token : tokens.subspan(n_prefill)) {
    sequence.step(token);
    all.insert(all.end(), sequence.logits().begin(), sequence.logits().end());
  }
  return all;
}

// Whether both are the same finite numbers.
bool are_equal(std::span<const float> a, std::span<const float> b) {
  return std::memcmp(a.data(), b.data(), a.size_bytes()) == 0 &&
         std::ranges::all_of(a, [](float x) { return std::isfinite(x); });
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

bool have_same_choice(std::span<const float> a, std::span<const float> b) {
  return std::ranges::max_element(a) - a.begin() == std::ranges::max_element(b) - b.begin();
}

// Both ascending.
double deviation(const std::vector<int32_t>& values, const std::vector<int32_t>& reference) {
  std::vector<int32_t> lacking;
  std::ranges::set_difference(reference, values, std::back_inserter(lacking));
  return static_cast<double>(lacking.size()) / static_cast<double>(reference.size());
}

// What the observer sees of the token at `pos` in each layer: observations of one row.
std::vector<Observation> observations_at(Engine& engine, Tokens tokens, const std::vector<size_t>& borders,
                                         size_t pos) {
  std::vector<Observation> rows;
  const size_t last = static_cast<size_t>(std::ranges::upper_bound(borders, pos) - borders.begin()) - 1;
  const auto row_of = [&](auto& values, int64_t width, int64_t n) {
    const auto first = values.begin() + static_cast<int64_t>(pos - borders[last]) * width;
    return std::decay_t<decltype(values)>(first, first + n);
  };
  const auto keep_row = [&](const Observation& seen) {
    Observation row{seen.name, seen.layer, 1, seen.width, {}, {}};
    // A token selects at most the positions up to its own; the rest of its row is undefined.
    const int64_t n_ints = std::min(seen.width, static_cast<int64_t>(pos) + 1);
    if (!seen.values.empty()) row.values = row_of(seen.values, seen.width, seen.width);
    if (!seen.ints.empty()) row.ints = row_of(seen.ints, seen.width, n_ints);
    rows.push_back(std::move(row));
  };
  ByHand sequence(engine);
  for (size_t step = 0; step < last; ++step) run_step(sequence, tokens, borders, step);
  engine.forward().set_observer(keep_row);
  run_step(sequence, tokens, borders, last);
  engine.forward().set_observer({});
  return rows;
}

void locate(Deviation& found, const std::vector<Observation>& rows,
            const std::vector<Observation>& reference) {
  for (size_t i = 0; i < std::min(rows.size(), reference.size()); ++i) {
    const double d = reference[i].ints.empty() ? deviation(rows[i].values, reference[i].values)
                                               : deviation(rows[i].ints, reference[i].ints);
    if (d <= kDeviationTolerance) continue;
    found.layer = reference[i].layer, found.name = reference[i].name, found.deviation = d;
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
    found.n_same_choice += have_same_choice(row, expected);
    if (d > found.largest) found.largest = d, found.largest_pos = static_cast<int64_t>(pos);
    if (d > kDeviationTolerance && found.first_pos < 0) found.first_pos = static_cast<int64_t>(pos);
  }
}

// The share of each decode step's attention that falls on the selected rows, from what an observer sees.
// Of steps, only those of decode show "q_c".
class KeptWeight {
 public:
  static inline const std::vector<std::string> kNames{"c", "kv", "q", "q_c", "n_selected", "selected"};
  explicit KeptWeight(const ModelArgs& args) : args_(args), rows_(static_cast<size_t>(args.n_layers)) {}

  void see(const Observation& seen) {
    const std::string name = seen.name;
    if (name == "c") c_ = seen.values;
    if (name == "kv") add_rows(seen);
    if (name == "q") q_ = seen.values;
    if (name == "n_selected") n_selected_ = seen.ints.front();
    if (name == "selected") selected_ = seen.ints;
    if (name == "q_c") count(rows_[static_cast<size_t>(seen.layer)], seen.values);
  }
  double mean() const { return sum_ / static_cast<double>(n_); }
  double least() const { return least_; }

 private:
  void add_rows(const Observation& seen) {
    std::vector<float>& rows = rows_[static_cast<size_t>(seen.layer)];
    const int64_t rank = args_.kv_lora_rank, rope_dim = args_.qk_rope_head_dim;
    for (int64_t t = 0; t < seen.n_tokens; ++t) {
      const float *c = c_.data() + t * rank, *k_pe = seen.values.data() + t * (rank + rope_dim) + rank;
      rows.insert(rows.end(), c, c + rank), rows.insert(rows.end(), k_pe, k_pe + rope_dim);
    }
  }
  double score(const float* row, const float* q_c, const float* q_pe) const {
    double sum = 0;
    for (int64_t i = 0; i < args_.kv_lora_rank; ++i) sum += q_c[i] * row[i];
    for (int64_t i = 0; i < args_.qk_rope_head_dim; ++i) sum += q_pe[i] * row[args_.kv_lora_rank + i];
    return sum * args_.softmax_scale();
  }
  void count(const std::vector<float>& rows, const std::vector<float>& q_c) {
    const int64_t width = args_.kv_lora_rank + args_.qk_rope_head_dim, n_rows = std::ssize(rows) / width;
    double kept = 0;
    for (int64_t h = 0; h < args_.n_heads; ++h) {
      const float* q_pe = q_.data() + h * args_.qk_head_dim() + args_.qk_nope_head_dim;
      std::vector<double> weights;
      for (int64_t row = 0; row < n_rows; ++row)
        weights.push_back(score(rows.data() + row * width, q_c.data() + h * args_.kv_lora_rank, q_pe));
      const double largest = *std::ranges::max_element(weights);
      double all = 0, of_selected = 0;
      for (double& weight : weights) all += weight = std::exp(weight - largest);
      for (int32_t i = 0; i < n_selected_; ++i)
        of_selected += weights[static_cast<size_t>(selected_[static_cast<size_t>(i)])];
      kept += of_selected / all / static_cast<double>(args_.n_heads);
    }
    sum_ += kept, ++n_, least_ = std::min(least_, kept);
  }

  const ModelArgs& args_;
  std::vector<std::vector<float>> rows_;  // [n_layers][positions, kv_lora_rank + qk_rope_head_dim]
  std::vector<float> c_, q_;              // of the running layer
  std::vector<int32_t> selected_;
  int32_t n_selected_ = 0;
  double sum_ = 0, least_ = 1;
  int64_t n_ = 0;
};

double log_probability(std::span<const float> logits, int32_t token) {
  const float largest = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - largest);
  return static_cast<double>(logits[static_cast<size_t>(token)]) - largest - std::log(sum);
}

}  // namespace

DecodeEquality compare_decode(const GgufFile& file, const EngineOptions& options,
                              const EngineOptions& reference, Tokens tokens) {
  DecodeEquality found;
  size_t width = 0;
  const auto run = [&](const EngineOptions& wanted) {
    Engine engine(file, wanted);
    width = static_cast<size_t>(engine.args().vocab_size);
    std::vector<float> logits = decode_logits(engine, tokens);
    if (&wanted == &options) found.tally = engine.forward().buffer_tally();
    return logits;
  };
  const std::vector<float> ours = run(options), expected = run(reference);
  found.n_steps = static_cast<int64_t>(ours.size() / width);
  for (size_t at = 0; at < ours.size() && found.first_unequal_pos < 0; at += width)
    if (!are_equal(std::span(ours).subspan(at, width), std::span(expected).subspan(at, width)))
      found.first_unequal_pos = static_cast<int64_t>(prefill_tokens(tokens) + at / width);
  return found;
}

SelectionLoss compare_selection(const GgufFile& file, const EngineOptions& options, Tokens tokens) {
  EngineOptions dense = options;
  dense.select = SelectPolicy::all, dense.quest_rows.reset(), dense.topk_buffer.reset();
  std::vector<float> expected;
  {
    Engine engine(file, dense);
    expected = decode_logits(engine, tokens);
  }
  Engine engine(file, options);
  KeptWeight kept(engine.args());
  engine.forward().set_observer([&](const Observation& seen) { kept.see(seen); }, KeptWeight::kNames);
  const std::vector<float> all = decode_logits(engine, tokens);
  engine.forward().set_observer({});
  const size_t n_prefill = prefill_tokens(tokens), width = static_cast<size_t>(engine.args().vocab_size);
  SelectionLoss found{.kept = kept.mean(), .least_kept = kept.least()};
  for (size_t i = n_prefill; i < tokens.size(); ++i) {
    const std::span<const float> ours = std::span(all).subspan((i - n_prefill) * width, width),
                                 theirs = std::span(expected).subspan((i - n_prefill) * width, width);
    ++found.n_steps;
    found.n_same_choice += have_same_choice(ours, theirs);
    if (i + 1 == tokens.size()) break;
    const double difference =
        std::fabs(log_probability(ours, tokens[i + 1]) - log_probability(theirs, tokens[i + 1]));
    found.mean_difference += difference / static_cast<double>(tokens.size() - n_prefill - 1);
    found.largest_difference = std::max(found.largest_difference, difference);
  }
  return found;
}

CutEquality compare_cuts(Engine& engine, Tokens tokens) {
  const auto n = std::ssize(tokens), n_held = n / 3;
  const auto in_steps = [&](int64_t n_step) {
    ByHand sequence(engine);
    for (int64_t end = std::min(n_step, n); end < n; end += n_step)
      sequence.sync(tokens.first(static_cast<size_t>(end)));
    sequence.sync(tokens);
    return sequence.logits();
  };
  const std::vector<float> expected = in_steps(n);
  CutEquality found;
  const auto add = [&](const std::string& way, const std::vector<float>& logits) {
    ++found.n_ways;
    if (found.first_unequal.empty() && !are_equal(logits, expected)) found.first_unequal = way;
  };
  for (const int64_t n_step : {64, 512})
    if (n_step < n) add(format("in steps of %lld", as_ll(n_step)), in_steps(n_step));
  ByHand sequence(engine);
  std::vector<int32_t> other(tokens.begin(), tokens.begin() + n_held);
  other.push_back(tokens[static_cast<size_t>(n_held)] == 0);  // a prompt that continues differently
  sequence.sync(other);
  sequence.sync(tokens);
  add(format("behind %lld held tokens", as_ll(n_held)), sequence.logits());
  sequence.sync(tokens);  // nothing is new: the last token is computed again
  add("with the last token alone", sequence.logits());
  return found;
}

Deviation compare_engines(Engine& engine, Engine& reference, Tokens tokens) {
  Deviation found;
  const std::vector<size_t> borders =
      step_borders(tokens, std::min(engine.plan().chunk, reference.plan().chunk));
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
    locate(found, observations_at(engine, tokens, borders, pos),
           observations_at(reference, tokens, borders, pos));
  }
  return found;
}

}  // namespace dsv32
