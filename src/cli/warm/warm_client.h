// The client of a warm process: sends requests over its socket and receives their answers. A busy process
// sends a line every second, and one that hangs does not.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "cli/warm/answer_json.h"
#include "cli/warm/warm_wire.h"

namespace dsv32 {

// A process that sends nothing for so many seconds counts as hanging.
inline constexpr double kWarmSilence = 60;

// Sends `want` to the process at `path` and waits for its answer, ten seconds, with signals twenty at most.
// Nothing: nobody listens. Throws WarmGone when no readable answer comes, and the Error that the process
// answers with.
struct WarmGreeting {
  WarmLink link;
  Json answer;
};
std::optional<WarmGreeting> greet_warm(const std::string& path, const char* want);

class WarmClient : public Answerer {
 public:
  // Null: nobody listens. Throws as greet_warm() does.
  static std::unique_ptr<WarmClient> connect(const std::string& path);

  const EngineFacts& facts() const { return facts_; }

  int64_t add(Request request, Listener& listener) override;
  // Waits a moment for lines of the process. Where it is gone, hangs, or has not ended a request two seconds
  // after its listener was interrupted, WarmGone is the outcome of the request; if it is interrupted, the
  // outcome is what was received.
  bool advance() override;
  bool is_done(int64_t request) const override { return pending_.at(request).outcome.is_there(); }
  GenerationResult take(int64_t request) override {
    return pending_.extract(request).mapped().outcome.take();
  }
  void drop(int64_t request) override { pending_.erase(request); }

  // Why the process takes no more requests, though it may still answer those under way; nothing: it takes
  // them.
  const std::optional<WarmGone>& gone();

 private:
  using Clock = std::chrono::steady_clock;
  struct Pending {
    WarmLink link;
    Listener* listener;
    std::optional<Clock::time_point> cancelled_at = {};
    GenerationResult heard = {};  // so far
    Outcome outcome = {};
  };
  WarmClient(std::string path, WarmGreeting greeting);
  bool is_waiting() const;
  void await_lines();
  void cancel_if_interrupted(Pending& pending) const;
  void receive(Pending& pending);
  void take_line(Pending& pending, const Json& line) const;
  void check_alive(const Pending& pending, bool is_there) const;

  const std::string path_;
  WarmLink link_;  // open as long as the process takes requests
  EngineFacts facts_;
  int64_t talk_ = 0;  // the number of this client's talk
  std::map<int64_t, Pending> pending_;
  int64_t n_added_ = 0;
  Clock::time_point received_at_ = Clock::now();  // the last line, or the first request that waits
  std::optional<WarmGone> gone_;
};

}  // namespace dsv32
