// See request_json.h.
#include "cli/options/request_json.h"

#include <utility>
#include <variant>

#include "base/error.h"
#include "base/text.h"
#include "cli/options/messages.h"
#include "cli/options/schema.h"
#include "cli/options/tools.h"
#include "constrain/constraint.h"
#include "text/marks.h"

namespace dsv32 {
namespace {

std::vector<std::string> parse_stops(const Json& stop) {
  std::vector<std::string> stops;
  for (const Json& text : stop.is_array() ? stop : Json::array({stop})) {
    if (!text.is_string() || text.get_ref<const std::string&>().empty())
      fail(ErrorKind::usage, "stop is no text or list of texts that are not empty");
    stops.push_back(text.get<std::string>());
  }
  return stops;
}

// "logprobs" is true, with "top_logprobs" beside it, or the number itself.
void read_logprobs(JsonFields& body, int64_t& n_top) {
  const Json* logprobs = body.find("logprobs");
  const std::optional<int64_t> n_asked = body.integer("top_logprobs", -1, kMostTopLogprobs);
  const bool is_number = logprobs && !logprobs->is_boolean();
  if (is_number)
    n_top = *body.integer("logprobs", 0, kMostTopLogprobs);
  else if (logprobs)
    n_top = logprobs->get<bool>() ? n_asked.value_or(0) : -1;
  if (n_asked.value_or(0) > 0 && n_top < 0) fail(ErrorKind::usage, "top_logprobs is given without logprobs");
}

// true, false, or in the form of DeepSeek's own service {"type": "enabled"}, with a limit.
std::optional<bool> read_thinking_field(JsonFields& body, int64_t& max_thinking) {
  const Json* asked = body.find("thinking");
  if (!asked || asked->is_boolean()) return body.truth("thinking");
  std::string type;
  if (asked->is_object()) {
    JsonFields fields(*asked, "thinking", "thinking.");
    type = fields.text("type").value_or("");
    max_thinking = fields.integer("budget_tokens", -1, kMostTokenLimit).value_or(max_thinking);
    fields.refuse_unknown();
  }
  if (type != "enabled" && type != "disabled")
    fail(ErrorKind::usage, "thinking is neither true, false nor of type enabled or disabled");
  return type == "enabled";
}

// Whether to think. Several fields may say so, and must agree.
void read_thinking(JsonFields& body, ChatRequest& request) {
  GenerationOptions& options = request.options;
  std::string asker;
  std::optional<bool> asked;
  const auto note = [&](const std::string& name, std::optional<bool> value) {
    if (value && asked && *value != *asked)
      fail(ErrorKind::usage, format("%s is %s and %s is not, expected them to agree", asker.c_str(),
                                    *asked ? "on" : "off", name.c_str()));
    if (value) asker = name, asked = value;
  };
  const std::optional<std::string> effort = body.text("reasoning_effort");
  note("thinking", read_thinking_field(body, options.max_thinking));
  note("enable_thinking", body.truth("enable_thinking"));
  if (const Json* kwargs = body.find("chat_template_kwargs")) {  // only those of this chat format
    JsonFields fields(*kwargs, "chat_template_kwargs", "chat_template_kwargs.");
    for (const char* key : {"thinking", "enable_thinking"}) note(fields.name_of(key), fields.truth(key));
    fields.refuse_unknown();
  }
  request.is_thinking_asked = request.is_thinking_asked || asked || effort;
  options.thinking = asked.value_or(effort ? *effort != "none" : options.thinking);
}

// -1 asks for a random seed, as elsewhere.
void read_seed(JsonFields& body, ChatRequest& request) {
  const Json* asked = body.find("seed");
  request.has_random_seed = asked && !asked->is_number_unsigned() && *asked == -1;
  const std::optional<uint64_t> seed = request.has_random_seed ? std::nullopt : body.seed("seed");
  request.has_seed = seed.has_value();
  request.options.sampling.seed = seed.value_or(request.options.sampling.seed);
}

// Where the field is absent, the option, which is a number, keeps its value.
void read_number(JsonFields& body, const GenerationOption& option, GenerationOptions& options) {
  const GenerationOption::Field field = option.field(options);
  if (const auto number = std::get_if<float*>(&field)) {
    **number = static_cast<float>(body.number(option.name, option.least, option.most).value_or(**number));
  } else {
    int64_t& integer = *std::get<int64_t*>(field);
    const auto least = static_cast<int64_t>(option.least), most = static_cast<int64_t>(option.most);
    integer = body.integer(option.name, least, most).value_or(integer);
  }
}

void read_options(JsonFields& body, ChatRequest& request) {
  GenerationOptions& options = request.options;
  for (const GenerationOption& option : generation_options())
    if (option.is_batch_field) read_number(body, option, options);
  const std::optional<int64_t> newer = body.integer("max_completion_tokens", -1, kMostTokenLimit);
  options.max_tokens = newer.value_or(options.max_tokens);
  if ((newer || body.find("max_tokens")) && !body.find("max_answer")) options.max_answer = -1;
  read_seed(body, request);
  if (const Json* stop = body.find("stop")) options.stops = parse_stops(*stop);
  read_logprobs(body, options.n_top_logprobs);
  read_thinking(body, request);
  if (std::optional<std::string> constraint = read_response_format(body))
    options.constraint = std::move(*constraint);
}

// Other programs' fields that may be there, some with the only value that changes nothing.
void read_harmless(JsonFields& body) {
  static const Json neutral{{"n", 1},
                            {"stream", false},
                            {"frequency_penalty", 0},
                            {"presence_penalty", 0},
                            {"repetition_penalty", 1},
                            {"repeat_penalty", 1}};
  for (const char* key : {"model", "user", "metadata", "store"}) body.find(key);
  for (const auto& row : neutral.items())
    if (const Json* value = body.find(row.key()); value && *value != row.value())
      fail(ErrorKind::usage, format("%s is %s, which is not supported", body.name_of(row.key()).c_str(),
                                    JsonFields::shown(*value).c_str()));
  if (const Json* options = body.find("stream_options")) {  // usage comes with every answer
    JsonFields fields(*options, "stream_options", "stream_options.");
    fields.truth("include_usage");
    fields.refuse_unknown();
  }
}

// A prompt of tokens: what was made of it says which calls and documents the answer may have.
void read_tokens(JsonFields& body, const Json& list, ChatRequest& request) {
  for (const Json& id : list)
    if (!id.is_number_integer() || id < INT32_MIN || id > INT32_MAX)
      fail(ErrorKind::usage, "prompt is a list of something else than tokens");
    else
      request.ids.push_back(id.get<int32_t>());
  if (const Json* decoded = body.find("decoded")) request.decoded = parse_runs(*decoded);
  if (const std::optional<std::string> constraint = body.text("constraint");
      constraint && !constraint->empty())
    check_constraint(request.options.constraint = *constraint);
  request.options.tools = body.truth("tools").value_or(false);
}

void read_text(JsonFields& body, ChatRequest& request) {
  const Json* messages = body.find("messages");
  const std::optional<std::string> prompt = body.text("prompt");
  if (messages && prompt) fail(ErrorKind::usage, "messages and prompt are both given");
  if (messages && request.is_completion)
    fail(ErrorKind::usage, "messages is given, /v1/completions takes a prompt");
  if (!messages && !prompt)
    fail(ErrorKind::usage, request.is_completion ? "prompt is missing" : "messages is missing");
  if (prompt == "") fail(ErrorKind::usage, "prompt is empty");
  const Tools tools = read_tools(body);
  if (!tools.json.empty() && request.is_raw && !messages)
    fail(ErrorKind::usage, "the prompt is rendered already, tools cannot be added to it");
  if (!tools.json.empty() && !request.prompt.tools.empty())
    fail(ErrorKind::usage, "tools are given twice, expected --tools or those of the request");
  tools.apply_to(request.options);
  const std::string shown = tools.json.empty() ? request.prompt.tools : tools.json;
  if (messages)
    request.messages = parse_messages(*messages);
  else
    request.prompt.user = *prompt, request.prompt.tools = shown;
  if (messages && !shown.empty()) request.messages = with_tools(std::move(request.messages), shown);
}

void read_body(JsonFields& body, ChatRequest& request) {
  read_harmless(body);
  read_options(body, request);
  const Json* prompt = body.find("prompt");
  prompt && prompt->is_array() && !prompt->empty() ? read_tokens(body, *prompt, request)
                                                   : read_text(body, request);
  request.options.check();
  body.refuse_unknown();
}

// {"method", "url", "body"} around the body.
void read_envelope(JsonFields& line, const Json& body, ChatRequest& request) {
  if (const std::string method = line.text("method").value_or("POST"); method != "POST")
    fail(ErrorKind::usage, format("method is '%s', expected POST", visible(method, false, 40).c_str()));
  const std::optional<std::string> url = line.text("url");
  request.is_completion = url == "/v1/completions";
  if (url && !request.is_completion && url != "/v1/chat/completions")
    fail(ErrorKind::usage, format("url is '%s', expected /v1/chat/completions or /v1/completions",
                                  visible(*url, false, 80).c_str()));
  read_harmless(line);
  JsonFields fields(body, "body");
  if (request.is_completion)
    request.is_raw = true, request.prompt.system.clear();
  else if (url && fields.find("prompt"))
    fail(ErrorKind::usage, "prompt is given, /v1/chat/completions takes messages");
  read_body(fields, request);
  for (const std::string& name : fields.known())
    if (!line.known().contains(name) && line.find(name))
      fail(ErrorKind::usage, name + " must be inside body");
  line.refuse_unknown();
}

std::vector<Message> messages_of(const PromptText& text) {
  std::vector<Message> messages;
  if (!text.system.empty()) messages.push_back({Message::Role::system, text.system, {}});
  messages.push_back({Message::Role::user, text.user, {}});
  return text.tools.empty() ? messages : with_tools(std::move(messages), text.tools);
}

// Whether a prompt that was rendered already ends with <think>, perhaps with a line end after it.
bool ends_in_thinking(const Tokenizer& tokenizer, std::span<const int32_t> ids) {
  const std::optional<int32_t> think = tokenizer.find(marks::kThink);
  if (!ids.empty() && tokenizer.bytes_of(ids.back()) == "\n") ids = ids.first(ids.size() - 1);
  return think && !ids.empty() && ids.back() == *think;
}

// Of a text that is rendered already.
Prompt rendered_prompt(const PromptText& text, const std::string& bos, const Tokenizer& tokenizer,
                       size_t n_most) {
  if (!text.system.empty() || !text.tools.empty())
    fail(ErrorKind::usage, format("the prompt begins with %s and is taken as rendered already, %s cannot be "
                                  "added to it",
                                  visible(bos).c_str(), text.system.empty() ? "tools" : "a system prompt"));
  std::vector<int32_t> ids = tokenizer.encode(text.user, true, n_most);
  if (ids.empty() || ids[0] != tokenizer.bos_id()) ids.insert(ids.begin(), tokenizer.bos_id());
  const bool thinking = ends_in_thinking(tokenizer, ids);
  return {std::move(ids), (text.user.starts_with(bos) ? "" : bos) + text.user, thinking, true};
}

}  // namespace

ChatRequest read_request(JsonFields& line, ChatRequest request) {
  if (const Json* body = line.find("body"))
    read_envelope(line, *body, request);
  else if (line.find("url") || line.find("method"))
    fail(ErrorKind::usage, "body is missing");
  else
    read_body(line, request);
  return request;
}

ChatRequest request_of(PromptText text, const Options& options) {
  ChatRequest request;
  request.is_raw = options.is_raw;
  request.chat_format = options.chat_format;
  request.is_thinking_asked = options.is_thinking_given();
  request.options = options.generation;
  const std::optional<std::string> json = std::exchange(text.json, std::nullopt);
  request.prompt = std::move(text);
  if (!json) return request;
  Json root = parse_outside_json(*json, kRequestDepth);
  if (root.is_array()) root = {{"messages", std::move(root)}};
  JsonFields fields(root, "--messages", "--messages: ");
  return read_request(fields, std::move(request));
}

Json request_json(const Request& request) {
  GenerationOptions options = request.options;  // field() needs one that may be written
  Json json{{"prompt", request.prompt}, {"decoded", runs_json(request.decoded)}};
  for (const GenerationOption& option : generation_options())
    std::visit([&](const auto* field) { json[option.name] = *field; }, option.field(options));
  json["logprobs"] = options.n_top_logprobs >= 0;
  return json;
}

Json runs_json(const std::vector<TokenRun>& runs) {
  Json list = Json::array();
  for (const TokenRun& run : runs) list.push_back({run.begin, run.end});
  return list;
}

std::vector<TokenRun> parse_runs(const Json& list) {
  std::vector<TokenRun> runs;
  const auto check = [](bool is_well, const char* what) {
    if (!is_well) fail(ErrorKind::usage, what);
  };
  check(list.is_array(), "decoded is no list");
  for (const Json& run : list) {
    check(run.is_array() && run.size() == 2, "decoded holds no pairs");
    for (const Json& position : run)
      check(position.is_number_unsigned() && position.get<uint64_t>() < kMadeByDecode,
            "decoded holds no positions");
    runs.push_back({run[0].get<int64_t>(), run[1].get<int64_t>()});
  }
  return runs;
}

Prompt prompt_of(const ChatRequest& request, const Tokenizer& tokenizer, size_t n_most) {
  if (!request.ids.empty()) return {request.ids, {}, request.options.thinking};
  std::vector<Message> messages = request.messages;
  if (messages.empty()) {
    const std::string bos(tokenizer.piece(tokenizer.bos_id()));
    if (request.is_raw || request.prompt.user.starts_with(bos))
      return rendered_prompt(request.prompt, bos, tokenizer, n_most);
    messages = messages_of(request.prompt);
  }
  const ChatFormat chat(tokenizer, request.chat_format);
  const bool thinking = thinks(chat.kind(), request.options.thinking, request.is_thinking_asked);
  return {chat.encode(messages, thinking, n_most), chat.render(messages, thinking), thinking};
}

}  // namespace dsv32
