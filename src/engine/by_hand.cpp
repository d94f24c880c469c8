#include "engine/by_hand.h"

#include <algorithm>

namespace dsv32 {

ByHand::ByHand(Engine& engine) : Sequence(engine) { enter(); }

int64_t ByHand::sync(std::span<const int32_t> prompt) {
  const int64_t n = hold(prompt);
  while (read_chunk(prompt) < std::ssize(prompt)) continue;
  return n;
}

void ByHand::step(int32_t token) {
  engine_.check_prompt({&token, 1});
  engine_.compute({Role::decode, {{&timeline(), {&token, 1}, 1}}});
}

const std::vector<float>& ByHand::logits() {
  logits_.resize(static_cast<size_t>(engine_.args().vocab_size));
  engine_.forward().last_backend().download(logits_.data(), device_logits(), logits_.size() * sizeof(float));
  return logits_;
}

const float* ByHand::device_logits() const {
  return engine_.forward().logits_row(engine_.forward().n_logits() - 1);
}

int32_t ByHand::likeliest() {
  const SampleRule greedy{.temperature = 0};
  return engine_.sampler().sample(device_logits(), engine_.args().vocab_size, {&greedy, 1}).front().chosen.id;
}

std::vector<float> ByHand::all_logits(std::span<const int32_t> tokens) {
  engine_.check_prompt(tokens);
  std::vector<float> all;
  const auto chunk = static_cast<size_t>(engine_.forward().max_tokens());
  for (size_t begin = 0; begin < tokens.size(); begin += chunk) {
    const std::span<const int32_t> some = tokens.subspan(begin, std::min(chunk, tokens.size() - begin));
    engine_.compute({Role::prefill, {{&timeline(), some, std::ssize(some)}}});
    const std::vector<float> logits = engine_.forward().logits();
    all.insert(all.end(), logits.begin(), logits.end());
  }
  return all;
}

}  // namespace dsv32
