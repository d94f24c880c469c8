// Several sequences of different length in the same steps: prefilled together in random chunks, then decoded
// together. Tests compare each sequence's logits with those that it gets alone.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "gguf/random_weights.h"
#include "model/forward.h"
#include "tests/support/tiny_session.h"

namespace dsv32 {

struct Company {
  int64_t n_seqs = 3, n_decoded = 40;
  int64_t shortest = 31, longest = 100;  // of the prompts
  int64_t buffer_rows = 0;
  bool is_apart = false;
  uint64_t seed = 1;

  int64_t n_prompt(int64_t s) const {
    return n_seqs == 1 ? longest : longest - (longest - shortest) * s / (n_seqs - 1);
  }
  // Prompt and decoded tokens of sequence s.
  std::vector<int32_t> tokens(int64_t s) const {
    return random_tokens(n_prompt(s) + n_decoded, seed + static_cast<uint64_t>(s));
  }
};

// The logits of every token of each sequence, and how often buffers lacked a row.
struct CompanyLogits {
  std::vector<std::vector<float>> of;  // [n_seqs]
  int64_t n_misses = 0;
};

inline CompanyLogits run_together(Backend& backend, const GgufFile& file, const Company& company) {
  constexpr int64_t kMaxTokens = 512;
  const ModelArgs args = read_model_args(file);
  const Weights weights = load_weights(file, args, backend);
  const int64_t context = company.longest + company.n_decoded, n_seqs = company.n_seqs;
  CachePlan plan;
  plan.layout = {KvType::fp8, args.kv_lora_rank, args.qk_rope_head_dim, args.index_head_dim};
  plan.is_apart = company.is_apart, plan.n_layers = args.n_layers,
  plan.max_seqs = plan.streamed_seqs = n_seqs;
  plan.max_context = context, plan.pool_tokens = n_seqs * (context + kPageTokens);
  plan.buffer_rows = company.buffer_rows;
  const StageLayers stage{&backend, args.n_layers};
  LatentCache cache({&stage, 1}, plan);
  Forward forward({&stage, 1}, args, weights, cache, StageSizes{kMaxTokens, context});
  std::vector<std::unique_ptr<Timeline>> timelines;
  std::vector<std::vector<int32_t>> tokens;
  for (int64_t s = 0; s < n_seqs; ++s) timelines.push_back(cache.open()), tokens.push_back(company.tokens(s));
  CompanyLogits logits{std::vector<std::vector<float>>(static_cast<size_t>(n_seqs))};
  std::vector<int64_t> at(static_cast<size_t>(n_seqs));
  // Runs a step that extends each timeline s to ends[s] tokens.
  const auto run = [&](const std::vector<int64_t>& ends, Role role) {
    Step step{role, {}};
    for (size_t s = 0; s < ends.size(); ++s) {
      const int64_t n = ends[s] - at[s];
      if (n == 0) continue;
      cache.reserve(*timelines[s], ends[s]);
      const auto part = std::span(tokens[s]).subspan(static_cast<size_t>(at[s]), static_cast<size_t>(n));
      step.parts.push_back({timelines[s].get(), part, n});
    }
    forward.run(step);
    for (const StepPart& part : step.parts) cache.append(*part.timeline, part.tokens);
    const std::vector<float> all = forward.logits();
    auto next = all.begin();
    for (size_t s = 0; s < ends.size(); ++s) {
      const auto end = next + (ends[s] - at[s]) * args.vocab_size;
      logits.of[s].insert(logits.of[s].end(), next, end);
      next = end, at[s] = ends[s];
    }
  };
  Rng rng(company.seed);
  const auto is_prefilled = [&] {
    for (int64_t s = 0; s < n_seqs; ++s)
      if (at[static_cast<size_t>(s)] < company.n_prompt(s)) return false;
    return true;
  };
  while (!is_prefilled()) {
    std::vector<int64_t> ends = at;
    int64_t n_left = kMaxTokens;
    for (int64_t s = 0; s < n_seqs; ++s) {
      int64_t& end = ends[static_cast<size_t>(s)];
      const int64_t n = std::min({company.n_prompt(s) - end, static_cast<int64_t>(rng.next() % 80), n_left});
      end += n, n_left -= n;
    }
    if (ends != at) run(ends, Role::prefill);
  }
  for (int64_t i = 0; i < company.n_decoded; ++i) {
    std::vector<int64_t> ends = at;
    for (int64_t& end : ends) ++end;
    run(ends, Role::decode);
  }
  logits.n_misses = forward.buffer_tally().n_misses;
  for (const auto& timeline : timelines) cache.close(*timeline);
  return logits;
}

// The logits of every token of one sequence: the first n_prompt as one prompt, the others decoded.
inline std::vector<float> run_alone(Engine& engine, std::span<const int32_t> tokens, int64_t n_prompt) {
  ByHand session(engine);
  std::vector<float> logits;
  if (n_prompt > 0) logits = session.all_logits(tokens.first(static_cast<size_t>(n_prompt)));
  for (const int32_t token : tokens.subspan(static_cast<size_t>(n_prompt))) {
    session.step(token);
    logits.insert(logits.end(), session.logits().begin(), session.logits().end());
  }
  return logits;
}

}  // namespace dsv32
