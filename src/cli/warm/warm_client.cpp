// See warm_client.h.
#include "cli/warm/warm_client.h"

#include <algorithm>

#include <poll.h>
#include <sys/socket.h>

#include "base/stopwatch.h"
#include "base/text.h"
#include "cli/options/request_json.h"
#include "engine/request.h"

namespace dsv32 {
namespace {

constexpr int kTurnMs = 50;           // between checks for a signal
constexpr double kCancelSeconds = 2;  // for an interrupted request to end

Json parse(const std::string& line) {
  try {
    Json json = parse_outside_json(line, kRequestDepth);
    if (json.is_object()) return json;
  } catch (const Error&) {
  }
  fail_unread();
}

// Throws Error{usage} for text that JSON cannot carry.
std::string line_of(const Json& json) try { return json.dump(); } catch (const Json::exception&) {
  fail(ErrorKind::usage, "the request has text that is no UTF-8",
       "with --warm never the model is loaded here");
}

// What is there of an answer that was interrupted.
GenerationResult interrupted(GenerationResult heard) {
  const Completion& made = heard.completion;
  heard.completion.thinking_closed = !made.reasoning.empty() && !made.content.empty();
  heard.finish_reason = FinishReason::interrupted;
  return heard;
}

std::optional<Error> error_in(const Json& line) {
  const auto error = line.find("error");
  if (error == line.end()) return std::nullopt;
  return Error(error->at(0).get<ErrorKind>(), error->at(1).get<std::string>(),
               error->at(2).get<std::string>());
}

}  // namespace

std::optional<WarmGreeting> greet_warm(const std::string& path, const char* want) {
  OwnedFd socket = connect_warm(path);
  if (!socket.is_open()) return std::nullopt;
  WarmLink link(std::move(socket));
  link.queue(line_of({{"want", want}}));
  link.send();
  const auto begin = std::chrono::steady_clock::now();
  std::string line;
  LineReader::Result result;
  while ((result = link.next_line(line, kWarmPatienceMs)) == LineReader::Result::later)
    if (seconds_since(begin) * 1000 >= kWarmPatienceMs)  // else a signal came
      throw WarmGone("the warm process at " + visible(path) + " does not answer");
  if (result == LineReader::Result::end) return std::nullopt;
  return readable([&] {
    Json answer = parse(line);
    if (const std::optional<Error> error = error_in(answer)) throw *error;
    return WarmGreeting{std::move(link), std::move(answer)};
  });
}

std::unique_ptr<WarmClient> WarmClient::connect(const std::string& path) {
  std::optional<WarmGreeting> greeting = greet_warm(path, "facts");
  if (!greeting) return nullptr;
  return std::unique_ptr<WarmClient>(new WarmClient(path, std::move(*greeting)));
}

WarmClient::WarmClient(std::string path, WarmGreeting greeting)
    : path_(std::move(path)), link_(std::move(greeting.link)) {
  readable([&] {
    nlohmann::json(greeting.answer.at("facts")).get_to(facts_);
    greeting.answer.at("talk").get_to(talk_);
  });
  if (facts_.vocab_size < 1 || facts_.context < 1 || facts_.max_seqs < 1) fail_unread();
}

// Where nobody listens any more, the request's link is not open, which advance() notices.
int64_t WarmClient::add(Request request, Listener& listener) {
  check_prompt(facts_.vocab_size, facts_.context, request.prompt);
  WarmLink link(connect_warm(path_));
  link.queue(line_of({{"talk", request.talk != 0 ? talk_ : 0}, {"body", request_json(request)}}));
  if (!is_waiting()) received_at_ = Clock::now();
  pending_.emplace(n_added_, Pending{std::move(link), &listener});
  return n_added_++;
}

bool WarmClient::is_waiting() const {
  return !std::ranges::all_of(pending_, [](const auto& row) { return row.second.outcome.is_there(); });
}

bool WarmClient::advance() {
  if (!is_waiting()) return false;
  await_lines();
  for (auto& [number, pending] : pending_)
    if (!pending.outcome.is_there()) receive(pending);
  return is_waiting();
}

void WarmClient::await_lines() {
  std::vector<pollfd> watched;
  for (auto& [number, pending] : pending_) {
    if (pending.outcome.is_there()) continue;
    cancel_if_interrupted(pending);
    watched.push_back({pending.link.fd(), pending.link.events(), 0});
  }
  poll(watched.data(), watched.size(), kTurnMs);
}

// The end of what a client sends is its wish to end.
void WarmClient::cancel_if_interrupted(Pending& pending) const {
  if (!pending.cancelled_at && pending.listener->is_interrupted()) pending.cancelled_at = Clock::now();
  if (pending.cancelled_at && pending.link.n_unsent() == 0) shutdown(pending.link.fd(), SHUT_WR);
}

void WarmClient::receive(Pending& pending) try {
  pending.link.send();
  std::string line;
  LineReader::Result result;
  while ((result = pending.link.next_line(line, 0)) == LineReader::Result::line) {
    received_at_ = Clock::now();
    readable([&] { take_line(pending, parse(line)); });
  }
  if (!pending.outcome.is_there()) check_alive(pending, result != LineReader::Result::end);
} catch (const WarmGone& why) {
  gone_ = why;
  if (pending.listener->is_interrupted())
    pending.outcome.result = interrupted(std::move(pending.heard));
  else
    pending.outcome.error = std::current_exception();
}

void WarmClient::take_line(Pending& pending, const Json& line) const {
  if (line.empty()) return;  // the process is alive
  if (const std::optional<Error> error = error_in(line))
    pending.outcome.error = std::make_exception_ptr(*error);
  else if (read_chunk(line, pending.heard, *pending.listener))
    pending.outcome.result = std::move(pending.heard);
}

void WarmClient::check_alive(const Pending& pending, bool is_there) const {
  const std::string hint = warm_log(path_) + " may say why; with --warm never the model is loaded here";
  if (!is_there) throw WarmGone("the warm process ended", hint);
  if (seconds_since(received_at_) > kWarmSilence)
    throw WarmGone(format("the warm process has said nothing for %.0f s", kWarmSilence), hint);
  if (pending.cancelled_at && seconds_since(*pending.cancelled_at) > kCancelSeconds)
    throw WarmGone("the warm process does not answer", hint);
}

const std::optional<WarmGone>& WarmClient::gone() {
  std::string line;
  if (!gone_ && link_.next_line(line, 0) == LineReader::Result::end)
    gone_ = WarmGone("the warm process ended");
  return gone_;
}

}  // namespace dsv32
