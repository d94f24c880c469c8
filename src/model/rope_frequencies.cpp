#include "model/rope_frequencies.h"

#include <algorithm>
#include <cmath>

namespace dsv32 {
namespace {

constexpr double kPi = 3.14159265358979323846;

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

}  // namespace dsv32
