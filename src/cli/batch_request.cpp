#include "cli/batch_request.h"

#include <algorithm>
#include <limits>

#include "base/text.h"
#include "cli/json.h"
#include "cli/json_fields.h"

namespace dsv32 {
namespace {

constexpr size_t kMostTold = 32;  // unknown names
constexpr int kLineDepth = 64;    // of nested JSON

// What is not supported, and the values of it that change nothing.
void refuse_unsupported(JsonFields& body) {
  static const ReadJson kHarmless = ReadJson::parse(R"({
    "stream": [false], "n": [1], "best_of": [1], "echo": [false], "suffix": [""],
    "frequency_penalty": [0], "presence_penalty": [0], "repetition_penalty": [1], "logit_bias": [{}],
    "response_format": [{"type": "text"}], "tools": [[]], "tool_choice": ["none", "auto"],
    "functions": [[]], "function_call": ["none", "auto"]})");
  for (const auto& row : kHarmless.items()) {
    const ReadJson* value = body.find(row.key());
    if (!value || std::ranges::count(row.value(), *value) > 0) continue;
    fail(ErrorKind::usage,
         format("%s is %s, which is not supported", row.key().c_str(), JsonFields::shown(*value).c_str()));
  }
}

// A text, or a list of parts that are texts.
std::string content_of(JsonFields& message) {
  const ReadJson* content = message.find("content");
  if (!content) return {};
  if (!content->is_array()) return *message.text("content");
  std::string text;
  for (const ReadJson& part : *content) {
    JsonFields fields(part, "a part of content");
    if (fields.text("type").value_or("text") != "text")
      fail(ErrorKind::usage, "content has a part that is no text, which is not supported");
    text += fields.text("text").value_or("");
  }
  return text;
}

Message parse_message(const ReadJson& json, UnknownFields& unknown) {
  using Role = Message::Role;
  JsonFields fields(json, "a message");
  const std::string role = fields.text("role").value_or("");
  Message message{Role::user, content_of(fields), fields.text("reasoning_content").value_or("")};
  if (role == "system" || role == "developer")
    message.role = Role::system;
  else if (role == "assistant")
    message.role = Role::assistant;
  else if (role != "user")
    fail(ErrorKind::usage, format("a message's role is '%s', expected system, user or assistant",
                                  visible(role, false, 40).c_str()));
  for (const char* key : {"tool_calls", "function_call"})
    if (const ReadJson* calls = fields.find(key); calls && !calls->empty())
      fail(ErrorKind::usage, format("a message has %s, which are not supported", key));
  for (const std::string& name : fields.unknown()) unknown.note(name);
  return message;
}

std::vector<Message> parse_messages(const ReadJson& list, UnknownFields& unknown) {
  if (!list.is_array() || list.empty()) fail(ErrorKind::usage, "messages is no list with a message in it");
  std::vector<Message> messages;
  for (const ReadJson& json : list) messages.push_back(parse_message(json, unknown));
  if (messages.back().role != Message::Role::user)
    fail(ErrorKind::usage, "the last message is not the user's: there is nothing to answer");
  return messages;
}

std::vector<std::string> parse_stops(const ReadJson& stop) {
  std::vector<std::string> stops;
  for (const ReadJson& text : stop.is_array() ? stop : ReadJson::array({stop})) {
    if (!text.is_string() || text.get_ref<const std::string&>().empty())
      fail(ErrorKind::usage, "stop is no text or list of texts that are not empty");
    stops.push_back(text.get<std::string>());
  }
  return stops;
}

// true and top_logprobs, or their number.
void read_logprobs(JsonFields& body, int64_t& n_top) {
  const ReadJson* logprobs = body.find("logprobs");
  const std::optional<int64_t> n_asked = body.integer("top_logprobs", 0, kMostTopLogprobs);
  const bool is_number = logprobs && !logprobs->is_boolean();
  if (is_number)
    n_top = *body.integer("logprobs", 0, kMostTopLogprobs);
  else if (logprobs)
    n_top = logprobs->get<bool>() ? n_asked.value_or(0) : -1;
  if (n_asked.value_or(0) > 0 && n_top < 0) fail(ErrorKind::usage, "top_logprobs is given without logprobs");
}

// true, false, or as DeepSeek's own service has it {"type": "enabled"}.
void read_thinking(JsonFields& body, bool& thinking) {
  if (const std::optional<std::string> effort = body.text("reasoning_effort")) thinking = *effort != "none";
  const ReadJson* asked = body.find("thinking");
  if (!asked) return;
  if (asked->is_boolean()) {
    thinking = asked->get<bool>();
    return;
  }
  const std::string type = JsonFields(*asked, "thinking").text("type").value_or("");
  if (type != "enabled" && type != "disabled")
    fail(ErrorKind::usage, "thinking is neither true, false nor of type enabled or disabled");
  thinking = type == "enabled";
}

void read_options(JsonFields& body, BatchRequest& request) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  GenerationOptions& options = request.options;
  SamplingOptions& sampling = options.sampling;
  const std::optional<int64_t> older = body.integer("max_tokens", -1, kMost);
  const std::optional<int64_t> newer = body.integer("max_completion_tokens", -1, kMost);
  if (newer || older) options.max_tokens = newer ? *newer : *older, options.max_answer = -1;
  const auto read = [&](const char* key, double most, float& value) {
    if (const std::optional<double> given = body.number(key, 0, most)) value = static_cast<float>(*given);
  };
  read("temperature", 100, sampling.temperature);
  read("top_p", 1, sampling.top_p);
  read("min_p", 1, sampling.min_p);
  sampling.top_k = body.integer("top_k", 0, kMost).value_or(sampling.top_k);
  const std::optional<uint64_t> seed = body.seed("seed");
  request.has_seed = seed.has_value();
  sampling.seed = seed.value_or(sampling.seed);
  if (const ReadJson* stop = body.find("stop")) options.stops = parse_stops(*stop);
  read_logprobs(body, options.n_top_logprobs);
  read_thinking(body, options.thinking);
}

