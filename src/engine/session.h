// One timeline: the tokens so far, with their rows in the cache, and the logits that follow the last of them.
//
// `sync` takes the whole wanted prefix and computes only what the session does not hold yet, so callers never
// think about what is cached. One thread at a time; at most one session uses an Engine's Forward at any
// moment.
#pragma once

#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "engine/engine.h"

namespace dsv32 {

class Session {
 public:
  explicit Session(Engine& engine);  // which must outlive it
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  const std::vector<int32_t>& tokens() const { return tokens_; }
  const Sequence& sequence() const { return *sequence_; }
  int64_t context_left() const {
    return engine_.plan().cache.max_tokens - static_cast<int64_t>(tokens_.size());
  }

  // Called after each chunk: of n_total tokens n_done are there, n_held of them from before. Returning false
  // stops at that border, and what is done is kept.
  using Progress = std::function<bool(int64_t n_done, int64_t n_total, int64_t n_held)>;

  // Makes the session hold exactly `tokens` (at least one), with the logits of the last; what it computes of
  // them is prefill. Returns how many were held already or known from elsewhere, or -1 when `progress`
  // stopped it. Of them and what follows, the first n_reusable are remembered for others, up to the first
  // that prefill would have computed to other bits. Throws Error{context_full} with the counts, Error{model}
  // for ids outside the vocabulary.
  int64_t sync(std::span<const int32_t> tokens, const Progress& progress = {},
               int64_t n_reusable = std::numeric_limits<int64_t>::max());

  // Why sync() knew no token from elsewhere, as half a sentence; empty: it did.
  const char* why_none_cached() const {
    const PrefixCache* prefixes = engine_.prefix_cache();
    return prefixes ? prefixes->why_none() : "the prefix cache is off";
  }

  // Appends one token: a decode step.
  void step(int32_t token);

  // Says that no step follows for now: what the steps appended is remembered.
  void rest();

  // Says that the logits make no sense: the prefix that led to them may be damaged in a way that no checksum
  // shows, and is not kept.
  void distrust();

  // [vocab_size] of the last token, downloaded when first asked for. Like device_logits(), only until another
  // session of the engine computes.
  const std::vector<float>& logits();
  // The same in the backend's memory, for Sampler; until the next step.
  std::span<const float> device_logits() const;
  Backend& backend() { return engine_.backend(); }

  // Appends `tokens` as a prompt's and returns the logits of every one of them, [n, vocab_size]: for
  // comparison with other programs.
  std::vector<float> all_logits(std::span<const int32_t> tokens);

 private:
  void check(std::span<const int32_t> tokens) const;
  void remember();
  void extend(std::span<const int32_t> tokens, Role role, bool wants_all_logits);

  Engine& engine_;
  std::unique_ptr<Sequence> sequence_;
  std::vector<int32_t> tokens_;
  int64_t n_reusable_ = 0;
  int64_t n_as_prefilled_ = 0;  // from the front: with the bits that prefill gives them
  std::vector<float> logits_;   // of the last token; empty until asked for
};

}  // namespace dsv32
