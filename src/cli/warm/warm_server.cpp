// serve_warm(), in one thread. Sockets are polled, without waiting, between the loop's steps, and within a
// prompt's step when the loop calls is_interrupted(); so a slow, lost or faulty client delays nobody else.
// Requests are added and dropped only between steps. All clients are this user's own: nothing bounds what
// they ask for together but the longest line.
#include <algorithm>
#include <ctime>
#include <filesystem>
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

constexpr double kLastWordsSeconds = 5;  // for a slow client to read its last lines
constexpr double kAliveSeconds = 1;      // between two lines {} to a client that waits
constexpr int kPollEveryMs = 10, kStoreMs = 20, kIdleMs = 1000;

void queue(WarmLink& link, const Json& json) { link.queue(json_text(json)); }

class WarmServer {
 public:
  WarmServer(Model& model, WarmListener listener, std::chrono::seconds keep)
      : model_(model), engine_(model.engine()), listener_(std::move(listener)), keep_(keep) {}
  // A copy of a descriptor keeps a connection open until the process has ended.
  ~WarmServer() {
    for (const auto& client : clients_) {
      if (client->wants == Wants::end) [[maybe_unused]]
        const int copy = dup(client->link.fd());
      client->is_gone = true;
    }
    remove_clients();
  }

  void serve(const GracefulStop& stop) {
    while (!is_over(stop)) {
      begin_requests();
      const bool is_busy = n_wanting(Wants::answer) > 0;
      poll_clients(is_busy ? 0 : idle_ms());
      advance(is_busy);
      remove_clients();
    }
  }

 private:
  enum class Wants { nothing_yet, facts, answer, end, nothing_more };

  // A connection. As a listener it sends the answer to its request. A request that the loop begins anew gets
  // the same text once more, which is not sent again.
  struct Client : Listener {
    Client(WarmServer& its_server, OwnedFd socket, int64_t its_number)
        : server(its_server),
          link(std::move(socket)),
          number(its_number),
          json({.is_for_reader = true}, server.model_.tokenizer()) {}

    void on_prefill(int64_t n_done, int64_t n_total, int64_t n_cached) override {
      n_now = 0;
      if (n_sent == 0) send(json.progress(n_done, n_total, n_cached));
    }
    void on_reasoning(const std::string& text) override { send_piece("reasoning_content", text); }
    void on_answer(const std::string& text) override { send_piece("content", text); }
    bool is_interrupted() override {
      if (Clock::now() - server.polled_at_ >= std::chrono::milliseconds(kPollEveryMs)) server.poll_clients(0);
      return is_at_end || is_gone;
    }

    void send_piece(const char* field, const std::string& text) {
      n_now += text.size();
      if (n_now <= n_sent) return;
      const std::string news = text.substr(text.size() - std::min(n_now - n_sent, text.size()));
      n_sent = n_now;
      send(json.piece(field, news));
    }
    void send(std::string_view lines) { link.queue(lines.substr(0, lines.size() - 1)); }
    // Sends the error that is being handled, and nothing after it.
    void refuse() {
      const Error error = current_error();
      queue(link, {{"error", {error.kind(), error.what(), error.hint()}}});
      wants = Wants::nothing_more;
    }

    WarmServer& server;
    WarmLink link;
    const int64_t number;  // from 1
    AnswerJson json;
    Wants wants = Wants::nothing_yet;
    Request request;                 // until the loop has it
    std::optional<int64_t> on_loop;  // its number there
    size_t n_sent = 0, n_now = 0;    // bytes of text; since the loop has begun
    bool is_at_end = false;          // sends no more
    bool is_gone = false;
    Clock::time_point alive_at = Clock::now();
  };

  bool is_over(const GracefulStop& stop) {
    is_ending_ = is_ending_ || stop.is_requested();
    const bool is_busy = n_wanting(Wants::answer) > 0, has_clients = is_busy || n_wanting(Wants::facts) > 0;
    if (is_busy || (!is_ending_ && has_clients)) used_at_ = Clock::now();
    if (!is_ending_) return Clock::now() - used_at_ >= keep_ || (!has_clients && !listener_.is_there());
    const bool is_sent =
        std::ranges::none_of(clients_, [](const auto& client) { return client->link.n_unsent() > 0; });
    return !is_busy && (is_sent || seconds_since(used_at_) > kLastWordsSeconds);
  }

  // How long to wait for clients. While idle, prefixes are stored to disk.
  int idle_ms() {
    if (engine_.prefix_cache() && engine_.prefix_cache()->store_more()) return kStoreMs;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(keep_ - (Clock::now() - used_at_));
    return static_cast<int>(std::clamp<int64_t>(left.count(), 0, kIdleMs));
  }

  void poll_clients(int wait_ms) {
    std::vector<pollfd> watched{{listener_.fd(), POLLIN, 0}};
    for (const auto& client : clients_) {
      const int events = client->link.events() & (client->is_at_end ? ~POLLIN : ~0);
      watched.push_back({client->link.fd(), static_cast<short>(events), 0});
    }
    poll(watched.data(), watched.size(), wait_ms);
    for (size_t i = 1; i < watched.size(); ++i) receive_from(*clients_[i - 1], watched[i].revents);
    if (watched.front().revents & POLLIN) accept_clients();
    send_signs_of_life();
    polled_at_ = Clock::now();
  }

