// See warm_client.h.
#include "cli/warm_client.h"

#include <algorithm>

#include <poll.h>

#include "base/text.h"
#include "cli/json.h"
#include "engine/session.h"

namespace dsv32 {
namespace {

constexpr int kPatienceMs = 10000;  // for the first answer: a step may be under way
constexpr int kTurnMs = 50;         // between two looks at whether a signal came

void wait_for(const WarmLink& link, int wait_ms) {
  pollfd ready{link.fd(), static_cast<short>(POLLIN | (link.has_unsent() ? POLLOUT : 0)), 0};
  poll(&ready, 1, wait_ms);
}

[[noreturn]] void fail_unread() { fail(ErrorKind::io, "the warm process said what cannot be understood"); }

ReadJson parse(const std::string& line) {
  ReadJson json = ReadJson::parse(line, nullptr, false);
  if (!json.is_object()) fail_unread();
  return json;
}

}  // namespace

std::optional<WarmGreeting> greet_warm(const std::string& path, const char* want) {
  OwnedFd socket = connect_warm(path);
  if (!socket.is_open()) return std::nullopt;
  WarmLink link(std::move(socket), kMostToldBytes, kMostToldBytes);
  link.queue(ReadJson{{"dsv32", kWarmVersion}, {"want", want}}.dump());
  link.send();
  wait_for(link, kPatienceMs);
  link.receive();
  const std::optional<std::string> line = link.next_line();
  if (!line) fail(ErrorKind::io, "a warm process does not answer");
  ReadJson answer = parse(*line);
  if (const auto error = answer.find("error"); error != answer.end()) throw warm_error(*error);
  if (answer.value("dsv32", 0) != kWarmVersion) fail_unread();
  return WarmGreeting{std::move(link), std::move(answer)};
}

std::unique_ptr<WarmClient> WarmClient::connect(const std::string& path) {
  std::optional<WarmGreeting> greeting = greet_warm(path, "answers");
  if (!greeting) return nullptr;
  std::unique_ptr<WarmClient> client(new WarmClient(std::move(greeting->link), warm_log(path)));
  client->facts_ = warm_facts(greeting->answer.at("facts"));
  return client;
}

int64_t WarmClient::add(Request request, Listener& listener) {
  Asked& asked = asked_.insert({n_added_, {&listener}}).first->second;
  try {
    check_prompt(facts_.vocab_size, facts_.context, request.prompt);
    link_.queue(ReadJson{{"ask", n_added_}, {"request", warm_json(request)}}.dump());
  } catch (const Error& error) {
    asked.outcome = error;
  }
  return n_added_++;
}

bool WarmClient::turn() {
  bool is_waiting = false;
  for (auto& [number, asked] : asked_) {
    if (asked.is_done()) continue;
    is_waiting = true;
    if (asked.is_cancelled || !asked.listener->is_interrupted()) continue;
    asked.is_cancelled = true;
    link_.queue(ReadJson{{"cancel", number}}.dump());
  }
  if (!is_waiting) return false;
  bool is_there = link_.send();
  wait_for(link_, kTurnMs);
  is_there = link_.receive() && is_there;
  while (const std::optional<std::string> line = link_.next_line()) try {
      hear(parse(*line));
    } catch (const ReadJson::exception&) {
      fail_unread();
    }
  const auto is_done = [](const auto& row) { return row.second.is_done(); };
  if (!is_there && !std::ranges::all_of(asked_, is_done))
    fail(ErrorKind::io, "the warm process ended before its answer did",
         log_ + " may say why; with --warm never the model is loaded here");
  return true;
}

void WarmClient::hear(const ReadJson& line) {
  const auto of = line.find("of");
  if (of == line.end()) throw warm_error(line.at("error"));
  const auto asked = asked_.find(of->get<int64_t>());
  if (asked != asked_.end() && !asked->second.is_done()) tell(asked->second, line);
}

void WarmClient::tell(Asked& asked, const ReadJson& line) {
  const auto has = [&](const char* key) { return line.contains(key); };
  if (has("prefill")) {
    const ReadJson& n = line["prefill"];
    asked.listener->on_prefill(n.at(0).get<int64_t>(), n.at(1).get<int64_t>(), n.at(2).get<int64_t>());
  } else if (has("thinking")) {
    asked.listener->on_reasoning(warm_bytes(line["thinking"]));
  } else if (has("text")) {
    asked.listener->on_answer(warm_bytes(line["text"]));
  } else if (has("result")) {
    asked.outcome = warm_result(line["result"]);
  } else {
    asked.outcome = warm_error(line.at("error"));
  }
}

bool WarmClient::is_done(int64_t request) const { return asked_.at(request).is_done(); }

GenerationResult WarmClient::take(int64_t request) {
  const auto outcome = std::move(asked_.extract(request).mapped().outcome);
  if (const Error* error = std::get_if<Error>(&outcome)) throw *error;
  return std::get<GenerationResult>(outcome);
}

void WarmClient::drop(int64_t request) {
  const auto asked = asked_.extract(request);
  if (asked.empty() || asked.mapped().is_done()) return;
  link_.queue(ReadJson{{"cancel", request}}.dump());
  link_.send();
}

}  // namespace dsv32
