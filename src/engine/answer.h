// One request on its way: which step it wants next, and what its tokens become.
//
//   waits_for_room -> waits_for_disk -> reads_prompt -> decodes -> is_done
//
// The state machine of a request; it never computes. The loop makes its steps and feeds it what was drawn.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/error.h"
#include "engine/request.h"
#include "engine/stop_strings.h"

namespace dsv32 {

class Answer {
 public:
  // Throws Error{usage} for options out of range. The listener must outlive the answer.
  Answer(Request request, Listener& listener);

  Phase phase() const { return phase_; }
  // From its admission on.
  Session& session() const { return *request_.session; }
  const Request& request() const { return request_; }
  // It has a place, and a session.
  void admit(Session& session);
  // Of the prompt, so many are remembered for others: in thinking mode the next turn's prompt drops what was
  // thought, and leaves this one before the last <｜Assistant｜>.
  int64_t n_reusable() const;

  // The session holds the first n_held tokens of the prompt; they need not be computed.
  void begin_prompt(int64_t n_held);
  // A step is under way, and so much of the prompt as good as read.
  void prompt_nears(int64_t n_done);
  // A step computed the prompt up to n_done tokens.
  void prompt_reached(int64_t n_done);
  // How the next token is to be drawn from the session's logits, with at most n_top alternatives.
  SampleRule next_rule() { return sampler_.next(); }
  // It was drawn. If the answer goes on, the token is the next one to be computed.
  void push(const TokenRecord& drawn);
  int32_t next_token() const { return next_token_; }

  int64_t n_tokens() const { return result_.n_completion_tokens; }

  bool is_interrupted() { return listener_.is_interrupted(); }
  // Ends it, with what is there.
  void interrupt() { finish(FinishReason::interrupted); }
  void fail(const Error& error);
  // What its session, which goes, says at the end.
  void note_session(std::vector<TokenRun> decoded, int64_t n_held, const Forward::BufferTally& tally);

  // Once it is done. Throws what it failed with.
  GenerationResult take_result();

 private:
  std::optional<int32_t> end_of_thinking() const;
  bool is_long_enough() const;
  void tell(const CompletionParser::Delta& delta);
  void tell_answer(const std::string& text);
  void finish(FinishReason reason);

  using Clock = std::chrono::steady_clock;
  Request request_;
  Listener& listener_;
  Sampler sampler_;
  CompletionParser parser_;
  StopStrings stops_;
  Phase phase_ = Phase::waits_for_room;
  Clock::time_point begun_ = Clock::now();  // the prompt, then the answer
  int32_t next_token_ = -1;
  GenerationResult result_;
  std::optional<Error> error_;
};

}  // namespace dsv32
