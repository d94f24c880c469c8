// serve_warm(), in one thread. Sockets are polled, without waiting, between the loop's steps, and within a
// prompt's step when the loop calls is_interrupted(); so a slow, lost or faulty client delays nobody else.
// Requests are added and dropped only between steps. A client that does not read is not heard any more, which
// bounds the memory for each.
#include <algorithm>
#include <ctime>
#include <memory>
#include <optional>

#include <poll.h>
#include <unistd.h>

#include "base/error.h"
#include "base/stopwatch.h"
#include "cli/options/request_json.h"
#include "cli/warm/answer_json.h"
#include "cli/warm/warm.h"
#include "cli/warm/warm_wire.h"
#include "engine/loop.h"

namespace dsv32 {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kMostClients = 256;    // that want answers
constexpr size_t kMostOthers = 64;       // that have not said what they want, or want something else
constexpr size_t kMostAskedEach = 4096;  // requests of a client
constexpr int64_t kMostTokens = int64_t{1} << 26;  // of all prompts
constexpr size_t kMostUnread = size_t{1} << 20;    // bytes that a client that is heard may leave unread
constexpr double kGreetingSeconds = 10;            // until a client must have said what it wants
constexpr double kLastWordsSeconds = 5;            // for a slow client to read its last lines
constexpr double kAliveSeconds = 1;                // between two lines {} to a client that waits
constexpr int kLookEveryMs = 10, kStoreMs = 20, kIdleMs = 1000;

void queue(WarmLink& link, const ReadJson& json) { link.queue(json_text(json)); }

// The error that is being handled, of the client's request `id`.
void queue_error(WarmLink& link, const std::string& id, bool is_ending = false) {
  ReadJson line{{"id", id}, {"error", WarmError(current_error())}};
  if (is_ending) line["ending"] = true;
  queue(link, line);
}

class WarmServer {
 public:
  WarmServer(Engine& engine, const Tokenizer& tokenizer, WarmListener listener, const WarmTerms& terms)
      : engine_(engine), tokenizer_(tokenizer), listener_(std::move(listener)), terms_(terms) {}
  ~WarmServer() {
    for (const auto& client : clients_) client->is_gone = true;
    remove_clients();
  }

  void serve(const GracefulStop& stop) {
    while (!is_over(stop)) {
      const bool is_asked = begin_asked();
      look(is_asked ? 0 : idle_ms());
      turn(is_asked);
      remove_clients();
    }
  }

  std::vector<WarmLink> take_waiting() {
    std::vector<WarmLink> waiting;
    for (const auto& client : clients_)
      if (client->wants_end) waiting.push_back(std::move(client->link));
    std::erase_if(clients_, [](const auto& client) { return client->wants_end; });
    return waiting;
  }

 private:
  struct Client;

  // A request, waiting for the loop or on it; as a listener it sends the answer to its client. A request that
  // the loop begins anew gets the same text once more, which is not told again.
  struct Asked : Listener {
    Asked(WarmServer& its_server, Client& its_client, const std::string& its_id, Request its_request)
        : server(its_server),
          client(its_client),
          id(its_id),
          request(std::move(its_request)),
          n_tokens(std::ssize(request.prompt)),
          json({.custom_id = id}, server.tokenizer_) {}

    void on_prefill(int64_t n_done, int64_t n_total, int64_t n_cached) override {
      n_now = 0;
      if (n_told == 0) tell(json.progress(n_done, n_total, n_cached));
    }
    void on_reasoning(const std::string& text) override { tell_piece("reasoning_content", text); }
    void on_answer(const std::string& text) override { tell_piece("content", text); }
    bool is_interrupted() override {
      if (Clock::now() - server.looked_at_ >= std::chrono::milliseconds(kLookEveryMs)) server.look(0);
      return is_cancelled || client.is_gone;
    }

