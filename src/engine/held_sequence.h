// A sequence that the cache holds: its prompt, read in chunks, and which of its prefixes later requests may
// reuse; and ByHand, one that is driven step by step, without a request.
//
// A prompt is always given whole, and only the tokens that the cache lacks are computed. One thread at a
// time.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/engine.h"

namespace dsv32 {

// A sequence of the engine's cache that closes itself.
struct CloseSequence {
  Engine* engine = nullptr;
  void operator()(CachedSequence* sequence) const;
};
using OpenSequence = std::unique_ptr<CachedSequence, CloseSequence>;

class HeldSequence {
 public:
  explicit HeldSequence(Engine& engine) : engine_(engine) {}  // which must outlive it
  HeldSequence(const HeldSequence&) = delete;
  HeldSequence& operator=(const HeldSequence&) = delete;

  Engine& engine() const { return engine_; }

  // Takes `cached`, or opens an empty one. Throws as LatentCache::open() does.
  void enter(OpenSequence cached = {});
  OpenSequence leave() { return std::move(cached_); }
  bool is_cached() const { return cached_ != nullptr; }

  CachedSequence& cached() { return *cached_; }
  const CachedSequence& cached() const { return *cached_; }
  const std::vector<int32_t>& tokens() const { return cached_->tokens(); }
  int64_t context_left() const { return engine_.plan().cache.max_context - cached_->n_tokens(); }

  // Whether hold() of this prompt would not wait for the disk; begins to read its pages. Takes the same
  // prompt at each call until hold().
  bool is_ready(std::span<const int32_t> prompt, std::span<const TokenRun> decoded = {});
  // Whether what is read from the disk may be for it.
  bool uses_disk() const { return uses_disk_; }
  // Forgets tokens that do not belong to `prompt` (at least one token) and restores its known prefix: for the
  // tokens in the runs `decoded` rows that decode made, for the others rows that prefill made. Returns how
  // many of the prompt's tokens are held, never the last. Of the prompt and what follows, the first
  // n_reusable tokens are remembered for others. Throws as check_prompt() does.
  int64_t hold(std::span<const int32_t> prompt, int64_t n_reusable = std::numeric_limits<int64_t>::max(),
               std::span<const TokenRun> decoded = {});
  // Why hold() restored nothing, as half a sentence; empty: it restored some.
  const char* why_none_cached() const;
  // Computes the next chunk of a prompt that hold() was called with: its next n tokens, or those that are
  // left. On several devices a chunk may be under way until the next ones (Forward). Returns how many of the
  // prompt's tokens are held then; once all are, the logits are the last token's.
  int64_t read_chunk(std::span<const int32_t> prompt, int64_t n);
  // Shrinks its buffer to the fewest slots, or makes it whole. Throws as LatentCache::set_most_slots() does.
  void set_shrunk(bool shrunk);
  bool is_shrunk() const { return is_shrunk_; }
  // Remembers what the steps appended. Called when no step follows for now.
  void save_prefix();
  // Of the tokens that are remembered for others, the runs whose rows decode made with other bits than
  // prefill. hold() of another sequence, or in another process, needs them to find these tokens.
  std::vector<TokenRun> decoded() const;
  // The logits are not finite: removes the prefix, which may be damaged in a way that no checksum shows.
  void discard_prefix();

 private:
  void await_chunks();  // waits until no chunk of it is under way
  std::span<const int32_t> reusable() const;
  void remember();

  Engine& engine_;
  OpenSequence cached_;
  bool is_shrunk_ = false;  // its buffer has the fewest slots
  int64_t n_reusable_ = 0;
  std::optional<uint64_t> waits_since_;  // PrefixCache::n_changes() when it was last told to wait its turn
  bool uses_disk_ = false;
};

// A sequence that has the engine for itself: for measurements, comparisons and tests.
class ByHand : public HeldSequence {
 public:
  explicit ByHand(Engine& engine) : HeldSequence(engine) { enter(); }  // which must outlive it

  // hold() and all chunks. Returns hold()'s result.
  int64_t sync(std::span<const int32_t> prompt);
  // Appends one token: a decode step.
  void step(int32_t token);
  // [vocab_size] of the last token, until another sequence computes; valid until the next call.
  const std::vector<float>& logits();
  // Prefills `tokens` and returns the logits of every one of them, [n, vocab_size].
  std::vector<float> all_logits(std::span<const int32_t> tokens);

 private:
  std::vector<float> logits_;
};

}  // namespace dsv32
