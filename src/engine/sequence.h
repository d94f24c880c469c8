// A sequence: what the cache holds of it, which of its prefixes later requests may reuse, and the request
// that it answers; and ByHand, a sequence that is driven step by step, without a request.
//
//   waits_for_room -> waits_for_disk -> reads_prompt -> decodes -> is_done
//
// The loop decides when each phase comes; the sequence carries it out and tells the request's listener. The
// sequence computes the chunks of its prompt; the loop runs the steps of several sequences, and draws. A
// prompt is always given whole, and only the tokens that the cache lacks are computed. One thread at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/draft_pace.h"
#include "engine/engine.h"
#include "engine/request.h"
#include "engine/scheduler.h"
#include "text/call_parser.h"

namespace dsv32 {

// Watches a stream of text for stop strings, which end the answer and are not part of it. Text that may begin
// a stop string is held back until that is clear, so no part of a stop string is ever emitted, however the
// text is cut.
class StopStrings {
 public:
  explicit StopStrings(std::vector<std::string> stops);  // empty strings are ignored

  // Returns the text that can be shown. Once found(), none.
  std::string push(std::string_view text);
  // The text that was held back and begins no stop string.
  std::string finish() { return std::exchange(held_, {}); }
  bool found() const { return found_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool found_ = false;
};

// A sequence of the engine's cache that closes itself.
struct CloseSequence {
  Engine* engine = nullptr;
  void operator()(CachedSequence* sequence) const;
};
using OpenSequence = std::unique_ptr<CachedSequence, CloseSequence>;

class Sequence {
 public:
  explicit Sequence(Engine& engine) : engine_(engine) {}  // which must outlive it
  Sequence(const Sequence&) = delete;
  Sequence& operator=(const Sequence&) = delete;

  Engine& engine() const { return engine_; }

  // --- In the cache

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
  // Forgets tokens that do not belong to `prompt` (at least one token) and restores its known prefix: for the
  // tokens in the runs `decoded` rows that decode made, for the others rows that prefill made. Returns how
  // many of the prompt's tokens are held, never the last. Of the prompt and what follows, the first
  // n_reusable tokens are remembered for others. Throws as check_prompt() does.
  int64_t hold(std::span<const int32_t> prompt, int64_t n_reusable = std::numeric_limits<int64_t>::max(),
               std::span<const TokenRun> decoded = {});
  // Why hold() restored nothing, as half a sentence; empty: it restored some.
  const char* why_none_cached() const;
  // Computes the next chunk of a prompt that hold() was called with; on several devices a chunk may be under
  // way until the next ones (Forward). Returns how many of the prompt's tokens are held then; once all are,
  // the logits are the last token's.
  int64_t read_chunk(std::span<const int32_t> prompt);
  // Shrinks its buffer to the fewest slots, or makes it whole. Throws as LatentCache::set_most_slots() does.
  void set_shrunk(bool shrunk);
  // Remembers what the steps appended. Called when no step follows for now.
  void save_prefix();
  // Of the tokens that are remembered for others, the runs whose rows decode made with other bits than
  // prefill. hold() of another sequence, or in another process, needs them to find these tokens.
  std::vector<TokenRun> decoded() const;
  // The logits are not finite: removes the prefix, which may be damaged in a way that no checksum shows.
  void discard_prefix();

  // --- Its request