    void tell_piece(const char* field, const std::string& text) {
      n_now += text.size();
      if (n_now <= n_told) return;
      const std::string news = text.substr(text.size() - std::min(n_now - n_told, text.size()));
      n_told = n_now;
      tell(json.piece(field, news));
    }
    void tell(std::string_view lines) { client.link.queue(lines.substr(0, lines.size() - 1)); }

    WarmServer& server;
    Client& client;
    const std::string id;  // given by the client
    Request request;       // until the loop has it
    const int64_t n_tokens;
    AnswerJson json;
    size_t n_told = 0, n_now = 0;    // bytes of text; since the loop has begun
    std::optional<int64_t> on_loop;  // its number there
    bool is_cancelled = false, is_over = false;
  };

  struct Client {
    Client(OwnedFd socket, int64_t its_number, int64_t context)
        : link(std::move(socket), most_asked_bytes(context)), number(its_number) {}
    bool is_heard() const { return !is_gone && !is_leaving && link.n_unsent() < kMostUnread; }
    void leave() { is_leaving = true, since = Clock::now(); }

    WarmLink link;
    const int64_t number;  // from 1
    bool is_greeted = false, wants_answers = false, wants_end = false;
    bool is_leaving = false;  // leaves when its queued lines are sent
    bool is_gone = false;
    Clock::time_point since = Clock::now(), told_at = since;
    std::vector<std::unique_ptr<Asked>> asked;
  };

  bool is_over(const GracefulStop& stop) {
    is_ending_ = is_ending_ || stop.is_requested();
    const auto is_unsent = [](const auto& client) { return client->link.n_unsent() > 0; };
    if (n_asked() > 0 || (!is_ending_ && n_answered() > 0)) used_at_ = Clock::now();
    if (!is_ending_)
      return Clock::now() - used_at_ >= terms_.keep || (n_answered() == 0 && !listener_.is_there());
    const bool is_heard = std::ranges::none_of(clients_, is_unsent);
    return n_asked() == 0 && (is_heard || seconds_since(used_at_) > kLastWordsSeconds);
  }

  // How long to wait for clients. While idle, prefixes are stored to disk.
  int idle_ms() {
    if (engine_.prefix_cache() && engine_.prefix_cache()->store_more()) return kStoreMs;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(terms_.keep - (Clock::now() - used_at_));
    return static_cast<int>(std::clamp<int64_t>(left.count(), 0, kIdleMs));
  }

  void look(int wait_ms) {
    std::vector<pollfd> watched{{listener_.fd(), POLLIN, 0}};
    for (const auto& client : clients_)
      watched.push_back({client->link.fd(),
                         static_cast<short>((client->is_heard() ? POLLIN : 0) |
                                            (client->link.n_unsent() > 0 ? POLLOUT : 0)),
                         0});
    poll(watched.data(), watched.size(), wait_ms);
    for (size_t i = 1; i < watched.size(); ++i) listen_to(*clients_[i - 1], watched[i].revents);
    if (watched.front().revents & POLLIN) take_in();
    tell_alive();
    make_room();
    looked_at_ = Clock::now();
  }

  // Accepts clients, and reads the first line, which most have sent by now.
  void take_in() {
    constexpr int kMostAtOnce = 64;
    for (int i = 0; i < kMostAtOnce; ++i) {
      OwnedFd socket = listener_.accept();
      if (!socket.is_open()) return;
      clients_.push_back(
          std::make_unique<Client>(std::move(socket), ++n_clients_, engine_.plan().cache.max_context));
      listen_to(*clients_.back(), POLLIN);
    }
  }

  // Drops the oldest clients that want no answers, if these are too many. Drops the client with the most
  // unread bytes, if all clients together have too many.
  void make_room() {
    const auto is_other = [](const auto& client) { return !client->wants_answers && !client->is_gone; };
    auto n_others = static_cast<size_t>(std::ranges::count_if(clients_, is_other));
    size_t n_unread = 0;
    for (const auto& client : clients_) {
      if (n_others > kMostOthers && is_other(client)) client->is_gone = true, --n_others;
      n_unread += client->link.n_unsent();
    }
    const auto unsent = [](const auto& client) { return client->link.n_unsent(); };
    if (n_unread > kMostToldBytes) (*std::ranges::max_element(clients_, {}, unsent))->is_gone = true;
  }