void read_prompt_text(JsonFields& body, BatchRequest& request) {
  request.prompt.user = body.text("prompt").value_or("");
  if (request.prompt.user.empty()) fail(ErrorKind::usage, "prompt is empty");
}

void read_body(JsonFields& body, BatchRequest& request, UnknownFields& unknown) {
  refuse_unsupported(body);
  body.find("model");
  read_options(body, request);
  const ReadJson* messages = body.find("messages");
  const bool has_prompt = body.find("prompt") != nullptr;
  if (messages && has_prompt) fail(ErrorKind::usage, "messages and prompt are both given");
  if (messages && request.is_completion)
    fail(ErrorKind::usage, "messages is given, /v1/completions takes a prompt");
  if (messages)
    request.messages = parse_messages(*messages, unknown);
  else if (has_prompt)
    read_prompt_text(body, request);
  else
    fail(ErrorKind::usage, request.is_completion ? "prompt is missing" : "messages is missing");
  for (const std::string& name : body.unknown()) unknown.note(name);
}

// {"method", "url", "body"} around the body.
void read_envelope(JsonFields& line, const ReadJson& body, BatchRequest& request, UnknownFields& unknown) {
  if (const std::string method = line.text("method").value_or("POST"); method != "POST")
    fail(ErrorKind::usage, format("method is '%s', expected POST", visible(method, false, 40).c_str()));
  const std::string url = line.text("url").value_or("");
  request.is_completion = url == "/v1/completions";
  if (!request.is_completion && url != "/v1/chat/completions")
    fail(ErrorKind::usage, format("url is '%s', expected /v1/chat/completions or /v1/completions",
                                  visible(url, false, 80).c_str()));
  JsonFields fields(body, "body");
  if (request.is_completion)
    request.is_raw = true, request.prompt.system.clear();
  else if (fields.find("prompt"))
    fail(ErrorKind::usage, "prompt is given, /v1/chat/completions takes messages");
  read_body(fields, request, unknown);
  for (const std::string& name : line.unknown()) unknown.note(name);
}

std::optional<std::string> custom_id_of(JsonFields& line) {
  std::optional<std::string> id = line.text("custom_id");
  if (id && id->empty()) fail(ErrorKind::usage, "custom_id is empty");
  return id;
}

}  // namespace

void UnknownFields::note(const std::string& name) {
  if (told_.size() < kMostTold && told_.insert(name).second) tell_(name);
}

ParsedLine parse_request(std::string_view json, const BatchRequest& defaults, UnknownFields& unknown) {
  ParsedLine parsed;
  try {
    const ReadJson root = parse_outside_json(json, kLineDepth);
    JsonFields line(root, "the line");
    parsed.custom_id = custom_id_of(line);
    parsed.is_named = true;
    BatchRequest request = defaults;
    if (const ReadJson* body = line.find("body"))
      read_envelope(line, *body, request, unknown);
    else if (line.find("url") || line.find("method"))
      fail(ErrorKind::usage, "body is missing");
    else
      read_body(line, request, unknown);
    parsed.request = std::move(request);
  } catch (const Error& error) {
    parsed.refusal = error;
  }
  return parsed;
}

int status_of(const Error& error) {
  if (error.kind() == ErrorKind::usage) return 400;
  return error.kind() == ErrorKind::context_full ? 413 : 500;
}

}  // namespace dsv32
