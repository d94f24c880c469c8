// Runs the steps of all requests to the model.
//
// Takes requests, asks the scheduler for the next step, runs it, and draws a token from each of its rows of
// logits. A request whose pages are still being read from disk is not scheduled. A request that came without
// a sequence is admitted to the cache when there is room; later it may be suspended, or begin anew. A talk's
// sequence is kept for its next request, unless another request comes first. On several devices decode steps
// are those of groups of sequences, one in each stage: a turn begins a group's step or takes its tokens. All
// tokens are taken before anything else is done to sequences. An exception in a step of one request is that
// request's error; an exception in a step of several leaves turn(). One thread at a time.
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
  Loop(Engine& engine, bool may_guess_less)
      : engine_(engine), pace_(engine.plan().cache.n_guesses, may_guess_less) {}

  int64_t add(Request request, Listener& listener) override;
  bool turn() override;
  bool is_done(int64_t request) const override { return (*find(request))->phase == Phase::is_done; }
  GenerationResult take(int64_t request) override;
  void drop(int64_t request) override;
  // After the last request of a talk: frees its room.
  void end_talk(int64_t talk);

  // For tests: what the block guesses is replaced by the result of `guesser`, as the nth guess of a step.
  using Guesser = std::function<int32_t(const Sequence& sequence, int64_t nth, int32_t guessed)>;
  void set_guesser(Guesser guesser) { guesser_ = std::move(guesser); }
  // For measuring: what is drawn is replaced likewise, as the token after the sequence's next `ahead` ones.
  using Drawer = std::function<int32_t(const Sequence& sequence, int64_t ahead, int32_t drawn)>;
  void set_drawer(Drawer drawer) { drawer_ = std::move(drawer); }

  // How often a request was suspended, began anew or got a smaller buffer to make room for others.
  int64_t n_suspended() const { return n_suspended_; }
  int64_t n_restarted() const { return n_restarted_; }
  int64_t n_shrunk() const { return n_shrunk_; }

 private:
  // Sequences of the loop's own, or that requests brought.
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
  void rest_if_done(Sequence& sequence);
  void decode(std::vector<Sequence*> sequences);
  void reserve_ahead(std::span<Sequence* const> sequences, int64_t n_guesses);
  int64_t guess(std::span<Sequence* const> sequences);
  void guess_next(std::span<Sequence* const> sequences, int64_t nth);

  // A row of logits: the token of a sequence after its next `ahead` ones is drawn from it.
  struct Row {
    Sequence* sequence;
    int64_t ahead;
    std::exception_ptr error = {};  // why nothing can be drawn
    TokenRecord drawn = {};
  };
  // Rows of the last step's logits, and the drawing of their tokens.
  struct Drawing {
    std::vector<Row> rows;
    RowSampler::Drawing tokens;
  };
  std::vector<SampleRule> rules_of(std::span<Row> rows, int64_t first);
  Drawing begin_drawing(std::vector<Row> rows, int64_t n_top, int64_t first);
  std::vector<Row> take_drawing(Drawing drawing);
  Drawing draw(std::span<Sequence* const> sequences, int64_t first);
  Verified take_tokens(Drawing drawing);
  void take_rows(std::span<Row> rows);

  void run_step(std::span<Sequence* const> sequences);
  int64_t n_groups(int64_t n_sequences) const;
  std::vector<Sequence*> make_room(std::vector<Sequence*> sequences);
  void decode_in_groups(const std::vector<Sequence*>& sequences, int64_t n_groups);
  void end_step();
  void end_steps();
  bool must_end_steps() const;
  static bool is_steady(const StepPlan& plan);

  StepPlan plan();
  void find_donor(size_t i);
  void share(size_t i, std::span<SequenceState> states);
  void carry_out(const StepPlan& plan);
  void admit(size_t i);

  Engine& engine_;
  Sequences sequences_;  // in the order of arrival
  OpenSequence kept_;    // of the talk kept_talk_, between two of its requests
  int64_t kept_talk_ = 0;
  DraftPace pace_;
  Guesser guesser_;
  Drawer drawer_;
  int64_t n_added_ = 0;
  int64_t n_answers_ = 0, n_answer_tokens_ = 0;  // of answers that ended on the loop's own sequences
  int64_t n_suspended_ = 0, n_restarted_ = 0, n_shrunk_ = 0;
  bool was_prompt_ = false;  // the last step read a prompt
  // Of the decode steps of groups that are computed, the oldest first. The next ones begin in the stages that
  // these have left.
  std::deque<Drawing> steps_;
};

}  // namespace dsv32
