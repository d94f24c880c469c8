// The client of a warm process: sends requests over its socket and receives their answers. A busy process
// sends a line every second, and one that hangs does not.
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

// A process that sends nothing for so many seconds counts as hanging.
inline constexpr double kWarmSilence = 60;

// Sends `want` to the process at `path` and waits for its answer, ten seconds at most. Nothing: nobody
// listens. Throws WarmGone when no readable answer comes, and the Error that the process answers with.
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

  // Errors of a request become its outcome, which take() throws.
  int64_t add(Request request, Listener& listener) override;
  // Waits a moment for lines of the process. Throws WarmGone when the process is gone, hangs, or has not
  // ended a request two seconds after its listener was interrupted.
  bool turn() override;
  bool is_done(int64_t request) const override { return asked_.at(request).outcome.is_there(); }
  // Throws WarmGone for a request that the ending process refused; others are still answered.
  GenerationResult take(int64_t request) override { return asked_.extract(request).mapped().outcome.take(); }
  void drop(int64_t request) override;

  // Since the last line, or since the first request that waits, if that came later.
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
  std::string log_;  // path of the process's log
  EngineFacts facts_;
  std::map<int64_t, Asked> asked_;
  int64_t n_added_ = 0;
  Clock::time_point heard_at_ = Clock::now();
};

}  // namespace dsv32
