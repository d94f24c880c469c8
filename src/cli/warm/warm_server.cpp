// See warm_server.h.
#include "cli/warm/warm_server.h"

#include <algorithm>
#include <ctime>
#include <optional>

#include <poll.h>
#include <unistd.h>

#include "base/error.h"
#include "base/stopwatch.h"
#include "cli/options/json.h"
#include "cli/options/json_fields.h"
#include "cli/terminal/told_text.h"
#include "engine/loop.h"

namespace dsv32 {
namespace {

constexpr int64_t kMostClients = 256;              // who want answers
constexpr size_t kMostOthers = 64;                 // who have not said what they want, or want something else
constexpr size_t kMostAskedEach = 4096;            // requests of a client
constexpr int64_t kMostTokens = int64_t{1} << 26;  // of all prompts
constexpr size_t kMostUnread = size_t{1} << 20;    // bytes that a client leaves unread, and is heard
constexpr int kWarmDepth = 8;                      // of JSON
constexpr double kGreetingSeconds = 10;            // who has not said by then what it wants is no client
constexpr double kLastWordsSeconds = 5;            // that who is slow has for what is queued at the end
constexpr double kAliveSeconds = 1;                // between two words to who waits
constexpr int kLookEveryMs = 10, kStoreMs = 20, kIdleMs = 1000;

void queue(WarmLink& link, const ReadJson& json) { link.queue(json.dump()); }

// What was thrown, as it is told.
ReadJson error_json(const std::exception& thrown) {
  if (const auto* error = dynamic_cast<const Error*>(&thrown)) return warm_json(*error);
  if (dynamic_cast<const std::bad_alloc*>(&thrown))
    return warm_json(Error(ErrorKind::memory, "out of memory", "a smaller context (-c) needs less"));
  return warm_json(Error(ErrorKind::internal, thrown.what()));
}

}  // namespace

struct WarmServer::Client {
  Client(OwnedFd socket, int64_t its_number, int64_t context)
      : link(std::move(socket), most_asked_bytes(context)), number(its_number) {}
  bool is_heard() const { return !is_gone && !is_leaving && link.n_unsent() < kMostUnread; }
  void leave() { is_leaving = true, since = Clock::now(); }

  WarmLink link;
  const int64_t number;  // from 1
  bool is_greeted = false, wants_answers = false, wants_end = false;
  bool is_leaving = false;  // when it has got what is queued
  bool is_gone = false;
  Clock::time_point since = Clock::now(), told_at = since;
  std::vector<std::unique_ptr<Asked>> asked;
};

// A request, waiting for the loop or on it, and what its client hears.
struct WarmServer::Asked : Listener {
  Asked(WarmServer& its_server, Client& its_client, int64_t its_number, Request its_request)
      : server(its_server),
        client(its_client),
        number(its_number),
        request(std::move(its_request)),
        n_tokens(std::ssize(request.prompt)) {}

