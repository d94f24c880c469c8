// See talk.h.
#include "cli/chat/talk.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <utility>

#include "base/error.h"
#include "cli/options/messages.h"
#include "cli/options/request_json.h"
#include "cli/terminal/streams.h"

namespace dsv32 {
namespace {

using Speaker = Message::Role;

constexpr const char* kVersionKey = "dsv32_talk";
constexpr uint64_t kVersion = 2, kOldest = 1;  // which had another form of calls
constexpr int kTalkDepth = 16;                 // of nested JSON

// Rethrows an Error of `read` as damage.
template <typename Read>
auto undamaged(const Read& read) try {
  return read();
} catch (const Error& error) {
  fail(ErrorKind::usage, std::string("it is damaged, ") + error.what());
}

void check(bool is_well, const std::string& what) {
  if (!is_well) fail(ErrorKind::usage, what);
}

// A talk may begin with the system's message; then user and assistant take turns, with results of calls
// after the assistant's. A question may come before all results are there.
void check_turn(Speaker role, const Talk& before) {
  const bool is_system = before.messages.empty() && role == Speaker::system;
  const Speaker expected = is_system                ? Speaker::system
                           : before.awaits_answer() ? Speaker::assistant
                           : before.next_call()     ? Speaker::tool
                                                    : Speaker::user;
  const bool is_broken_off = !before.has_question() && role == Speaker::user;
  check(role == expected || is_broken_off,
        format("messages[%zu].role is '%s', expected %s", before.messages.size(), role_name(role),
               role_name(expected)));
}

Talk read_talk(const Json& root) {
  JsonFields fields(root, "it");
  Talk talk;
  for (const char* key : {"used_ms", "model", "thinking"}) fields.needed(key);
  talk.used_ms = *fields.integer("used_ms", 0, INT64_MAX);
  talk.model = *fields.text("model");
  talk.thinking = *fields.truth("thinking");
  if (root.contains("decoded")) talk.decoded = parse_runs(root["decoded"]);
  const Json& messages = fields.needed("messages");
  check(messages.is_array(), "messages is no list");
  for (const Json& object : messages) {
    Message message = parse_message(object, format("messages[%zu]", talk.messages.size())).message;
    check_turn(message.role, talk);
    talk.messages.push_back(std::move(message));
  }
  return talk;
}

std::string name_of_now() {
  char text[32];
  const time_t now = std::time(nullptr);
  tm parts{};
  localtime_r(&now, &parts);
  return {text, std::strftime(text, sizeof text, "%Y-%m-%d-%H%M", &parts)};
}

}  // namespace

void Talk::set_system(const std::string& text) {
  if (has_system()) messages.erase(messages.begin());
  if (!text.empty()) messages.insert(messages.begin(), {Speaker::system, text, {}});
}

const ToolCall* Talk::next_call() const {
  size_t n_results = 0;
  for (auto message = messages.rbegin(); message != messages.rend(); ++message, ++n_results)
    if (message->role != Speaker::tool)
      return n_results < message->calls.size() ? &message->calls[n_results] : nullptr;
  return nullptr;
}

bool Talk::awaits_answer() const {
  const bool is_result = !messages.empty() && messages.back().role == Speaker::tool;
  return has_question() || (is_result && !next_call());
}

void Talk::ask(const std::string& question) {
  if (has_question()) messages.pop_back();
  messages.push_back({Speaker::user, question, {}});
}

void Talk::add_result(const std::string& text) { messages.push_back({Speaker::tool, text, {}}); }

void Talk::add_answer(const GenerationResult& answer) {
  const Completion& made = answer.completion;
  messages.push_back({Speaker::assistant, made.content, made.reasoning, made.calls, made.calls_text});
  decoded = answer.decoded;
}

std::string Talk::first_question() const {
  const auto found = std::ranges::find(messages, Speaker::user, &Message::role);
  return found == messages.end() ? "" : found->content;
}

std::string Talk::summary() const {
  const auto n_turns = std::ranges::count(messages, Speaker::assistant, &Message::role);
  return format("%td turn%s, used %s", n_turns, n_turns == 1 ? "" : "s", time_ago(used_ms, now_ms()).c_str());
}

std::string talk_json(const Talk& talk) {
  Json messages = Json::array();
  for (const Message& message : talk.messages) messages.push_back(message_json(message));
  const Json root{{kVersionKey, kVersion},
                  {"used_ms", talk.used_ms},
                  {"model", talk.model},
                  {"thinking", talk.thinking},
                  {"decoded", runs_json(talk.decoded)},
                  {"messages", std::move(messages)}};
  return root.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Talk parse_talk(std::string_view json) {
  const Json root = undamaged([&] { return parse_outside_json(json, kTalkDepth); });
  if (!root.is_object() || !root.contains(kVersionKey)) fail(ErrorKind::usage, "it is no talk of dsv32");
  const Json& version = root[kVersionKey];
  const uint64_t found = version.is_number_unsigned() ? version.get<uint64_t>() : 0;
  if (found > kVersion)
    fail(ErrorKind::usage, "it is of the newer version " + std::to_string(found) +
                               ", this program reads version " + std::to_string(kVersion));
  return undamaged([&] {
    check(found >= kOldest, format("%s is no version", kVersionKey));
    return read_talk(root);
  });
}

std::string time_ago(int64_t then, int64_t now) {
  constexpr std::pair<const char*, int64_t> kSpans[] = {
      {"year", 365 * 86400}, {"day", 86400}, {"hour", 3600}, {"minute", 60}};
  const int64_t n_seconds = now > then ? (now - then) / 1000 : 0;
  for (const auto& [name, span] : kSpans)
    if (const int64_t n = n_seconds / span; n > 0)
      return format("%lld %s%s ago", as_ll(n), name, n == 1 ? "" : "s");
  return "just now";
}

int64_t now_ms() {
  const auto since_1970 = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(since_1970).count();
}

HeldTalk::HeldTalk(const Options& options, const std::string& system) : is_kept_(options.keeps_talk) {
  const bool is_named = !options.talk.empty() || options.continues;
  thinking = options.generation.thinking;
  try {
    if (is_kept_ || is_named) store();
  } catch (const Error& error) {
    if (is_named) throw;
    is_kept_ = false;
    say(std::string("warning: this talk is not kept: ") + error.what());
  }
  if (is_named) resume(options);
  if (!system.empty()) set_system(system);
}

const TalkStore& HeldTalk::store() {
  if (!store_) store_.emplace(open_talk_store());
  return *store_;
}

void HeldTalk::resume(const Options& options) {
  const std::optional<std::string> last = options.continues ? store_->latest() : options.talk;
  if (!last)
    fail(ErrorKind::usage, "there is no talk to continue", "dsv32 chat begins one, and so does --talk NAME");
  name_ = *last;
  if (is_kept_) lock_ = store_->lock(name_);
  if (std::optional<Talk> found = store_->load(name_)) {
    static_cast<Talk&>(*this) = std::move(*found);
    is_resumed_ = true;
  }
  if (options.is_thinking_given()) thinking = options.generation.thinking;
  if (!is_kept_) return;
  if (!lock_) {
    lock_ = store_->lock_new(name_);
    say("the talk " + *last + " is held in another chat; this one is kept as " + name_);
  }
  if (!lock_->is_open())
    say("warning: the talk cannot be locked: another chat with this talk would overwrite it");
}

void HeldTalk::save(const Message* answer) {
  if (!is_kept_) return;
  if (name_.empty()) {
    name_ = name_of_now();
    lock_ = store_->lock_new(name_);
  }
  used_ms = now_ms();
  Talk saved = *this;
  if (answer) saved.messages.push_back(*answer);
  store_->save(name_, saved);
}

void HeldTalk::begin_anew() {
  messages.erase(messages.begin() + has_system(), messages.end());
  decoded.clear();
  name_.clear();
  lock_.reset();
}

void HeldTalk::rename(const std::string& name) {
  TalkLock lock = store().lock_free(name);
  used_ms = now_ms();
  store_->save(name, *this);
  if (has_file()) store_->remove(name_);
  is_kept_ = true;
  name_ = name;
  lock_ = std::move(lock);
}

}  // namespace dsv32