  // Throws Error{usage} for options out of range. The listener must outlive the answer.
  void ask(Request request, Listener& listener, int64_t number_);
  // As if it had just been asked: the same seed gives the same tokens.
  void begin_anew();
  // Goes on if it waits for its constraint and this is there. Throws as compile_constraint() does.
  void begin_constraint();
  // Enters `cached`, or an empty one.
  void admit(OpenSequence cached);
  bool is_ready() { return is_ready(request_.prompt, request_.decoded); }
  void begin_prompt();
  // Computes the next chunk of its prompt. If interrupted within the chunk, the sequence ends before it.
  void read_prompt();
  // How the token is to be drawn that follows the step's first nth + 1 ones: its next token and nth guesses.
  SampleRule rule(int64_t nth) const { return request_.options.sampling.rule(n_drawn() + nth); }
  // Which tokens may be drawn there, if these guesses are right; to be written in `words`, or why not in
  // `error`. Only if its request has a constraint.
  bool has_constraint() const { return constraint_ != nullptr; }
  WantedMask wanted_mask(std::span<uint32_t> words, int64_t nth, std::exception_ptr& error) {
    Constraint* constraint = nth == 0 ? constraint_.get() : &after_guess_[static_cast<size_t>(nth - 1)];
    return {constraint, !thinks(nth), words, &error};
  }
  // Takes the drawn token. If the answer goes on, next_token() is the next one to be computed.
  void push(const TokenRecord& drawn);
  int32_t next_token() const { return next_token_; }
  // The guesses of the tokens after the next one, for a step that verifies them. begin_guesses() forgets the
  // last step's; may_guess(): the next step may verify one more; room for its row is there.
  void begin_guesses();
  bool may_guess() const;
  void guess(int32_t token);
  const std::vector<int32_t>& guesses() const { return guesses_; }
  // After push() in that step: whether the token was the next guess. Then the step has drawn one more token.
  bool accepts_guess();
  // How many tokens the sequence keeps after that step; counts the guesses, and tells `pace`.
  int64_t end_guesses(DraftPace& pace);
  // Whether the listener asks for the end; interrupt() ends the answer with what is there.
  bool is_interrupted() { return listener_->is_interrupted(); }
  void interrupt() { finish(FinishReason::interrupted); }
  void fail(const Error& error);
  bool has_failed() const { return error_.has_value(); }
  // Whether what is read from the disk may be for it.
  bool uses_disk() const { return uses_disk_; }
  // Adds to the result what the cache holds at the end of the answer.
  void note_held();
  // Once the request is done. Throws the Error that it failed with.
  GenerationResult take_result();

  const Request& request() const { return request_; }
  int64_t n_drawn() const { return result_.n_completion_tokens; }
  bool is_fixed() const { return request_.sequence != nullptr; }
  bool is_shrunk() const { return is_shrunk_; }
  // What the scheduler is to know, without donors and steps under way.
  SequenceState state() const;

  // --- The loop's notes

  int64_t number = -1;
  Phase phase = Phase::waits_for_room;
  int64_t n_overtaken = 0;  // see SequenceState
  // The earlier request whose prompt has the longest common prefix, if there is one, and the prefix's tokens.
  std::optional<int64_t> donor_number;
  int64_t n_common = 0;

 private:
  void await_chunks();  // waits until no chunk of it is under way
  std::span<const int32_t> reusable() const;
  int64_t n_reusable_prompt() const;
  int64_t n_prompt() const { return std::ssize(request_.prompt); }
  int64_t n_possible_guesses() const;
  void remember();
  void report_prefill(int64_t n_done);
  // Whether the token behind the first nth guesses is thought, if they are right.
  bool thinks(int64_t nth) const;
  void emit(const CompletionParser::Delta& delta);
  void emit_answer(const std::string& text);
  void finish(FinishReason reason);
  void finish_calls(bool is_cut);

 protected:
  Engine& engine_;

 private:
  using Clock = std::chrono::steady_clock;
  OpenSequence cached_;
  bool is_shrunk_ = false;  // its buffer has the fewest slots
  int64_t n_reusable_ = 0;
  std::optional<uint64_t> waits_since_;  // PrefixCache::n_changes() when it was last told to wait its turn
  bool uses_disk_ = false;

  Request request_;
  Listener* listener_ = nullptr;
  std::optional<CompletionParser> parser_;
  std::shared_ptr<Compiled> compiled_;      // null: none
  std::unique_ptr<Constraint> constraint_;  // of it
  std::vector<Constraint> after_guess_;     // the same, behind each guess
  std::vector<int32_t> guesses_;            // of the current step
  int64_t n_right_ = 0;                     // of these
  int64_t n_accepted_ = 0;                  // of these: those that the answer does not end with
  std::optional<CallParser> calls_;         // of a request with tools
  StopStrings stops_{{}};
  Clock::time_point begun_;  // when the prompt, then the answer, began
  int32_t next_token_ = -1;
  Forward::BufferTally tally_before_;  // the engine's, at its admission
  GenerationResult result_;
  std::optional<Error> error_;
};

// A sequence that has the engine for itself: for measurements, comparisons and tests.
class ByHand : public Sequence {
 public:
  explicit ByHand(Engine& engine) : Sequence(engine) { enter(); }  // which must outlive it

  // hold() and all chunks. Returns hold()'s result.
  int64_t sync(std::span<const int32_t> prompt);
  // Appends one token: a decode step.
  void step(int32_t token);
  // [vocab_size] of the last token, until another sequence computes; valid until the next call.
  const std::vector<float>& logits();
  // The same in the backend's memory.
  const float* device_logits() const;
  // Prefills `tokens` and returns the logits of every one of them, [n, vocab_size].
  std::vector<float> all_logits(std::span<const int32_t> tokens);

 private:
  std::vector<float> logits_;
};

}  // namespace dsv32
