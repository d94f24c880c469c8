// A warm process's work: the engine's loop, and all who ask it over a socket.
//
// The one idea: one thread. Between the loop's steps, and within those of a prompt where it asks whether to
// go on, sockets are looked at and never waited for; whoever is slow, gone or talks nonsense costs nobody but
// itself. A request is added, and forgotten, only between steps. Who does not read what it is told is not
// heard further, so that what is kept for anybody has a bound.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "base/file.h"
#include "cli/options/json.h"
#include "cli/terminal/signals.h"
#include "cli/warm/warm_lines.h"
#include "cli/warm/warm_socket.h"
#include "engine/engine.h"

namespace dsv32 {

struct WarmTerms {
  std::string model;             // its file
  std::vector<FileStamp> parts;  // of it, when they were opened
  std::chrono::seconds keep;     // as long it may be idle
};

class WarmServer {
 public:
  // References must outlive it.
  WarmServer(Engine& engine, const Tokenizer& tokenizer, WarmListener listener, WarmTerms terms);
  ~WarmServer();

  // Until it was idle for too long, nobody finds it any more, or somebody asks for its end: then what is
  // under way ends first, and what comes later is refused. Throws what ends the loop, when all who wait have
  // been told.
  void serve(const GracefulStop& stop);
  // Those who wait for its end: they take the end of their links for it.
  std::vector<WarmLink> take_waiting();

 private:
  using Clock = std::chrono::steady_clock;
  struct Client;
  struct Asked;
  void look(int wait_ms);
  void look_now_and_then();
  void take_in();
  void make_room();
  void listen_to(Client& client, int events);
  void hear(Client& client);
  void tell_alive();
  void obey(Client& client, const std::string& line);
  void greet(Client& client, const ReadJson& line);
  void take_request(Client& client, int64_t number, const ReadJson& request);
  bool begin_asked();
  void turn(bool is_asked);
  void conclude();
  void fail_all(const std::exception& error);
  void see_off();
  bool is_over(const GracefulStop& stop);
  int idle_ms();
  ReadJson status() const;
  int64_t n_asked() const;
  int64_t n_answered() const;

  Engine& engine_;
  const Tokenizer& tokenizer_;
  WarmListener listener_;
  const WarmTerms terms_;
  std::vector<std::unique_ptr<Client>> clients_;
  int64_t n_clients_ = 0;  // so far
  bool is_ending_ = false;
  Clock::time_point used_at_ = Clock::now(), looked_at_ = Clock::now();
  const time_t began_at_;
};

}  // namespace dsv32
