// See talk.h.
#include "cli/chat/talk.h"

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "base/text.h"
#include "cli/options/json.h"

namespace dsv32 {
namespace {

using Speaker = Message::Role;

constexpr const char* kVersionKey = "dsv32_talk";
constexpr uint64_t kVersion = 1;
constexpr int kTalkDepth = 16;  // of nested JSON

[[noreturn]] void fail_damaged(const std::string& what) { fail(ErrorKind::usage, "it is damaged, " + what); }

void check(bool is_well, const std::string& what) {
  if (!is_well) fail_damaged(what);
}

// The value of `key`; `where` is "" or such as "messages[3].".
const ReadJson& value_of(const ReadJson& object, const char* key, const std::string& where = "") {
  const auto found = object.find(key);
  check(found != object.end(), where + key + " is missing");
  return *found;
}

std::string text_of(const ReadJson& object, const char* key, const std::string& where = "") {
  const ReadJson& value = value_of(object, key, where);
  check(value.is_string(), where + key + " is no text");
  return value.get<std::string>();
}

ReadJson parse_json(std::string_view json) try {
  return parse_outside_json(json, kTalkDepth);
} catch (const Error& error) {
  fail_damaged(error.what());
}

void check_version(const ReadJson& version) {
  const uint64_t found = version.is_number_unsigned() ? version.get<uint64_t>() : 0;
  if (found > kVersion)
    fail(ErrorKind::usage,
         format("it is of the newer version %llu, this program reads version %llu",
                static_cast<unsigned long long>(found), static_cast<unsigned long long>(kVersion)));
  check(found == kVersion, format("%s is no version", kVersionKey));
}

// A talk may begin with the system's message; after it user and assistant take turns.
Message parse_message(const ReadJson& object, const std::vector<Message>& before) {
  const std::string where = format("messages[%zu]", before.size());
  check(object.is_object(), where + " is no object");
  const std::string role = text_of(object, "role", where + ".");
  const bool has_question = !before.empty() && before.back().role == Speaker::user;
  const bool is_system = before.empty() && role == role_name(Speaker::system);
  const Speaker expected = is_system ? Speaker::system : has_question ? Speaker::assistant : Speaker::user;
  Message message{expected, text_of(object, "content", where + "."),
                  text_of(object, "reasoning", where + ".")};
  check(role == role_name(expected), format("%s.role is '%s', expected %s", where.c_str(),
                                            visible(role, false, 40).c_str(), role_name(expected)));
  return message;
}

std::vector<TokenRun> parse_runs(const ReadJson& list) {
  std::vector<TokenRun> runs;
  check(list.is_array(), "decoded is no list");
  for (const ReadJson& run : list) {
    check(run.is_array() && run.size() == 2, "decoded holds no pairs");
    for (const ReadJson& position : run)
      check(position.is_number_unsigned() && position.get<uint64_t>() < kMadeByDecode,
            "decoded holds no positions");
    runs.push_back({run[0].get<int64_t>(), run[1].get<int64_t>()});
  }
  return runs;
}

}  // namespace

void Talk::set_system(const std::string& text) {
  if (has_system()) messages.erase(messages.begin());
  if (!text.empty()) messages.insert(messages.begin(), {Speaker::system, text, {}});
}

void Talk::ask(const std::string& question) {
  if (has_question()) messages.pop_back();
  messages.push_back({Speaker::user, question, {}});
}

void Talk::add_answer(const Completion& answer) {
  messages.push_back({Speaker::assistant, answer.content, answer.reasoning});
}

std::string Talk::first_question() const {
  const auto found = std::ranges::find(messages, Speaker::user, &Message::role);
  return found == messages.end() ? "" : found->content;
}

std::string Talk::summary() const {
  const auto n_turns = std::ranges::count(messages, Speaker::assistant, &Message::role);
  return format("%td turn%s, used %s", n_turns, n_turns == 1 ? "" : "s", time_ago(used_ms, now_ms()).c_str());
}

const char* role_name(Message::Role role) {
  return role == Speaker::system ? "system" : role == Speaker::user ? "user" : "assistant";
}

std::string talk_json(const Talk& talk) {
  Json messages = Json::array(), decoded = Json::array();
  for (const Message& message : talk.messages)
    messages.push_back(
        {{"role", role_name(message.role)}, {"content", message.content}, {"reasoning", message.reasoning}});
  for (const TokenRun& run : talk.decoded) decoded.push_back({run.begin, run.end});
  const Json root{{kVersionKey, kVersion},         {"used_ms", talk.used_ms},
                  {"model", talk.model},           {"thinking", talk.thinking},
                  {"decoded", std::move(decoded)}, {"messages", std::move(messages)}};
  return root.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Talk parse_talk(std::string_view json) {
  const ReadJson root = parse_json(json);
  if (!root.is_object() || !root.contains(kVersionKey)) fail(ErrorKind::usage, "it is no talk of dsv32");
  check_version(root[kVersionKey]);
  Talk talk;
  const ReadJson& used = value_of(root, "used_ms");
  check(used.is_number_unsigned() && used.get<uint64_t>() <= INT64_MAX,
        "used_ms is no number of milliseconds");
  talk.used_ms = used.get<int64_t>();
  talk.model = text_of(root, "model");
  const ReadJson &thinking = value_of(root, "thinking"), &messages = value_of(root, "messages");
  check(thinking.is_boolean(), "thinking is neither true nor false");
  talk.thinking = thinking.get<bool>();
  if (root.contains("decoded")) talk.decoded = parse_runs(root["decoded"]);
  check(messages.is_array(), "messages is no list");
  for (const ReadJson& object : messages) talk.messages.push_back(parse_message(object, talk.messages));
  return talk;
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

}  // namespace dsv32
