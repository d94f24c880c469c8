// Several sequences of different length: their prompts are prefilled in turn, in random chunks, then they
// decode in the same steps. Tests compare each sequence's logits with those that it gets alone.
#pragma once

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "gguf/random_weights.h"
#include "model/forward.h"
#include "tests/support/load_weights.h"
#include "tests/support/tiny_sequence.h"

namespace dsv32 {

struct Company {
  int64_t n_seqs = 3, n_decoded = 40;
  int64_t shortest = 31, longest = 100;  // of the prompts
  int64_t buffer_rows = 0;
  bool is_apart = false;
  int64_t quest_topk = 0;  // 0: the model's indexer selects
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
  const ModelArgs of_file = read_model_args(file).without_draft(),
                  args = company.quest_topk ? of_file.with_quest(company.quest_topk) : of_file;
  const Weights weights = load_weights(file, args, backend);
  const int64_t context = company.longest + company.n_decoded, n_seqs = company.n_seqs;
  CachePlan plan;
  plan.layout = {KvType::fp8, args.kv_lora_rank, args.qk_rope_head_dim, args.index_head_dim,
                 args.selector() == Selector::quest};
  plan.is_apart = company.is_apart, plan.n_layers = args.n_layers, plan.max_seqs = n_seqs;
  plan.max_context = context, plan.pool_tokens = n_seqs * (context + kPageTokens);
  plan.buffer_rows = company.buffer_rows;
  const StageLayers stage{&backend, args.n_layers};
  LatentCache cache({&stage, 1}, plan);
  Forward forward({&stage, 1}, args, std::span(&weights, 1), cache, StageSizes{kMaxTokens, context});
  std::vector<std::unique_ptr<CachedSequence>> sequences;
  std::vector<std::vector<int32_t>> tokens;
  for (int64_t s = 0; s < n_seqs; ++s) sequences.push_back(cache.open()), tokens.push_back(company.tokens(s));
  CompanyLogits logits{std::vector<std::vector<float>>(static_cast<size_t>(n_seqs))};
  // The rows of the last step's logits, in turn for these sequences.
  const auto keep = [&](const std::vector<size_t>& some, int64_t n_each) {
    const std::vector<float> all = forward.logits();
    auto next = all.begin();
    for (const size_t s : some) {
      logits.of[s].insert(logits.of[s].end(), next, next + n_each * args.vocab_size);
      next += n_each * args.vocab_size;
    }
  };
  Rng rng(company.seed);
  std::vector<size_t> reading(static_cast<size_t>(n_seqs));
  std::iota(reading.begin(), reading.end(), 0);
  const std::vector<size_t> everyone = reading;
  while (!reading.empty()) {
    const size_t s = reading[rng.next() % reading.size()];
    const int64_t held = sequences[s]->n_tokens(), n_left = company.n_prompt(static_cast<int64_t>(s)) - held;
    const int64_t n = std::min(n_left, 1 + static_cast<int64_t>(rng.next() % 80));
    const auto first = tokens[s].begin() + held;
    forward.run({Role::prefill, {sequences[s].get()}, {first, first + n}, n});
    keep({s}, n);
    if (n == n_left) std::erase(reading, s);
  }
  for (int64_t i = 0; i < company.n_decoded; ++i) {
    Step step{Role::decode, {}, {}};
    for (const size_t s : everyone) {
      step.tokens.push_back(tokens[s][static_cast<size_t>(sequences[s]->n_tokens())]);
      step.sequences.push_back(sequences[s].get());
    }
    forward.run(step);
    keep(everyone, 1);
  }
  logits.n_misses = forward.buffer_tally().n_misses;
  for (const auto& sequence : sequences) cache.close(*sequence);
  return logits;
}

// The logits of every token of one sequence: the first n_prompt as one prompt, the others decoded.
inline std::vector<float> run_alone(Engine& engine, std::span<const int32_t> tokens, int64_t n_prompt) {
  ByHand sequence(engine);
  std::vector<float> logits;
  if (n_prompt > 0) logits = sequence.all_logits(tokens.first(static_cast<size_t>(n_prompt)));
  for (const int32_t token : tokens.subspan(static_cast<size_t>(n_prompt))) {
    sequence.step(token);
    logits.insert(logits.end(), sequence.logits().begin(), sequence.logits().end());
  }
  return logits;
}

}  // namespace dsv32
