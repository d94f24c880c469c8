// Sequences that go along known tokens by steps that verify guesses, some of them wrong, beside the logits
// that each token gets alone.
#pragma once

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <memory>
#include <random>
#include <vector>

#include "engine/sequence.h"

namespace dsv32 {

using Logits = std::vector<float>;

// The tokens that follow a prompt, and the logits of each: one token a step, without guesses.
struct Truth {
  std::vector<int32_t> tokens;
  std::vector<Logits> logits;
};

inline Truth truth_of(Engine& engine, std::span<const int32_t> prompt, size_t n) {
  ByHand sequence(engine);
  sequence.sync(prompt);
  Truth truth;
  for (size_t i = 0; i < n; ++i) {
    const std::vector<float>& logits = sequence.logits();
    truth.tokens.push_back(static_cast<int32_t>(std::ranges::max_element(logits) - logits.begin()));
    sequence.step(truth.tokens.back());
    truth.logits.push_back(sequence.logits());
  }
  return truth;
}

// The most guesses that a sequence's buffer has room for.
inline int64_t guesses_with_room(const CachedSequence& cached, int64_t index_topk) {
  return cached.is_resident() ? kMostGuesses
                              : std::min(kMostGuesses, cached.n_slots() / (index_topk + 1) - 1);
}

// A sequence that goes along its truth by steps that verify guesses.
struct DraftWalk {
  const Truth& truth;
  ByHand sequence;
  size_t n_done = 0;
  std::vector<int32_t> guesses = {};
  size_t n_right = 0;

  DraftWalk(Engine& engine, std::span<const int32_t> prompt, const Truth& known)
      : truth(known), sequence(engine) {
    sequence.sync(prompt);
  }
  bool is_done() const { return n_done == truth.tokens.size(); }
  // Makes up to three guesses, at most n_most, of which some are right. Returns how many.
  int64_t make_guesses(std::minstd_rand& random, int64_t n_most) {
    const auto n = static_cast<size_t>(
        std::min({static_cast<int64_t>(random() % 4), n_most,
                  guesses_with_room(sequence.cached(), sequence.engine().args().index_topk),
                  static_cast<int64_t>(truth.tokens.size() - n_done) - 1}));
    n_right = n == 0 ? 0 : random() % (n + 1);
    guesses.clear();
    for (size_t i = 0; i < n; ++i)
      guesses.push_back(i < n_right ? truth.tokens[n_done + 1 + i] : static_cast<int32_t>(random() % 90));
    while (n_right < n && guesses[n_right] == truth.tokens[n_done + 1 + n_right]) ++n_right;
    return static_cast<int64_t>(n);
  }
};

using DraftWalks = std::vector<std::unique_ptr<DraftWalk>>;

// What the block guesses is not used here.
inline void run_guessing_steps(Forward& forward, const std::vector<DraftWalk*>& walking) {
  for (int64_t nth = 0; nth < kMostGuesses; ++nth) {
    std::vector<CachedSequence*> sequences;
    std::vector<int32_t> tokens;
    for (DraftWalk* walk : walking) {
      if (std::ssize(walk->guesses) <= nth) continue;
      sequences.push_back(&walk->sequence.cached());
      tokens.push_back(nth == 0 ? walk->truth.tokens[walk->n_done]
                                : walk->guesses[static_cast<size_t>(nth - 1)]);
    }
    if (!sequences.empty()) forward.guess(sequences, tokens, nth);
  }
}

// Verifies the walks' guesses in one step, checks the bits of each row up to the first wrong guess, and cuts
// off what is wrong.
inline void verify_guesses(Engine& engine, const std::vector<DraftWalk*>& walking) {
  const auto vocab_size = engine.args().vocab_size;
  Step step{Role::decode, {}, {}};
  for (DraftWalk* walk : walking) {
    step.tokens.push_back(walk->truth.tokens[walk->n_done]);
    step.tokens.insert(step.tokens.end(), walk->guesses.begin(), walk->guesses.end());
    step.sequences.resize(step.tokens.size(), &walk->sequence.cached());
  }
  engine.forward().run(step);
  const Logits logits = engine.forward().logits();
  std::vector<Stage::Cut> cuts;
  auto row = logits.begin();
  for (DraftWalk* walk : walking) {
    for (size_t i = 0; i <= walk->n_right; ++i) {
      const auto begin = row + static_cast<int64_t>(i) * vocab_size;
      BOOST_REQUIRE((Logits(begin, begin + vocab_size) == walk->truth.logits[walk->n_done + i]));
    }
    row += (std::ssize(walk->guesses) + 1) * vocab_size;
    walk->n_done += walk->n_right + 1;
    const auto n_wrong = static_cast<int64_t>(walk->guesses.size() - walk->n_right);
    CachedSequence& cached = walk->sequence.cached();
    if (n_wrong > 0) cuts.push_back({&cached, cached.n_tokens() - n_wrong});
  }
  engine.forward().cut(cuts);
}

// Goes along to the end, all sequences together. Guessing steps of the block come between. Returns the most
// tokens of a verifying step.
inline int64_t check_walks(Engine& engine, const DraftWalks& walks, std::minstd_rand& random) {
  int64_t most_tokens = 0;
  for (;;) {
    std::vector<DraftWalk*> walking;
    for (const auto& walk : walks)
      if (!walk->is_done()) walking.push_back(walk.get());
    if (walking.empty()) return most_tokens;
    int64_t n_left = CachePlan::kMostStepGuesses;
    for (DraftWalk* walk : walking) {
      CachedSequence& cached = walk->sequence.cached();
      engine.cache().reserve(cached, cached.n_tokens() + 1 + kMostGuesses);
      n_left -= walk->make_guesses(random, n_left);
    }
    most_tokens = std::max(most_tokens, std::ssize(walking) + CachePlan::kMostStepGuesses - n_left);
    run_guessing_steps(engine.forward(), walking);
    verify_guesses(engine, walking);
  }
}

}  // namespace dsv32