  // `events`: of poll.
  void listen_to(Client& client, int events) {
    if (client.is_gone) return;
    client.is_gone = events & POLLIN ? !client.link.receive() : (events & ~POLLOUT) != 0;
    client.is_gone = client.is_gone || !client.link.send();
    while (client.is_heard()) {
      const std::optional<std::string> line = client.link.next_line();
      if (!line) break;
      try {
        take_line(client, *line);
      } catch (...) {
        queue(client.link, {{"error", WarmError(current_error())}});
        client.leave();
      }
    }
    client.is_gone = client.is_gone || !client.link.send();
  }

  // Sends {} to clients that wait; a hung process does not.
  void tell_alive() {
    for (const auto& client : clients_) {
      const bool waits = !client->asked.empty() || client->wants_end;
      if (!waits || client->link.n_unsent() > 0 || seconds_since(client->told_at) < kAliveSeconds) continue;
      queue(client->link, ReadJson::object());
      client->told_at = Clock::now();
      client->is_gone = client->is_gone || !client->link.send();
    }
  }

  void take_line(Client& client, const std::string& line) {
    const ReadJson json = warm_object(line);
    JsonFields fields(json, "the line");
    if (!client.is_greeted) return greet(client, fields);
    if (const auto cancelled = fields.text("cancel")) {
      for (const auto& asked : client.asked) asked->is_cancelled |= asked->id == *cancelled;
      return;
    }
    const std::string id = fields.text("custom_id").value_or("");
    if (id.empty() || !client.wants_answers) fail(ErrorKind::usage, "the line has no known request");
    try {
      if (is_ending_) fail(ErrorKind::io, "the warm process is about to end");
      take_request(client, id, fields, line);
    } catch (...) {  // of this request alone: the client's others go on
      queue_error(client.link, id, is_ending_);
    }
  }

  void greet(Client& client, JsonFields& fields) {
    const std::string want = fields.text("want").value_or("");
    if (fields.integer("dsv32", 0, INT32_MAX) != kWarmVersion)
      fail(ErrorKind::usage, "the warm process speaks another version of the protocol");
    client.is_greeted = true;
    if (want == "answers") {
      if (is_ending_) fail(ErrorKind::io, "the warm process is about to end");
      if (n_answered() >= kMostClients)
        fail(ErrorKind::io, format("the warm process has %lld clients already", as_ll(kMostClients)));
      client.wants_answers = true;
      queue(client.link, {{"dsv32", kWarmVersion}, {"facts", facts_of(engine_)}});
    } else if (want == "status" || want == "stop") {
      queue(client.link, status());
      client.wants_end = want == "stop";
      is_ending_ = is_ending_ || client.wants_end;
      if (!client.wants_end) client.leave();
    } else {
      fail(ErrorKind::usage, "expected want to be answers, status or stop");
    }
  }

  void take_request(Client& client, const std::string& id, JsonFields& fields, const std::string& line) {
    const bool is_talk = fields.truth("talk").value_or(false);
    const ChatRequest read = read_request(fields, line, {});
    const Prompt prompt = prompt_of(read, tokenizer_, most_encoded(engine_.plan().cache.max_context));
    Request request{nullptr, &tokenizer_, prompt.ids, read.options, read.decoded};
    request.options.thinking = prompt.thinking;
    request.talk = is_talk ? client.number : 0;
    int64_t n_tokens = std::ssize(request.prompt);
    for (const auto& other : clients_)
      for (const auto& asked : other->asked) n_tokens += asked->n_tokens;
    if (client.asked.size() >= kMostAskedEach || n_tokens > kMostTokens)
      fail(ErrorKind::io, "the warm process is asked for too much at a time");
    client.asked.push_back(std::make_unique<Asked>(*this, client, id, std::move(request)));
  }

