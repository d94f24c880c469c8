// See warm_server.h.
#include "cli/warm_server.h"

#include <algorithm>
#include <ctime>
#include <optional>

#include <poll.h>
#include <unistd.h>

#include "base/error.h"
#include "base/stopwatch.h"
#include "cli/json.h"
#include "cli/json_fields.h"
#include "engine/loop.h"

namespace dsv32 {
namespace {

constexpr size_t kMostClients = 256, kMostAskedEach = 4096;
constexpr int kWarmDepth = 8;            // of JSON
constexpr double kGreetingSeconds = 10;  // who has not said by then what it wants is no client
constexpr double kLastWordsSeconds = 1;  // that who is slow has for what is queued at the end
constexpr int kLookEveryMs = 10, kStoreMs = 20, kIdleMs = 1000;

void queue(WarmLink& link, const ReadJson& json) { link.queue(json.dump()); }

}  // namespace

struct WarmServer::Client {
  explicit Client(OwnedFd socket, int64_t its_number)
      : link(std::move(socket), kMostAskedBytes, kMostToldBytes), number(its_number) {}
  WarmLink link;
  const int64_t number;  // from 1
  bool wants_answers = false, is_greeted = false;
  bool is_leaving = false;  // when it has got what is queued
  bool is_gone = false;
  std::chrono::steady_clock::time_point since = std::chrono::steady_clock::now();
  std::vector<std::unique_ptr<Asked>> asked;
};

// A request, waiting for the loop or on it, and what its client hears.
struct WarmServer::Asked : Listener {
  Asked(WarmServer& its_server, Client& its_client, int64_t its_number, Request its_request)
      : server(its_server), client(its_client), number(its_number), request(std::move(its_request)) {}

  // Who begins anew comes by the same text, and is told what is new in it.
  struct Told {
    size_t n_told = 0, n_now = 0;
    std::string news(const std::string& text) {
      n_now += text.size();
      const size_t n_new = std::min(n_now - std::min(n_told, n_now), text.size());
      n_told = std::max(n_told, n_now);
      return text.substr(text.size() - n_new);
    }
  };

  void on_prefill(int64_t n_done, int64_t n_total, int64_t n_cached) override {
    thinking.n_now = answer.n_now = 0;
    if (thinking.n_told + answer.n_told == 0) tell("prefill", {n_done, n_total, n_cached});
  }
  void on_reasoning(const std::string& text) override { tell_text("thinking", thinking.news(text)); }
  void on_answer(const std::string& text) override { tell_text("text", answer.news(text)); }
  bool is_interrupted() override {
    server.look_now_and_then();
    return is_cancelled || client.is_gone;
  }

  void tell_text(const char* what, const std::string& text) {
    if (!text.empty()) tell(what, warm_text(text));
  }
  void tell(const char* what, const ReadJson& json) { queue(client.link, {{"of", number}, {what, json}}); }

  WarmServer& server;
  Client& client;
  const int64_t number;  // the client's
  Request request;
  std::optional<int64_t> on_loop;  // its number there
  bool is_cancelled = false, is_over = false;
  Told thinking, answer;
};

WarmServer::WarmServer(Engine& engine, const Tokenizer& tokenizer, OwnedFd listener, WarmTerms terms)
    : engine_(engine),
      tokenizer_(tokenizer),
      listener_(std::move(listener)),
      terms_(std::move(terms)),
      began_at_(std::time(nullptr)) {}

WarmServer::~WarmServer() {
  for (const auto& client : clients_) client->is_gone = true;
  see_off();
}

void WarmServer::serve(const GracefulStop& stop) {
  while (!is_over(stop)) {
    const bool is_asked = begin_asked();
    look(is_asked ? 0 : idle_ms());
    turn(is_asked);
    see_off();
  }
}

bool WarmServer::is_over(const GracefulStop& stop) {
  is_ending_ = is_ending_ || stop.is_requested();
  const auto holds = [](const auto& client) { return client->wants_answers; };
  const auto is_unsent = [](const auto& client) { return client->link.has_unsent(); };
  if (n_asked() > 0 || (!is_ending_ && std::ranges::any_of(clients_, holds))) used_at_ = Clock::now();
  if (!is_ending_) return Clock::now() - used_at_ >= terms_.keep;
  const bool is_heard = std::ranges::none_of(clients_, is_unsent);
  return n_asked() == 0 && (is_heard || seconds_since(used_at_) > kLastWordsSeconds);
}

// Prefixes go on to the disk meanwhile.
int WarmServer::idle_ms() {
  if (engine_.prefix_cache() && engine_.prefix_cache()->tend()) return kStoreMs;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(terms_.keep - (Clock::now() - used_at_));
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, kIdleMs));
}

void WarmServer::look_now_and_then() {
  if (Clock::now() - looked_at_ >= std::chrono::milliseconds(kLookEveryMs)) look(0);
}

void WarmServer::look(int wait_ms) {
  std::vector<pollfd> watched{{listener_.get(), POLLIN, 0}};
  for (const auto& client : clients_)
    watched.push_back(
        {client->link.fd(), static_cast<short>(POLLIN | (client->link.has_unsent() ? POLLOUT : 0)), 0});
  poll(watched.data(), watched.size(), wait_ms);
  for (size_t i = 1; i < watched.size(); ++i) {
    Client& client = *clients_[i - 1];
    if (client.is_gone) continue;
    if (watched[i].revents & ~POLLOUT) listen_to(client);
    client.is_gone = client.is_gone || !client.link.send();
  }
  if (watched.front().revents & POLLIN) take_in();
  looked_at_ = Clock::now();
}

