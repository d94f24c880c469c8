// A request on its way: its sequence in the cache, and its answer so far.
//
//   waits_for_room -> waits_for_disk -> reads_prompt -> decodes -> is_done
//
// The loop decides when each phase comes; the sequence carries it out and tells the request's listener. The
// sequence computes the chunks of its prompt; the loop runs the steps of several sequences, and draws. One
// thread at a time.
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
#include "engine/held_sequence.h"
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

class Sequence {
 public:
  // Throws Error{usage} for options out of range. Engine and listener must outlive it.
  Sequence(Engine& engine, Request request, Listener& listener, int64_t number_);
  Sequence(const Sequence&) = delete;
  Sequence& operator=(const Sequence&) = delete;

  // In the cache: the request's, or its own.
  HeldSequence& held() { return request_.sequence ? *request_.sequence : own_; }
  const HeldSequence& held() const { return request_.sequence ? *request_.sequence : own_; }
  CachedSequence& cached() { return held().cached(); }
  const CachedSequence& cached() const { return held().cached(); }

  // Goes on if it waits for its constraint and this is there. Throws as compile_constraint() does.
  void begin_constraint();
  // Enters `opened`, or an empty one.
  void admit(OpenSequence opened);
  bool is_ready() { return held().is_ready(request_.prompt, request_.decoded); }
  void begin_prompt();
  // Computes the next n tokens of its prompt. Throws Interrupted if its listener is interrupted meanwhile.
  void read_prompt(int64_t n);
  // How the token is to be drawn that follows the step's first nth + 1 ones: its next token and nth guesses.
  SampleRule rule(int64_t nth) const { return request_.options.sampling.rule(n_drawn() + nth); }
  // Which tokens may be drawn there, if these guesses are right; to be written in `words`, or why not in
  // `error`. Only if its request has a constraint.
  bool has_constraint() const { return constraint_ != nullptr; }
  WantedMask wanted_mask(std::span<uint32_t> words, int64_t nth, std::exception_ptr& error) {
    Constraint* constraint = nth == 0 ? constraint_.get() : &after_guess_[static_cast<size_t>(nth - 1)];
    return {constraint, !thinks(nth), words, &error};
  }
  // Takes the token drawn behind the step's first n_right guesses, which are right. If the answer goes on,
  // next_token() is the next one to be computed.
  void push(const TokenRecord& drawn, int64_t n_right);
  int32_t next_token() const { return next_token_; }
  // The guesses of the tokens after the next one, for a step that verifies them: at most
  // n_possible_guesses(). begin_guesses() forgets those of a step that failed.
  void begin_guesses();
  void guess(int32_t token);
  const std::vector<int32_t>& guesses() const { return guesses_; }
  int64_t n_possible_guesses() const;
  // After that step: counts its guesses, and forgets them.
  void end_guesses(int64_t n_right);
  // Whether the listener asks for the end; interrupt() ends the answer with what is there.
  bool is_interrupted() { return listener_.is_interrupted(); }
  void interrupt() { finish(FinishReason::interrupted); }
  void fail(const Error& error);
  bool has_failed() const { return error_.has_value(); }
  // Adds to the result what the cache holds at the end of the answer.
  void note_held();
  // Once the request is done. Throws the Error that it failed with.
  GenerationResult take_result();

  const Request& request() const { return request_; }
  Listener& listener() const { return listener_; }
  int64_t n_drawn() const { return result_.n_completion_tokens; }
  bool is_fixed() const { return request_.sequence != nullptr; }
  // What the scheduler is to know, without donors and steps under way.
  SequenceState state() const;

  // --- The loop's notes

  const int64_t number;
  Phase phase = Phase::waits_for_constraint;
  int64_t n_overtaken = 0;  // see SequenceState
  // The earlier request whose prompt has the longest common prefix, if there is one, and the prefix's tokens.
  std::optional<int64_t> donor_number;
  int64_t n_common = 0;

 private:
  int64_t n_reusable_prompt() const;
  int64_t n_prompt() const { return std::ssize(request_.prompt); }
  void report_prefill(int64_t n_done);
  // Whether the token behind the first nth guesses is thought, if they are right.
  bool thinks(int64_t nth) const;
  void emit(const CompletionParser::Delta& delta);
  void emit_answer(const std::string& text);
  void finish(FinishReason reason);

  using Clock = std::chrono::steady_clock;
  Engine& engine_;
  const Request request_;
  Listener& listener_;
  HeldSequence own_;
  CompletionParser parser_;
  std::shared_ptr<Compiled> compiled_;      // null: none
  std::unique_ptr<Constraint> constraint_;  // of it
  std::vector<Constraint> after_guess_;     // the same, behind each guess
  std::vector<int32_t> guesses_;            // of the current step
  std::optional<CallParser> calls_;         // of a request with tools
  StopStrings stops_;
  Clock::time_point begun_ = Clock::now();  // when the prompt, then the answer, began
  int32_t next_token_ = -1;
  Forward::BufferTally tally_before_;  // the engine's, at its admission
  GenerationResult result_;
  std::optional<Error> error_;
};

}  // namespace dsv32
