// Runs the steps of all requests to the model.
//
// Takes requests, asks the scheduler for the next step, runs it, and draws a token from each of its rows of
// logits. A request whose pages are still being read from disk is not scheduled. A request that came without
// a sequence is admitted to the cache when there is room; later it may have to begin anew. A talk's
// sequence is kept for its next request, unless another request comes first. An exception in a step of a
// prompt is its request's error; an exception in a decode step leaves advance(). One thread at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "engine/draft_pace.h"
#include "engine/sequence.h"

namespace dsv32 {

class Loop : public Answerer {
 public:
  // The engine must outlive it. may_guess_less: a step verifies fewer guesses than the plan allows where
  // fewer pay.
  Loop(Engine& engine, bool may_guess_less) : engine_(engine), may_guess_less_(may_guess_less) {}

  int64_t add(Request request, Listener& listener) override;
  bool advance() override;
  bool is_done(int64_t request) const override { return (*find(request))->phase == Phase::is_done; }
  GenerationResult take(int64_t request) override;
  void drop(int64_t request) override;
  // After the last request of a talk: frees its room.
  void end_talk(int64_t talk);

  // For tests: what the block guesses is replaced by the result of `guesser`, as the nth guess of a step.
  using Guesser = std::function<int32_t(const Sequence& sequence, int64_t nth, int32_t guessed)>;
  void set_guesser(Guesser guesser) { guesser_ = std::move(guesser); }
  // For measuring: what is drawn behind the nth guess of a step is replaced likewise.
  using Drawer = std::function<int32_t(const Sequence& sequence, int64_t nth, int32_t drawn)>;
  void set_drawer(Drawer drawer) { drawer_ = std::move(drawer); }

  // How often a request began anew or got a smaller buffer to make room for others.
  int64_t n_restarted() const { return n_restarted_; }
  int64_t n_shrunk() const { return n_shrunk_; }

 private:
  using Sequences = std::vector<std::shared_ptr<Sequence>>;
  Sequences::const_iterator find(int64_t request) const;

  template <typename Act>
  void attempt(Sequence& sequence, const Act& act);
  void fail(Sequence& sequence);
  void stop_waiting(const Sequence& sequence);
  void end_interrupted();
  void begin_constraints();
  void close_done();
  void begin_ready(bool waits);
  void save_if_done(Sequence& sequence);
  void wait(bool for_disk);
  void read_prompt(Sequence& sequence, int64_t n);

  // Of the tokens of a decode step, in their order: what is drawn from the logits of a sequence's next token
  // (nth 0) or of its nth guess.
  struct DrawnToken {
    Sequence* sequence;
    int64_t nth;
    std::exception_ptr error = {};  // why nothing can be drawn
    TokenRecord record = {};
  };
  // A step that is computed, and whose tokens are being drawn.
  struct RunningStep {
    std::vector<DrawnToken> tokens;
    RowSampler::Drawing drawing;
  };
  // What an answer took of a step's tokens: at least the first. A right guess with which it ends counts too.
  struct Taken {
    int64_t n_tokens = 0, n_right = 0;
  };
  void decode(const NextStep& next);
  std::vector<Sequence*> make_room(std::vector<Sequence*> sequences);
  void reserve_for_guesses(std::span<Sequence* const> sequences, int64_t n_guesses);
  int64_t guess(std::span<Sequence* const> sequences, int64_t n_wanted);
  void guess_next(std::span<Sequence* const> sequences, int64_t nth);
  void run_step(std::span<Sequence* const> sequences);
  int64_t free_rows() const;
  std::vector<SampleRule> rules_of(std::span<DrawnToken> tokens, int64_t first);
  RunningStep begin_drawing(std::vector<DrawnToken> tokens, int64_t n_top, int64_t first);
  std::vector<DrawnToken> take_drawing(RunningStep step);
  RunningStep draw(std::span<Sequence* const> sequences, int64_t first);
  void take_tokens(RunningStep step);
  Taken take_tokens_of(std::span<DrawnToken> tokens);
  void end_step();
  void end_steps();

  NextStep schedule();
  void find_donor(size_t i);
  void count_shared_pages(size_t i, std::span<SequenceState> states);
  void carry_out(const NextStep& next);
  void begin_anew(size_t i);
  void admit(size_t i);

  Engine& engine_;
  Sequences sequences_;  // in the order of arrival
  OpenSequence kept_;    // of the talk kept_talk_, between two of its requests
  int64_t kept_talk_ = 0;
  const bool may_guess_less_;
  DraftPace pace_;
  Guesser guesser_;
  Drawer drawer_;
  int64_t n_added_ = 0;
  int64_t n_answers_ = 0, n_answer_tokens_ = 0;  // of answers that ended on the loop's own sequences
  int64_t n_restarted_ = 0, n_shrunk_ = 0;
  bool was_prompt_ = false;            // the last step read a prompt
  std::deque<RunningStep> under_way_;  // decode steps of groups, the oldest first
};

}  // namespace dsv32
