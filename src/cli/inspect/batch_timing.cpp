#include "cli/inspect/batch_timing.h"

#include <chrono>
#include <numeric>

#include "base/error.h"
#include "base/stopwatch.h"
#include "cli/inspect/forced_choices.h"
#include "engine/loop.h"

namespace dsv32 {
namespace {

constexpr int64_t kUntimed = 3;  // record the step and fill the buffers
constexpr int64_t kParted = 3;   // that give the parts

// A request on each session, from its admission to its last timed token.
class Requests {
 public:
  Requests(Engine& engine, const Tokenizer& tokenizer, std::span<const std::unique_ptr<ByHand>> sessions,
           int64_t n_tokens)
      : engine_(engine), sessions_(sessions) {
    const auto first = sessions.front()->tokens().begin();
    std::vector<int32_t> prompt(first, first + n_tokens);
    prompt.push_back(0);
    GenerationOptions options;
    options.thinking = false;
    for (const std::unique_ptr<ByHand>& session : sessions) {
      session->hold(prompt);
      Request request{session.get(), &tokenizer, prompt, options};
      request.is_held = true;
      numbers_.push_back(engine.loop().add(std::move(request), listener_));
    }
  }
  ~Requests() {
    for (const int64_t number : numbers_) engine_.loop().drop(number);
  }

  // Throws what ended a request, or Error{internal} when not each session has so many tokens.
  void check(int64_t n_tokens) {
    for (size_t i = 0; i < numbers_.size(); ++i) {
      if (engine_.loop().is_done(numbers_[i])) engine_.loop().take(numbers_[i]);
      if (std::ssize(sessions_[i]->tokens()) != n_tokens)
        fail(ErrorKind::internal, format("sequence %zu was left out of a step", i));
    }
  }

 private:
  Engine& engine_;
  std::span<const std::unique_ptr<ByHand>> sessions_;
  Listener listener_;
  std::vector<int64_t> numbers_;
};

// The engine's steps, and how long they take on the device.
class Steps {
 public:
  Steps(Engine& engine, ForcedChoices& forced) : engine_(engine), forced_(forced) { listen(&laps_); }
  ~Steps() { listen(nullptr); }

  struct Seconds {
    double all = 0, device = 0;
  };
  Seconds make() {
    forced_.next();
    laps_.names.clear();
    const auto start = std::chrono::steady_clock::now();
    engine_.loop().turn();
    const double seconds = seconds_since(start);
    if (!is_marked_) return {seconds, seconds};
    lap_seconds_ = engine_.backend().laps();
    return {seconds, std::accumulate(lap_seconds_.begin(), lap_seconds_.end(), 0.0)};
  }
  // Makes a step whose parts are marked, and adds the seconds of each.
  void make_parted(std::map<std::string, double>& parts) {
    laps_.is_whole = false;
    make();
    for (size_t i = 0; i < laps_.names.size(); ++i) parts[laps_.names[i]] += lap_seconds_[i];
  }

 private:
  void listen(Laps* laps) {
    if (!is_marked_) return;
    engine_.forward().set_laps(laps);
    engine_.sampler().set_laps(laps);
  }

  Engine& engine_;
  ForcedChoices& forced_;
  const bool is_marked_ = engine_.forward().n_stages() == 1;  // several devices have no time in common
  Laps laps_{.is_whole = true};
  std::vector<double> lap_seconds_;
};

}  // namespace

int64_t timed_tokens(int64_t n_decode) { return kUntimed + n_decode + kParted; }

BatchTiming time_batch(Engine& engine, const Tokenizer& tokenizer,
                       std::span<const std::unique_ptr<ByHand>> sessions, int64_t n_tokens, int64_t n_decode,
                       const Locality& locality) {
  const int64_t n = std::ssize(sessions);
  Requests requests(engine, tokenizer, sessions, n_tokens);
  ForcedChoices forced(engine, n, n_tokens, locality);
  Steps steps(engine, forced);
  for (int64_t i = 0; i < kUntimed; ++i) steps.make();
  const Forward::BufferTally before = engine.forward().buffer_tally();
  const double n_steps = static_cast<double>(n_decode);
  BatchTiming timing{.n_sequences = n};
  double host_seconds = 0;
  for (int64_t i = 0; i < n_decode; ++i) {
    const Steps::Seconds step = steps.make();
    timing.step_seconds += step.all / n_steps;
    host_seconds += (step.all - step.device) / n_steps;
  }
  const Forward::BufferTally after = engine.forward().buffer_tally();
  timing.n_rows = static_cast<double>(after.n_rows - before.n_rows) / n_steps;
  timing.n_misses = static_cast<double>(after.n_misses - before.n_misses) / n_steps;
  for (int64_t i = 0; i < kParted; ++i) steps.make_parted(timing.seconds);
  requests.check(n_tokens + timed_tokens(n_decode));
  for (auto& [part, seconds] : timing.seconds) seconds /= kParted;
  timing.seconds["host"] = host_seconds;
  return timing;
}

}  // namespace dsv32