  void on_prefill(int64_t n_done, int64_t n_total, int64_t n_cached) override {
    thinking.begin_anew(), answer.begin_anew();
    if (thinking.is_empty() && answer.is_empty()) tell("prefill", {n_done, n_total, n_cached});
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
  Request request;       // until the loop has it
  const int64_t n_tokens;
  std::optional<int64_t> on_loop;  // its number there
  bool is_cancelled = false, is_over = false;
  ToldText thinking, answer;
};

WarmServer::WarmServer(Engine& engine, const Tokenizer& tokenizer, WarmListener listener, WarmTerms terms)
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
  const auto is_unsent = [](const auto& client) { return client->link.n_unsent() > 0; };
  if (n_asked() > 0 || (!is_ending_ && n_answered() > 0)) used_at_ = Clock::now();
  if (!is_ending_)
    return Clock::now() - used_at_ >= terms_.keep || (n_answered() == 0 && !listener_.is_there());
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
  std::vector<pollfd> watched{{listener_.fd(), POLLIN, 0}};
  for (const auto& client : clients_)
    watched.push_back(
        {client->link.fd(),
         static_cast<short>((client->is_heard() ? POLLIN : 0) | (client->link.n_unsent() > 0 ? POLLOUT : 0)),
         0});
  poll(watched.data(), watched.size(), wait_ms);
  for (size_t i = 1; i < watched.size(); ++i) listen_to(*clients_[i - 1], watched[i].revents);
  if (watched.front().revents & POLLIN) take_in();
  tell_alive();
  make_room();
  looked_at_ = Clock::now();
}

// They have said by now what they want, most of them.
void WarmServer::take_in() {
  constexpr int kMostAtOnce = 64;
  for (int i = 0; i < kMostAtOnce; ++i) {
    OwnedFd socket = listener_.accept();
    if (!socket.is_open()) return;
    clients_.push_back(
        std::make_unique<Client>(std::move(socket), ++n_clients_, engine_.plan().cache.max_context));
    listen_to(*clients_.back(), POLLIN);
  }
}

// Who has been there for longest and wants no answers gives way to others of that kind; of all together so
// much is kept that they have not read.
void WarmServer::make_room() {
  const auto is_other = [](const auto& client) { return !client->wants_answers && !client->is_gone; };
  auto n_others = static_cast<size_t>(std::ranges::count_if(clients_, is_other));
  for (const auto& client : clients_)
    if (n_others > kMostOthers && is_other(client)) client->is_gone = true, --n_others;
  size_t n_unread = 0;
  for (const auto& client : clients_) n_unread += client->link.n_unsent();
  if (n_unread <= kMostToldBytes) return;
  (*std::ranges::max_element(clients_, {}, [](const auto& client) {
    return client->link.n_unsent();
  }))->is_gone = true;
}

// `events`: of poll.
void WarmServer::listen_to(Client& client, int events) {
  if (client.is_gone) return;
  if (events & POLLIN)
    client.is_gone = !client.link.receive();
  else if (events & ~POLLOUT)
    client.is_gone = true;
  client.is_gone = client.is_gone || !client.link.send();
  hear(client);
  client.is_gone = client.is_gone || !client.link.send();
}

void WarmServer::hear(Client& client) {
  while (client.is_heard()) {
    const std::optional<std::string> line = client.link.next_line();
    if (!line) return;
    try {
      obey(client, *line);
    } catch (const std::exception& error) {
      queue(client.link, {{"error", error_json(error)}});
      client.leave();
    }
  }
}

// A word to who waits: hung processes say none.
void WarmServer::tell_alive() {
  for (const auto& client : clients_) {
    const bool waits = !client->asked.empty() || client->wants_end;
    if (!waits || client->link.n_unsent() > 0 || seconds_since(client->told_at) < kAliveSeconds) continue;
    queue(client->link, ReadJson::object());
    client->told_at = Clock::now();
    client->is_gone = client->is_gone || !client->link.send();
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
  if (!number || !client.wants_answers) fail(ErrorKind::usage, "the line asks for nothing that there is");
  if (is_ending_) return queue(client.link, {{"of", *number}, {"ending", true}});
  try {
    const ReadJson* request = fields.find("request");
    if (!request) fail(ErrorKind::usage, "the request is missing");
    take_request(client, *number, *request);
  } catch (const std::exception& error) {  // its own: others of the client go on
    queue(client.link, {{"of", *number}, {"error", error_json(error)}});
  }
}

void WarmServer::greet(Client& client, const ReadJson& line) {
  JsonFields fields(line, "the line");
  const std::string want = fields.text("want").value_or("");
  if (fields.integer("dsv32", 0, INT32_MAX) != kWarmVersion)
    fail(ErrorKind::usage, "the warm process speaks another version of the protocol");
  client.is_greeted = true;
  if (want == "answers") {
    if (is_ending_) fail(ErrorKind::io, "the warm process is about to end");
    if (n_answered() >= kMostClients)
      fail(ErrorKind::io, format("the warm process has %lld clients already", as_ll(kMostClients)));
    client.wants_answers = true;
    queue(client.link, {{"dsv32", kWarmVersion}, {"facts", warm_json(facts_of(engine_))}});
  } else if (want == "status" || want == "stop") {
    queue(client.link, status());
    client.wants_end = want == "stop";
    is_ending_ = is_ending_ || client.wants_end;
    if (!client.wants_end) client.leave();
  } else {
    fail(ErrorKind::usage, "the warm process knows answers, status and stop");
  }
}

void WarmServer::take_request(Client& client, int64_t number, const ReadJson& json) {
  Request request = warm_request(json);
  int64_t n_tokens = std::ssize(request.prompt);
  for (const auto& other : clients_)
    for (const auto& asked : other->asked) n_tokens += asked->n_tokens;
  if (client.asked.size() >= kMostAskedEach || n_tokens > kMostTokens)
    fail(ErrorKind::io, "the warm process is asked for too much at a time");
  request.tokenizer = &tokenizer_;
  request.talk = request.talk != 0 ? client.number : 0;
  client.asked.push_back(std::make_unique<Asked>(*this, client, number, std::move(request)));
}

// False: there is nothing for the loop to do.
bool WarmServer::begin_asked() {
  for (const auto& client : clients_)
    for (const auto& asked : client->asked)
      if (!asked->on_loop && !client->is_gone) try {
          asked->on_loop = engine_.loop().add(std::move(asked->request), *asked);
        } catch (const std::exception& error) {
          asked->tell("error", error_json(error));
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
  } catch (const std::exception& error) {
    fail_all(error);
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
      } catch (const std::exception& error) {
        asked->tell("error", error_json(error));
      }
      return true;
    });
}

