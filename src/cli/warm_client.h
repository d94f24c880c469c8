// Answers that a warm process gives: requests go out over its socket, and what is heard of them comes back.
//
// The one idea: it is an Answerer as the engine's loop is one, so that commands do not know which of them
// they ask.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <variant>

#include "base/error.h"
#include "cli/json.h"
#include "cli/warm_lines.h"
#include "cli/warm_socket.h"

namespace dsv32 {

class WarmClient : public Answerer {
 public:
  // Null: nobody listens at `path`. Throws Error{io} when who does is another user's, or does not answer.
  static std::unique_ptr<WarmClient> connect(const std::string& path);

  const EngineFacts& facts() const { return facts_; }
  bool is_there() { return link_.send() && link_.receive(); }

  // Errors of a request's options are its own.
  int64_t add(Request request, Listener& listener) override;
  // Waits for a moment where nothing is heard. Throws Error{io} when the process is gone.
  bool turn() override;
  bool is_done(int64_t request) const override;
  GenerationResult take(int64_t request) override;
  void drop(int64_t request) override;

 private:
  struct Asked {
    Listener* listener;
    bool is_cancelled = false;
    std::variant<std::monostate, GenerationResult, Error> outcome = {};
    bool is_done() const { return outcome.index() != 0; }
  };
  WarmClient(WarmLink link, std::string log) : link_(std::move(link)), log_(std::move(log)) {}
  void hear(const ReadJson& line);
  void tell(Asked& asked, const ReadJson& line);

  WarmLink link_;
  std::string log_;  // of the process
  EngineFacts facts_;
  std::map<int64_t, Asked> asked_;
  int64_t n_added_ = 0;
};

// Says `want` at `path` and waits for the answer. Nothing: nobody listens. Throws Error{io}.
struct WarmGreeting {
  WarmLink link;
  ReadJson answer;
};
std::optional<WarmGreeting> greet_warm(const std::string& path, const char* want);

}  // namespace dsv32