  // Adds waiting requests to the loop. False: the loop has nothing to do.
  bool begin_asked() {
    for (const auto& client : clients_) {
      for (const auto& asked : client->asked)
        if (!asked->on_loop && !client->is_gone) try {
            asked->on_loop = engine_.loop().add(std::move(asked->request), *asked);
          } catch (...) {
            queue_error(client->link, asked->id);
            asked->is_over = true;
          }
      std::erase_if(client->asked, [](const auto& asked) { return asked->is_over; });
    }
    return n_asked() > 0;
  }

  // Runs a step, or, between requests, checks that the model's file has not changed. An error that is not one
  // request's goes to all clients that wait, so that they ask another process.
  void turn(bool is_asked) {
    try {
      is_asked ? static_cast<void>(engine_.loop().turn()) : engine_.check_file();
    } catch (...) {
      for (const auto& client : clients_) {
        if (!client->asked.empty()) queue(client->link, {{"error", WarmError(current_error())}});
        client->link.send();
      }
      throw;
    }
    for (const auto& client : clients_)
      std::erase_if(client->asked, [&](const auto& asked) { return send_outcome(*asked); });
  }

  // Sends the request's outcome. False: the loop has not finished the request.
  bool send_outcome(Asked& asked) {
    if (!asked.on_loop || !engine_.loop().is_done(*asked.on_loop)) return false;
    try {
      asked.tell(asked.json.last(engine_.loop().take(*asked.on_loop)));
    } catch (...) {
      queue_error(asked.client.link, asked.id);
    }
    return true;
  }

  // Removes clients that are gone, mute or done, and drops their requests.
  void remove_clients() {
    std::erase_if(clients_, [&](const std::unique_ptr<Client>& client) {
      const double seconds = seconds_since(client->since);
      const bool is_mute = !client->is_greeted && seconds > kGreetingSeconds;
      const bool has_left =
          client->is_leaving && (client->link.n_unsent() == 0 || seconds > kLastWordsSeconds);
      if (!client->is_gone && !is_mute && !has_left) return false;
      for (const auto& asked : client->asked)
        if (asked->on_loop) engine_.loop().drop(*asked->on_loop);
      engine_.loop().end_talk(client->number);
      return true;
    });
  }

  int64_t n_answered() const {
    return std::ranges::count_if(clients_, [](const auto& client) { return client->wants_answers; });
  }

  int64_t n_asked() const {
    int64_t n = 0;
    for (const auto& client : clients_) n += std::ssize(client->asked);
    return n;
  }

  ReadJson status() const {
    ReadJson parts = ReadJson::array();
    for (const FileStamp& part : terms_.parts) parts.push_back({part.device, part.inode});
    return {{"dsv32", kWarmVersion},
            {"pid", getpid()},
            {"model", terms_.model},
            {"parts", std::move(parts)},
            {"began", began_at_},
            {"keep_seconds", terms_.keep.count()},
            {"idle_seconds", static_cast<int64_t>(seconds_since(used_at_))},
            {"clients", n_answered()},
            {"requests", n_asked()}};
  }

  Engine& engine_;
  const Tokenizer& tokenizer_;
  WarmListener listener_;
  const WarmTerms& terms_;
  std::vector<std::unique_ptr<Client>> clients_;
  int64_t n_clients_ = 0;  // so far
  bool is_ending_ = false;
  Clock::time_point used_at_ = Clock::now(), looked_at_ = Clock::now();
  const time_t began_at_ = std::time(nullptr);
};

}  // namespace

std::vector<WarmLink> serve_warm(Engine& engine, const Tokenizer& tokenizer, WarmListener listener,
                                 const WarmTerms& terms, const GracefulStop& stop) {
  WarmServer server(engine, tokenizer, std::move(listener), terms);
  server.serve(stop);
  return server.take_waiting();
}

}  // namespace dsv32
