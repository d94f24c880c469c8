// See warm_client.h.
#include "cli/warm/warm_client.h"

#include <algorithm>

#include "base/text.h"
#include "cli/options/request_json.h"
#include "engine/request.h"

namespace dsv32 {
namespace {

constexpr int kTurnMs = 50;           // between checks for a signal
constexpr double kCancelSeconds = 2;  // for an interrupted request to end

ReadJson parse(const std::string& line) {
  try {
    return warm_object(line);
  } catch (const Error&) {
    fail_unread();
  }
}

// Throws Error{usage} for text that JSON cannot carry.
std::string line_of(const Json& json) try { return json.dump(); } catch (const Json::exception&) {
  fail(ErrorKind::usage, "the request has text that is no UTF-8",
       "with --warm never the model is loaded here");
}

// Nothing: the other end is gone.
std::optional<std::string> first_line(WarmLink& link, const std::string& path) {
  const auto begin = std::chrono::steady_clock::now();
  for (bool is_there = true; is_there;) {
    const int left_ms = kWarmPatienceMs - static_cast<int>(seconds_since(begin) * 1000);
    if (left_ms <= 0) throw WarmGone("the warm process at " + visible(path) + " does not answer");
    is_there = link.exchange(left_ms);
    if (std::optional<std::string> line = link.next_line()) return line;
  }
  return std::nullopt;
}

}  // namespace

std::optional<WarmGreeting> greet_warm(const std::string& path, const char* want) {
  OwnedFd socket = connect_warm(path);
  if (!socket.is_open()) return std::nullopt;
  WarmLink link(std::move(socket), kMostToldBytes);
  link.queue(line_of({{"dsv32", kWarmVersion}, {"want", want}}));
  const std::optional<std::string> line = first_line(link, path);
  if (!line) return std::nullopt;
  return readable([&] {
    ReadJson answer = parse(*line);
    if (const auto error = answer.find("error"); error != answer.end()) throw error->get<WarmError>().error();
    if (answer.at("dsv32").get<int>() != kWarmVersion) fail_unread();
    return WarmGreeting{std::move(link), std::move(answer)};
  });
}

std::unique_ptr<WarmClient> WarmClient::connect(const std::string& path) {
  std::optional<WarmGreeting> greeting = greet_warm(path, "answers");
  if (!greeting) return nullptr;
  std::unique_ptr<WarmClient> client(new WarmClient(std::move(greeting->link), warm_log(path)));
  EngineFacts& facts = client->facts_;
  facts = readable([&] { return greeting->answer.at("facts").get<EngineFacts>(); });
  if (facts.vocab_size < 1 || facts.context < 1 || facts.max_seqs < 1) fail_unread();
  return client;
}

int64_t WarmClient::add(Request request, Listener& listener) {
  check_prompt(facts_.vocab_size, facts_.context, request.prompt);
  const std::string id = std::to_string(n_added_);
  const std::string line =
      line_of({{"custom_id", id}, {"talk", request.talk != 0}, {"body", request_json(request)}});
  if (line.size() > most_asked_bytes(facts_.context))
    fail(ErrorKind::usage, "the request's stops or schema are too long for a warm process",
         "with --warm never the model is loaded here");
  if (!is_waiting()) heard_at_ = Clock::now();
  Asked& asked = asked_[id] = {&listener};
  if (gone_) asked.outcome.error = std::make_exception_ptr(*gone_);
  link_.queue(line);
  return n_added_++;
}

bool WarmClient::is_waiting() const {
  return !std::ranges::all_of(asked_, [](const auto& row) { return row.second.outcome.is_there(); });
}

bool WarmClient::turn() {
  if (!is_waiting()) return false;
  for (auto& [id, asked] : asked_) {
    if (asked.outcome.is_there() || asked.cancelled_at || !asked.listener->is_interrupted()) continue;
    asked.cancelled_at = Clock::now();
    link_.queue(line_of({{"cancel", id}}));
  }
  try {
    const bool is_there = link_.exchange(kTurnMs);
    while (const std::optional<std::string> line = link_.next_line()) {
      heard_at_ = Clock::now();
      readable([&] { hear(parse(*line)); });
    }
    if (is_waiting()) check_alive(is_there);
  } catch (const WarmGone& gone) {
    leave(gone);
  }
  return is_waiting();
}

void WarmClient::check_alive(bool is_there) const {
  const std::string hint = log_ + " may say why; with --warm never the model is loaded here";
  if (!is_there) throw WarmGone("the warm process ended", hint);
  if (seconds_silent() > kWarmSilence)
    throw WarmGone(format("the warm process has said nothing for %.0f s", kWarmSilence), hint);
  for (const auto& [id, asked] : asked_)
    if (!asked.outcome.is_there() && asked.cancelled_at &&
        seconds_since(*asked.cancelled_at) > kCancelSeconds)
      throw WarmGone("the warm process does not answer", hint);
}

void WarmClient::leave(const WarmGone& why) {
  gone_ = why;
  for (auto& [id, asked] : asked_) {
    if (asked.outcome.is_there()) continue;
    if (asked.listener->is_interrupted())
      asked.outcome.result = asked.reader.interrupted();
    else
      asked.outcome.error = std::make_exception_ptr(why);
  }
}

const std::optional<WarmGone>& WarmClient::gone() {
  if (!gone_ && !link_.exchange(0)) gone_ = WarmGone("the warm process ended");
  return gone_;
}

void WarmClient::hear(const ReadJson& line) {
  const auto id = line.find("id"), error = line.find("error");
  if (id == line.end() && error != line.end()) throw WarmGone(error->get<WarmError>().message);
  if (id == line.end()) return;
  const auto found = asked_.find(id->get<std::string>());
  if (found == asked_.end() || found->second.outcome.is_there()) return;
  Asked& asked = found->second;
  if (line.contains("ending"))
    gone_ = WarmGone("the warm process ended"), asked.outcome.error = std::make_exception_ptr(*gone_);
  else if (error != line.end())
    asked.outcome.error = std::make_exception_ptr(error->get<WarmError>().error());
  else if (asked.reader.hear(line, *asked.listener))
    asked.outcome.result = asked.reader.take();
}

void WarmClient::drop(int64_t request) {
  const auto asked = asked_.extract(std::to_string(request));
  if (asked.empty() || asked.mapped().outcome.is_there()) return;
  link_.queue(line_of({{"cancel", asked.key()}}));
  link_.send();
}

}  // namespace dsv32
