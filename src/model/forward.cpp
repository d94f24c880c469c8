#include "model/forward.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace dsv32 {
namespace {

constexpr double kPi = 3.14159265358979323846;

constexpr int64_t kMostRecorded = 8;  // tokens of a decode step that is recorded

}  // namespace

std::vector<float> rope_frequencies(const ModelArgs& args) {
  const int64_t dim = args.qk_rope_head_dim;
  const float theta = args.rope_theta;
  // The pair index at which a wave turns `n_turns` times over the original context.
  const auto correction_dim = [&](float n_turns) {
    return static_cast<double>(dim) *
           std::log(static_cast<double>(args.original_seq_len) / (static_cast<double>(n_turns) * 2 * kPi)) /
           (2 * std::log(static_cast<double>(theta)));
  };
  std::vector<float> frequencies(static_cast<size_t>(dim / 2));
  for (size_t i = 0; i < frequencies.size(); ++i)
    frequencies[i] = 1.0f / std::pow(theta, static_cast<float>(2 * i) / static_cast<float>(dim));
  if (args.rope_factor == 1.0f) return frequencies;
  const float low = static_cast<float>(std::max(std::floor(correction_dim(args.beta_fast)), 0.0));
  float high =
      static_cast<float>(std::min(std::ceil(correction_dim(args.beta_slow)), static_cast<double>(dim - 1)));
  if (low == high) high += 0.001f;
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const float ramp = std::clamp((static_cast<float>(i) - low) / (high - low), 0.0f, 1.0f);
    frequencies[i] = frequencies[i] / args.rope_factor * ramp + frequencies[i] * (1 - ramp);
  }
  return frequencies;
}

uint64_t Forward::logit_bytes(const ModelArgs& args) {
  return static_cast<uint64_t>(args.vocab_size * (kMostRecorded + 1)) * sizeof(float);
}

Forward::Forward(Backend& backend, const ModelArgs& args, const Weights& weights, LatentCache& cache,
                 int64_t max_tokens, int64_t max_context)
    : backend_(backend),
      args_(args),
      weights_(weights),
      cache_(cache),
      act_(backend, args, max_tokens, max_context),
      recordings_(backend) {
  const std::vector<float> frequencies = rope_frequencies(args);
  frequencies_ =
      Buffer<float>(backend, Place::device, static_cast<int64_t>(frequencies.size()), "rope frequencies");
  backend.upload(frequencies_.data(), frequencies.data(), frequencies_.n_bytes());
  decode_logits_ = Buffer<float>(backend, Place::device, args.vocab_size * kMostRecorded, "logits");
}

// A decode step's largest position is rounded up, so that one record serves thousands of steps: operations
// look at the true positions in memory. It stays below top-k while every visible row is selected.
int64_t Forward::recordable_max_pos(int64_t max_pos) const {
  constexpr int64_t kStepsOfARecord = 4096;
  const int64_t rounded = max_pos / kStepsOfARecord * kStepsOfARecord + kStepsOfARecord - 1;
  const int64_t last = act_.max_context - 1;
  if (args_.has_indexer() && max_pos < args_.index_topk) return std::min(args_.index_topk - 1, last);
  return std::min(rounded, last);
}

void Forward::run(const Step& step) {
  // One upload: tokens | positions | sequences.
  const size_t n = step.tokens.size();
  std::vector<int32_t> ints(step.tokens);
  ints.insert(ints.end(), step.pos.begin(), step.pos.end());
  ints.insert(ints.end(), step.seq.begin(), step.seq.end());
  backend_.upload(act_.step_ints.data(), ints.data(), ints.size() * sizeof(int32_t));
  const bool is_decode = step.role == Role::decode;
  if (is_decode && step.sequences.size() != n)
    fail(ErrorKind::internal,
         format("a decode step of %zu tokens for %zu sequences", n, step.sequences.size()));
  const int64_t max_pos = *std::ranges::max_element(step.pos);
  step_ = {step.n_tokens(),
           static_cast<int64_t>(step.sequences.size()),
           is_decode ? recordable_max_pos(max_pos) : max_pos,
           act_.step_ints.data(),
           act_.step_ints.data() + n,
           act_.step_ints.data() + 2 * n,
           step.role};
  cache_.begin_step(step.sequences, is_decode);
  n_logits_ = step_.n_tokens - step.first_logits;
  const bool is_small = is_decode && step_.n_tokens <= kMostRecorded;
  if (!is_small && many_logits_.n() < n_logits_ * args_.vocab_size)
    many_logits_ = Buffer<float>(backend_, Place::device, n_logits_ * args_.vocab_size, "logits");
  logits_ = is_small ? decode_logits_.data() : many_logits_.data();
  if (score_rule_) pos_ = step.pos;
  const bool is_recorded = is_small && step.first_logits == 0 && !observer_ && !score_rule_;
  if (!is_recorded) return run_layers();
  recordings_.run({step_.n_tokens, step_.max_pos, forced_selection()}, [&] { run_layers(); });
}

