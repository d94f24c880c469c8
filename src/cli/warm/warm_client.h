// Answers that a warm process gives: requests go out over its socket, and what is heard of them comes back. A
// process that hangs is told from a busy one by what a busy one says every second.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <optional>

#include "base/error.h"
#include "base/stopwatch.h"
#include "cli/options/json.h"
#include "cli/warm/warm_wire.h"

namespace dsv32 {

// A process that says nothing for as long hangs: seconds.
inline constexpr double kWarmSilence = 60;

// Says `want` at `path` and waits for the answer, for ten seconds at most. Nothing: nobody listens. Throws
// WarmGone when no answer comes or it cannot be read, and the Error that it is.
struct WarmGreeting {
  WarmLink link;
  ReadJson answer;
};
std::optional<WarmGreeting> greet_warm(const std::string& path, const char* want);

class WarmClient : public Answerer {
 public:
  // Null: nobody listens. Throws as greet_warm() does.
  static std::unique_ptr<WarmClient> connect(const std::string& path);

  const EngineFacts& facts() const { return facts_; }

  // Errors of a request's options are its own.
  int64_t add(Request request, Listener& listener) override;
  // Waits for a moment where nothing is heard. Throws WarmGone when the process is gone, hangs, or has not
  // ended a request two seconds after its listener was interrupted.
  bool turn() override;
  bool is_done(int64_t request) const override { return asked_.at(request).outcome.is_there(); }
  // Throws WarmGone for one that was not begun, since the process is about to end; others are still answered.
  GenerationResult take(int64_t request) override { return asked_.extract(request).mapped().outcome.take(); }
  void drop(int64_t request) override;

  // Since something was heard, or nothing was to be heard.
  double seconds_silent() const { return seconds_since(heard_at_); }

 private:
  using Clock = std::chrono::steady_clock;
  struct Asked {
    Listener* listener;
    std::optional<Clock::time_point> cancelled_at = {};
    Outcome outcome = {};
  };
  WarmClient(WarmLink link, std::string log) : link_(std::move(link)), log_(std::move(log)) {}
  bool is_waiting() const;
  void check_alive(bool is_there) const;
  void hear(const ReadJson& line);

  WarmLink link_;
  std::string log_;  // of the process
  EngineFacts facts_;
  std::map<int64_t, Asked> asked_;
  int64_t n_added_ = 0;
  Clock::time_point heard_at_ = Clock::now();
};

}  // namespace dsv32
