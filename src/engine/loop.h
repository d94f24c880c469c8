// The engine's time: which step is made when, for all who want something of the model at once.
//
// The only caller of Forward. It takes requests, asks the scheduler for the next step, makes it, draws a
// token from each of its rows at once, and feeds each request's Answer, which tells its listener. A request
// whose pages are still on their way from the disk is simply not scheduled; one that came without a session
// gets one when there is room, and may have to wait, or to begin anew, in between. A talk's session is kept
// for its next request until somebody else asks. What goes wrong in a step of one request, whatever is
// thrown, is that request's error; only what befalls all at once, a step's computation, leaves turn(). One
// thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/error.h"
#include "engine/answer.h"
#include "engine/request.h"
#include "engine/sampler.h"
#include "engine/scheduler.h"
#include "model/step.h"

namespace dsv32 {

class Engine;

class Loop : public Answerer {
 public:
  explicit Loop(Engine& engine);  // which must outlive it
  ~Loop() override;

  int64_t add(Request request, Listener& listener) override;
  bool turn() override;
  bool is_done(int64_t request) const override;
  GenerationResult take(int64_t request) override;
  void drop(int64_t request) override;
  // No further request of this talk comes.
  void end_talk(int64_t talk);

  // How often a request was suspended, began anew or got a smaller buffer for others' sake.
  int64_t n_suspended() const { return n_suspended_; }
  int64_t n_restarted() const { return n_restarted_; }
  int64_t n_shrunk() const { return n_shrunk_; }

  // One step now, beside all requests: reserves, computes, and the timelines hold its tokens. Throws
  // Error{context_full}.
  void compute(const Step& step);
  RowSampler& sampler() { return sampler_; }

 private:
  struct Entry {
    int64_t number;
    std::unique_ptr<Answer> answer;
    Listener* listener;
    std::unique_ptr<Session> session;  // of a request that came without one, while it is admitted
    Forward::BufferTally tally = {};   // the engine's, when it was
    // The earlier request that has most of its prompt in common, if there is one, and how many tokens.
    std::optional<int64_t> donor = {};
    int64_t n_common = 0;
    int64_t n_overtaken = 0;
    bool is_shrunk = false;
  };
  // A step of one request: what it throws ends that request, and the others go on.
  template <typename Step>
  void attempt(Answer& answer, const Step& step) try {
    step();
  } catch (...) {
    const Error error = current_error();
    stop_waiting(answer);
    answer.fail(error);
  }
  void end_interrupted();
  void stop_waiting(const Answer& answer);
  void close_done();
  void close(Entry& entry);
  void begin_ready(bool waits);
  void begin(Answer& answer);
  void rest_if_done(Answer& answer);
  int64_t read_chunk(Answer& answer);
  void read_prompt(Answer& answer);
  void decode(std::span<Answer*> answers);
  void draw(std::span<Answer* const> answers);

  // loop_plan.cpp
  StepPlan plan();
  RequestState state_of(const Entry& entry) const;
  void find_donor(size_t i);
  void share(size_t i, std::span<RequestState> states);
  void carry_out(const StepPlan& plan);
  void admit(Entry& entry);
  void begin_anew(Entry& entry);
  void set_shrunk(Entry& entry, bool is_shrunk);

  Engine& engine_;
  RowSampler sampler_;
  std::vector<Entry> entries_;     // in the order of arrival
  std::unique_ptr<Session> kept_;  // of this talk, between two of its requests
  int64_t kept_talk_ = 0;
  int64_t n_added_ = 0;
  int64_t n_answers_ = 0, n_answer_tokens_ = 0;  // of those that ended on the loop's own sessions
  int64_t n_suspended_ = 0, n_restarted_ = 0, n_shrunk_ = 0;
  bool was_prompt_ = false;  // the last step read a prompt
};

// Answers one prompt on a session, while the engine's other requests go on. Throws what ended it.
GenerationResult generate(Session& session, const Tokenizer& tokenizer, std::span<const int32_t> prompt,
                          const GenerationOptions& options, Listener& listener,
                          std::span<const TokenRun> decoded = {});

}  // namespace dsv32
