// The client of a warm process: sends requests over its socket and receives their answers. A busy process
// sends a line every second, and one that hangs does not.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/stopwatch.h"
#include "cli/options/json.h"
#include "cli/warm/answer_json.h"
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

  int64_t add(Request request, Listener& listener) override;
  // Waits a moment for lines of the process. When it is gone, hangs, or has not ended a request two seconds
  // after its listener was interrupted, WarmGone is the outcome of all that wait; of those that are
  // interrupted, what was told.
  bool turn() override;
  bool is_done(int64_t request) const override {
    return asked_.at(std::to_string(request)).outcome.is_there();
  }
  GenerationResult take(int64_t request) override {
    return asked_.extract(std::to_string(request)).mapped().outcome.take();
  }
  void drop(int64_t request) override;

  // Why the process takes no more requests, though it may still answer those under way; nothing: it takes
  // them.
  const std::optional<WarmGone>& gone();
  // Since the last line, or since the first request that waits, if that came later.
  double seconds_silent() const { return seconds_since(heard_at_); }

 private:
  using Clock = std::chrono::steady_clock;
  struct Asked {
    Listener* listener;
    std::optional<Clock::time_point> cancelled_at = {};
    AnswerReader reader = {};
    Outcome outcome = {};
  };
  WarmClient(WarmLink link, std::string log) : link_(std::move(link)), log_(std::move(log)) {}
  bool is_waiting() const;
  void check_alive(bool is_there) const;
  void hear(const ReadJson& line);
  void leave(const WarmGone& why);

  WarmLink link_;
  std::string log_;  // path of the process's log
  EngineFacts facts_;
  std::map<std::string, Asked> asked_;  // by their custom_id
  int64_t n_added_ = 0;
  Clock::time_point heard_at_ = Clock::now();
  std::optional<WarmGone> gone_;
};

}  // namespace dsv32