// No request's own fault: told to who waits, not of a request, so that it asks another.
void WarmServer::fail_all(const std::exception& error) {
  for (const auto& client : clients_) {
    if (!client->asked.empty()) queue(client->link, {{"error", error_json(error)}});
    client->link.send();
  }
}

// Who is gone takes its requests along.
void WarmServer::see_off() {
  std::erase_if(clients_, [&](const std::unique_ptr<Client>& client) {
    const bool is_mute = !client->is_greeted && seconds_since(client->since) > kGreetingSeconds;
    const bool has_left = client->is_leaving &&
                          (client->link.n_unsent() == 0 || seconds_since(client->since) > kLastWordsSeconds);
    if (!client->is_gone && !is_mute && !has_left) return false;
    for (const auto& asked : client->asked)
      if (asked->on_loop) engine_.loop().drop(*asked->on_loop);
    engine_.loop().end_talk(client->number);
    return true;
  });
}

std::vector<WarmLink> WarmServer::take_waiting() {
  std::vector<WarmLink> waiting;
  for (const auto& client : clients_)
    if (client->wants_end) waiting.push_back(std::move(client->link));
  std::erase_if(clients_, [](const auto& client) { return client->wants_end; });
  return waiting;
}

int64_t WarmServer::n_answered() const {
  return std::ranges::count_if(clients_, [](const auto& client) { return client->wants_answers; });
}

int64_t WarmServer::n_asked() const {
  int64_t n = 0;
  for (const auto& client : clients_) n += std::ssize(client->asked);
  return n;
}

ReadJson WarmServer::status() const {
  ReadJson parts = ReadJson::array();
  for (const FileStamp& part : terms_.parts) parts.push_back({part.device, part.inode});
  return {{"dsv32", kWarmVersion},
          {"pid", getpid()},
          {"model", warm_text(terms_.model)},
          {"parts", std::move(parts)},
          {"began", began_at_},
          {"keep_seconds", terms_.keep.count()},
          {"idle_seconds", static_cast<int64_t>(seconds_since(used_at_))},
          {"clients", n_answered()},
          {"requests", n_asked()}};
}

}  // namespace dsv32
