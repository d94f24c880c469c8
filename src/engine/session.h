// One timeline of the engine's cache, and what is remembered of it for others.
//
// A prompt is taken as the whole wanted prefix, of which only what the session does not hold yet is computed,
// so callers never think about what is cached. The loop drives sessions by hold() and read_chunk(); who has
// the engine for itself (a measurement, a comparison, a test) drives one by hand with sync() and step(). One
// thread at a time.
#pragma once

#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/engine.h"

namespace dsv32 {

// Throws Error{context_full} with the counts when the tokens are more than a context holds, Error{usage} when
// there is none and for ids outside the vocabulary.
void check_prompt(int64_t vocab_size, int64_t context, std::span<const int32_t> tokens);
void check_prompt(const Engine& engine, std::span<const int32_t> tokens);

class Session {
 public:
  explicit Session(Engine& engine);  // which must outlive it
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  Timeline& timeline() { return *timeline_; }
  const Timeline& timeline() const { return *timeline_; }
  const std::vector<int32_t>& tokens() const { return timeline_->tokens(); }
  int64_t context_left() const { return engine_.plan().cache.max_context - timeline_->n_tokens(); }
  Loop& loop() { return engine_.loop(); }

  // hold() of this prompt would not wait for the disk, which is asked for it. The same prompt until hold().
  bool is_ready(std::span<const int32_t> prompt, std::span<const TokenRun> decoded = {});
  // Forgets what does not belong to `prompt` (at least one token) and brings in what is known of it from
  // elsewhere: of the tokens in the runs rows that decode made, of the others rows that prefill made. Returns
  // how many of its tokens are held, never the last. Of the prompt and what follows, the first n_reusable
  // tokens are remembered for others. Throws as check_prompt() does.
  int64_t hold(std::span<const int32_t> prompt, int64_t n_reusable = std::numeric_limits<int64_t>::max(),
               std::span<const TokenRun> decoded = {});
  // Computes the next chunk of a prompt that hold() was called with; on several devices it may be under way
  // until the next ones (Forward). Returns how many of its tokens are held then; with all of them, the logits
  // are those of its last token.
  int64_t read_chunk(std::span<const int32_t> prompt);

  // Called after each chunk: of n_total tokens n_done are there, n_held of them from before. Returning false
  // stops at that border, and what is done is kept.
  using Progress = std::function<bool(int64_t n_done, int64_t n_total, int64_t n_held)>;

  // hold() and all chunks. Returns what hold() did, or -1 when `progress` stopped it.
  int64_t sync(std::span<const int32_t> prompt, const Progress& progress = {},
               int64_t n_reusable = std::numeric_limits<int64_t>::max());

  // Why hold() knew no token from elsewhere, as half a sentence; empty: it did.
  const char* why_none_cached() const {
    const PrefixCache* prefixes = engine_.prefix_cache();
    return prefixes ? prefixes->why_none() : "the prefix cache is off";
  }

  // Appends one token: a decode step.
  void step(int32_t token);

  // Gives its place on the device to others, and takes one again: no step in between. Throws as
  // LatentCache::resume() does.
  void suspend();
  void resume();

  // Says that no step follows for now: what the steps appended is remembered.
  void rest();

  // Of the tokens that are remembered for others, those whose rows decode made with other bits than prefill:
  // what hold() of another session, or of another process, finds them by.
  std::vector<TokenRun> decoded() const;

  // Says that the logits make no sense: the prefix that led to them may be damaged in a way that no checksum
  // shows, and is not kept.
  void distrust();

  // [vocab_size] of the last token, downloaded when first asked for. Like device_logits(), only until another
  // session computes.
  const std::vector<float>& logits();
  // The same in the backend's memory.
  const float* device_logits() const;

  // The likeliest token to follow, drawn where the logits are.
  int32_t likeliest();

  // Appends `tokens` as a prompt's and returns the logits of every one of them, [n, vocab_size]: for
  // comparison with other programs.
  std::vector<float> all_logits(std::span<const int32_t> tokens);

 private:
  void settle();  // nothing of the timeline is under way
  std::span<const int32_t> reusable() const;
  void remember();

  Engine& engine_;
  std::unique_ptr<Timeline> timeline_;
  int64_t n_reusable_ = 0;
  std::optional<uint64_t> waits_since_;  // PrefixCache::n_changes() when it was last told to wait its turn
  std::vector<float> logits_;            // of the last token, once they were asked for
  int64_t logits_end_ = -1;              // the session's length then
};

}  // namespace dsv32