  // Accepts clients, and reads the first line, which most have sent by now.
  void accept_clients() {
    for (OwnedFd socket; (socket = listener_.accept()).is_open();) {
      clients_.push_back(std::make_unique<Client>(*this, std::move(socket), ++n_clients_));
      receive_from(*clients_.back(), POLLIN);
    }
  }

  // `events`: of poll. Only of a request the end is a wish; others have left.
  void receive_from(Client& client, int events) {
    std::string line;
    const auto result = events & POLLIN ? client.link.next_line(line, 0) : LineReader::Result::later;
    client.is_at_end = client.is_at_end || result == LineReader::Result::end;
    if (client.wants == Wants::nothing_yet && result == LineReader::Result::line) try {
        take_line(client, line);
      } catch (...) {
        client.refuse();
      }
    client.is_gone = client.is_gone || (events & (POLLHUP | POLLERR)) != 0 || !client.link.send() ||
                     (client.is_at_end && client.wants != Wants::answer);
  }

  // Sends {} to clients that wait; a hung process does not.
  void send_signs_of_life() {
    for (const auto& client : clients_) {
      const bool waits = client->wants == Wants::answer || client->wants == Wants::end;
      if (!waits || client->link.n_unsent() > 0 || seconds_since(client->alive_at) < kAliveSeconds) continue;
      queue(client->link, Json::object());
      client->alive_at = Clock::now();
      client->is_gone = client->is_gone || !client->link.send();
    }
  }

  void take_line(Client& client, const std::string& line) {
    const Json json = parse_outside_json(line, kRequestDepth);
    JsonFields fields(json, "the line");
    const std::optional<std::string> want = fields.text("want");
    if (want == "status" || want == "stop") {
      queue(client.link, status());
      client.wants = want == "stop" ? Wants::end : Wants::nothing_more;
      is_ending_ = is_ending_ || want == "stop";
    } else if (is_ending_) {
      client.is_gone = true;
    } else if (want == "facts") {
      queue(client.link, {{"facts", nlohmann::json(model_.facts())}, {"talk", client.number}});
      client.wants = Wants::facts;
    } else if (want) {
      fail(ErrorKind::usage, "expected want to be facts, status or stop");
    } else {
      client.request = read_client_request(fields);
      client.wants = Wants::answer;
    }
  }

  Request read_client_request(JsonFields& fields) {
    const int64_t talk = fields.integer("talk", 0, INT64_MAX).value_or(0);
    const ChatRequest read = read_request(fields, {});
    const Prompt prompt = prompt_of(read, model_.tokenizer(), most_encoded(model_.facts().context));
    Request request{nullptr, &model_.tokenizer(), prompt.ids, read.options, read.decoded};
    request.options.thinking = prompt.thinking;
    request.talk = talk;
    return request;
  }

  // Adds waiting requests to the loop.
  void begin_requests() {
    for (const auto& client : clients_)
      if (client->wants == Wants::answer && !client->on_loop) try {
          client->on_loop = engine_.loop().add(std::move(client->request), *client);
        } catch (...) {
          client->refuse();
        }
  }

  // Runs a step, or, between requests, checks that the model's file has not changed.
  void advance(bool is_busy) {
    is_busy ? static_cast<void>(engine_.loop().advance()) : engine_.check_file();
    for (const auto& client : clients_)
      if (client->on_loop && engine_.loop().is_done(*client->on_loop)) send_outcome(*client);
  }

  void send_outcome(Client& client) {
    try {
      client.send(client.json.last(engine_.loop().take(*std::exchange(client.on_loop, std::nullopt))));
      client.wants = Wants::nothing_more;
    } catch (...) {
      client.refuse();
    }
  }

  // Removes clients that are gone or done, and drops their requests.
  void remove_clients() {
    std::erase_if(clients_, [&](const std::unique_ptr<Client>& client) {
      const bool is_done = client->wants == Wants::nothing_more && client->link.n_unsent() == 0;
      if (!client->is_gone && !is_done) return false;
      if (client->on_loop) engine_.loop().drop(*client->on_loop);
      engine_.loop().end_talk(client->number);
      return true;
    });
  }

  int64_t n_wanting(Wants what) const {
    return std::ranges::count_if(clients_, [&](const auto& client) { return client->wants == what; });
  }

  Json status() const {
    return {{"pid", getpid()},
            {"model", std::filesystem::absolute(model_.path()).string()},
            {"began", began_at_},
            {"keep_seconds", keep_.count()},
            {"idle_seconds", static_cast<int64_t>(seconds_since(used_at_))},
            {"clients", n_wanting(Wants::facts)},
            {"requests", n_wanting(Wants::answer)}};
  }

  const Model& model_;
  Engine& engine_;
  WarmListener listener_;
  const std::chrono::seconds keep_;
  std::vector<std::unique_ptr<Client>> clients_;
  int64_t n_clients_ = 0;  // so far
  bool is_ending_ = false;
  Clock::time_point used_at_ = Clock::now(), polled_at_ = Clock::now();
  const time_t began_at_ = std::time(nullptr);
};

}  // namespace

void serve_warm(Model& model, WarmListener listener, std::chrono::seconds keep, const GracefulStop& stop) {
  WarmServer(model, std::move(listener), keep).serve(stop);
}

}  // namespace dsv32