void WarmServer::take_in() {
  OwnedFd socket = accept_warm(listener_.get());
  if (!socket.is_open() || clients_.size() >= kMostClients) return;
  clients_.push_back(std::make_unique<Client>(std::move(socket), ++n_clients_));
}

void WarmServer::listen_to(Client& client) {
  client.is_gone = !client.link.receive();
  while (!client.is_leaving) {
    const std::optional<std::string> line = client.link.next_line();
    if (!line) return;
    try {
      obey(client, *line);
    } catch (const Error& error) {
      queue(client.link, {{"error", warm_json(error)}});
      client.is_leaving = true;
    }
  }
}

void WarmServer::obey(Client& client, const std::string& line) {
  constexpr int64_t kMostNumber = int64_t{1} << 53;
  const ReadJson json = parse_outside_json(line, kWarmDepth);
  JsonFields fields(json, "the line");
  if (!client.is_greeted) return greet(client, json);
  if (const auto cancelled = fields.integer("cancel", 0, kMostNumber)) {
    for (const auto& asked : client.asked)
      if (asked->number == *cancelled) asked->is_cancelled = true;
    return;
  }
  const auto number = fields.integer("ask", 0, kMostNumber);
  const ReadJson* request = fields.find("request");
  if (!number || !request || !client.wants_answers)
    fail(ErrorKind::usage, "the line asks for nothing that there is");
  take_request(client, *number, *request);
}

void WarmServer::greet(Client& client, const ReadJson& line) {
  JsonFields fields(line, "the line");
  const std::string want = fields.text("want").value_or("");
  if (fields.integer("dsv32", 0, INT32_MAX) != kWarmVersion)
    fail(ErrorKind::usage, "the warm process speaks another version of the protocol");
  client.is_greeted = true;
  client.wants_answers = want == "answers";
  if (client.wants_answers) {
    if (is_ending_) fail(ErrorKind::io, "the warm process is about to end");
    queue(client.link, {{"dsv32", kWarmVersion}, {"facts", warm_json(facts_of(engine_))}});
  } else if (want == "status" || want == "stop") {
    queue(client.link, status());
    is_ending_ = is_ending_ || want == "stop";
  } else {
    fail(ErrorKind::usage, "the warm process knows answers, status and stop");
  }
}

void WarmServer::take_request(Client& client, int64_t number, const ReadJson& json) {
  Request request = warm_request(json);
  if (client.asked.size() >= kMostAskedEach) fail(ErrorKind::usage, "too many requests at a time");
  if (is_ending_) fail(ErrorKind::io, "the warm process is about to end");
  request.tokenizer = &tokenizer_;
  request.talk = request.talk != 0 ? client.number : 0;
  client.asked.push_back(std::make_unique<Asked>(*this, client, number, std::move(request)));
}

// False: there is nothing for the loop to do.
bool WarmServer::begin_asked() {
  for (const auto& client : clients_)
    for (const auto& asked : client->asked)
      if (!asked->on_loop && !client->is_gone) try {
          asked->on_loop = engine_.loop().add(asked->request, *asked);
        } catch (const Error& error) {
          asked->tell("error", warm_json(error));
          asked->is_over = true;
        }
  for (const auto& client : clients_)
    std::erase_if(client->asked, [](const auto& asked) { return asked->is_over; });
  return n_asked() > 0;
}

// Between requests the model may have become another one.
void WarmServer::turn(bool is_asked) {
  try {
    is_asked ? static_cast<void>(engine_.loop().turn()) : engine_.check_file();
  } catch (const Error& error) {
    fail_all(error);
    throw;
  } catch (const std::bad_alloc&) {
    fail_all(Error(ErrorKind::memory, "out of memory", "a smaller context (-c) needs less"));
    throw;
  }
  conclude();
}

void WarmServer::conclude() {
  Loop& loop = engine_.loop();
  for (const auto& client : clients_)
    std::erase_if(client->asked, [&](const std::unique_ptr<Asked>& asked) {
      if (!asked->on_loop || !loop.is_done(*asked->on_loop)) return false;
      try {
        asked->tell("result", warm_json(loop.take(*asked->on_loop)));
      } catch (const Error& error) {
        asked->tell("error", warm_json(error));
      }
      return true;
    });
}

// No request's own fault: told to who waits, not of a request.
void WarmServer::fail_all(const Error& error) {
  for (const auto& client : clients_) {
    if (!client->asked.empty()) queue(client->link, {{"error", warm_json(error)}});
    client->link.send();
  }
}

// Who is gone takes its requests along.
void WarmServer::see_off() {
  std::erase_if(clients_, [&](const std::unique_ptr<Client>& client) {
    const bool is_mute = !client->is_greeted && seconds_since(client->since) > kGreetingSeconds;
    if (client->is_leaving) client->link.send();
    if (!client->is_gone && !is_mute && !(client->is_leaving && !client->link.has_unsent())) return false;
    for (const auto& asked : client->asked)
      if (asked->on_loop) engine_.loop().drop(*asked->on_loop);
    engine_.loop().end_talk(client->number);
    return true;
  });
}

int64_t WarmServer::n_asked() const {
  int64_t n = 0;
  for (const auto& client : clients_) n += std::ssize(client->asked);
  return n;
}

ReadJson WarmServer::status() const {
  const auto holds = [](const auto& client) { return client->wants_answers; };
  return {{"dsv32", kWarmVersion},
          {"pid", getpid()},
          {"model", warm_text(terms_.model)},
          {"began", began_at_},
          {"keep_seconds", terms_.keep.count()},
          {"idle_seconds", static_cast<int64_t>(seconds_since(used_at_))},
          {"clients", std::ranges::count_if(clients_, holds)},
          {"requests", n_asked()}};
}

}  // namespace dsv32