// The step's, if it has one.
const int32_t* Forward::forced_selection() const { return step_.n_tokens == 1 ? forced_selection_ : nullptr; }

void Forward::run_layers() {
  backend_.embed({step_, weights_.embed, act_.h.data()});
  for (layer_ = 0; layer_ < args_.n_layers; ++layer_) run_layer(layer_);
  backend_.rms_norm({act_.h.data() + (step_.n_tokens - n_logits_) * args_.dim, args_.dim,
                     weights_.norm.data(), args_.norm_eps, act_.x.data(), n_logits_, args_.dim});
  backend_.matmul({weights_.head, act_.x.data(), args_.dim, logits_, n_logits_, step_.role});
}

// h += MLA(RMSNorm(h));  h += FFN(RMSNorm(h))
void Forward::run_layer(int64_t layer) {
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const int64_t n_values = step_.n_tokens * args_.dim;
  const auto norm = [&](const Vector& weight) {
    backend_.rms_norm(
        {act_.h.data(), args_.dim, weight.data(), args_.norm_eps, act_.x.data(), step_.n_tokens, args_.dim});
  };
  norm(w.attn_norm);
  observe("attn_norm", act_.x.data(), args_.dim);
  attention(layer);
  observe("attention_out", act_.out.data(), args_.dim);
  backend_.add({act_.out.data(), act_.h.data(), n_values});

  norm(w.ffn_norm);
  observe("ffn_norm", act_.x.data(), args_.dim);
  feed_forward(layer);
  observe("ffn_out", act_.out.data(), args_.dim);
  backend_.add({act_.out.data(), act_.h.data(), n_values});
  observe("h", act_.h.data(), args_.dim);
}

std::vector<float> Forward::logits() const {
  std::vector<float> values(static_cast<size_t>(n_logits_ * args_.vocab_size));
  backend_.download(values.data(), logits_, values.size() * sizeof(float));
  return values;
}

Forward::BufferTally Forward::buffer_tally() const {
  int64_t counts[2] = {};
  backend_.download(counts, act_.tally.data(), sizeof counts);
  return {counts[0], counts[1]};
}

// y = weight @ x for the step's tokens; x and y are dense.
void Forward::matmul(const WeightMatrix& weight, const Buffer<float>& x, const Buffer<float>& y) {
  backend_.matmul({weight, x.data(), weight.n_cols, y.data(), step_.n_tokens, step_.role});
}

bool Forward::is_observed(const char* stage) const {
  return observer_ && (observed_stages_.empty() || std::ranges::count(observed_stages_, stage) > 0);
}

void Forward::observe(const char* stage, const float* values, int64_t width) {
  if (!is_observed(stage)) return;
  Observation seen{stage, layer_, step_.n_tokens, width, {}, {}};
  seen.values.resize(static_cast<size_t>(step_.n_tokens * width));
  backend_.download(seen.values.data(), values, seen.values.size() * sizeof(float));
  observer_(seen);
}

void Forward::observe_ints(const char* stage, const int32_t* ints, int64_t width) {
  if (!is_observed(stage)) return;
  Observation seen{stage, layer_, step_.n_tokens, width, {}, {}};
  seen.ints.resize(static_cast<size_t>(step_.n_tokens * width));
  backend_.download(seen.ints.data(), ints, seen.ints.size() * sizeof(int32_t));
  observer_(seen);
}

}  // namespace dsv32
