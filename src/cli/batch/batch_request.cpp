// What a line asks for: BatchRequest of batch_item.h.
#include "cli/batch/batch_item.h"

#include <algorithm>

#include "base/text.h"
#include "cli/options/json.h"

namespace dsv32 {
namespace {

constexpr size_t kMostTold = 32;  // unknown names

// Fields that other programs know of a request, that would change its answer, and that are not supported
// here: those of OpenAI's interface and of the servers of vLLM, SGLang, llama.cpp, ollama and TGI. Each with
// the values that change nothing; null is always one.
constexpr const char* kForeign = R"({
  "stream": [false], "n": [1], "n_cmpl": [1], "best_of": [1], "use_beam_search": [false], "num_beams": [1],
  "num_return_sequences": [1], "echo": [false], "suffix": [""], "return_full_text": [false],

  "frequency_penalty": [0], "presence_penalty": [0], "repetition_penalty": [1], "repeat_penalty": [1],
  "length_penalty": [1], "no_repeat_ngram_size": [0], "repetition_detection": [], "dry_multiplier": [0],
  "logit_bias": [{}, []], "bad_words": [[]], "bad_words_ids": [[]], "allowed_token_ids": [],
  "logits_processors": [[]], "custom_logit_processor": [], "vllm_xargs": [{}], "watermark": [false],
  "watermarking": [false],

  "typical_p": [1], "typ_p": [1], "tfs_z": [1], "top_a": [0], "top_n_sigma": [-1, 0], "epsilon_cutoff": [0],
  "eta_cutoff": [0], "dynatemp_range": [0], "xtc_probability": [0], "mirostat": [0], "mirostat_mode": [0],
  "adaptive_target": [-1], "min_keep": [0], "samplers": [], "do_sample": [true], "smoothing_factor": [0],
  "sampling_seed": [], "random_seed": [], "guidance_scale": [1], "negative_prompt": [""],

  "min_tokens": [0], "min_new_tokens": [0], "min_length": [0], "ignore_eos": [false], "stop_token_ids": [[]],
  "stop_regex": ["", []], "stop_sequences": [[]], "include_stop_str_in_output": [false],
  "no_stop_trim": [false], "skip_special_tokens": [true], "max_new_tokens": [], "max_output_tokens": [],
  "max_length": [], "n_predict": [-1], "num_predict": [-1], "n_indent": [0], "t_max_predict_ms": [-1, 0],
  "truncate": [], "truncate_prompt_tokens": [],

  "response_format": [{"type": "text"}], "format": [""], "guided_json": [], "guided_regex": [],
  "guided_choice": [], "guided_grammar": [], "structured_outputs": [{}], "structural_tag": [],
  "json_schema": [], "grammar": [""], "regex": [""], "ebnf": [""],

  "tools": [[]], "tool_choice": ["none", "auto"], "tool_prompt": [""], "functions": [[]],
  "function_call": ["none", "auto"], "web_search_options": [], "documents": [[]], "verbosity": ["medium"],
  "modalities": [["text"]], "images": [[]], "image_data": [[]], "mm_processor_kwargs": [{}],

  "reasoning": [{}], "think": [], "thinking_mode": [], "thinking_budget": [-1], "thinking_token_budget": [-1],
  "thinking_budget_tokens": [-1], "reasoning_budget": [-1], "reasoning_budget_tokens": [-1],
  "reasoning_format": ["auto", "deepseek"], "include_reasoning": [true], "separate_reasoning": [true],
  "continue_final_message": [false], "add_generation_prompt": [true], "add_special_tokens": [],
  "chat_template": [""], "template": [""], "system": [""], "system_prompt": [""], "safe_prompt": [false],
  "guideline": [""], "raw": [false], "context": [[]], "input_ids": [],
  "prompt_token_ids": [], "prompt_embeds": [], "lora": [[]], "lora_path": [], "lora_request": [],
  "adapter_id": [], "session_params": [{}],

  "options": [{}], "parameters": [{}], "sampling_params": [{}], "extra_body": [{}],
  "n_probs": [0], "top_n_tokens": [0], "prompt_logprobs": [false], "logprob_token_ids": [],
  "return_token_ids": [false], "return_tokens": [false], "return_hidden_states": [false]
})";

const ReadJson& foreign() {
  static const ReadJson parsed = ReadJson::parse(kForeign);
  return parsed;
}

bool is_foreign(const std::string& name) { return foreign().contains(name); }

// The first of them that has a value that changes something.
void refuse_foreign(JsonFields& fields) {
  for (const auto& row : foreign().items()) {
    const ReadJson* value = fields.find(row.key());
    if (!value || std::ranges::count(row.value(), *value) > 0) continue;
    fail(ErrorKind::usage, format("%s is %s, which is not supported", fields.name_of(row.key()).c_str(),
                                  JsonFields::shown(*value).c_str()));
  }
}

void tell_unknown(const JsonFields& fields, UnknownFields& unknown) {
  for (const std::string& name : fields.unknown()) unknown.note(name);
}

// A text, or a list of parts that are texts.
std::string content_of(JsonFields& message, UnknownFields& unknown) {
  const ReadJson* content = message.find("content");
  if (!content) return {};
  if (!content->is_array()) return *message.text("content");
  std::string text;
  for (const ReadJson& part : *content) {
    JsonFields fields(part, "a part of content", "messages.content.");
    if (fields.text("type").value_or("text") != "text")
      fail(ErrorKind::usage, "content has a part that is no text, which is not supported");
    const std::optional<std::string> own = fields.text("text");
    if (!own) fail(ErrorKind::usage, "content has a part without a text");
    text += *own;
    tell_unknown(fields, unknown);
  }
  return text;
}

// Also what is not supported in a message: tools, and more than text.
Message::Role parse_role(JsonFields& message) {
  for (const char* key : {"tool_calls", "function_call", "images", "audio"})
    if (const ReadJson* calls = message.find(key); calls && !calls->empty())
      fail(ErrorKind::usage, format("a message has %s, which are not supported", key));
  const std::string role = message.text("role").value_or("");
  if (role == "system" || role == "developer") return Message::Role::system;
  if (role == "assistant") return Message::Role::assistant;
  if (role == "user") return Message::Role::user;
  fail(ErrorKind::usage, format("a message's role is '%s', expected system, user or assistant",
                                visible(role, false, 40).c_str()));
}

Message parse_message(const ReadJson& json, UnknownFields& unknown) {
  JsonFields fields(json, "a message", "messages.");
  Message message{parse_role(fields), content_of(fields, unknown), {}};
  for (const char* key : {"reasoning", "reasoning_content"})
    message.reasoning = fields.text(key).value_or(message.reasoning);
  tell_unknown(fields, unknown);
  if (message.role == Message::Role::user && message.content.empty())
    fail(ErrorKind::usage, "a message of the user has no content, expected a text or a list of texts");
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

// Whether to think: asked in several places, which must agree.
class ThinkingAsked {
 public:
  void note(const std::string& name, std::optional<bool> asked) {
    if (asked && asked_ && *asked != *asked_)
      fail(ErrorKind::usage, format("%s is %s and %s is not, expected them to agree", name_.c_str(),
                                    *asked_ ? "on" : "off", name.c_str()));
    if (asked) name_ = name, asked_ = asked;
  }
  std::optional<bool> asked() const { return asked_; }

 private:
  std::string name_;
  std::optional<bool> asked_;
};

// true, false, or as DeepSeek's own service has it {"type": "enabled"}, with a limit.
std::optional<bool> read_thinking_field(JsonFields& body, int64_t& max_thinking, UnknownFields& unknown) {
  const ReadJson* asked = body.find("thinking");
  if (!asked || asked->is_boolean()) return body.truth("thinking");
  if (!asked->is_object())
    fail(ErrorKind::usage, "thinking is neither true, false nor of type enabled or disabled");
  JsonFields fields(*asked, "thinking", "thinking.");
  const std::string type = fields.text("type").value_or("");
  if (type != "enabled" && type != "disabled")
    fail(ErrorKind::usage, "thinking is neither true, false nor of type enabled or disabled");
  max_thinking = fields.integer("budget_tokens", -1, kMostTokenLimit).value_or(max_thinking);
  tell_unknown(fields, unknown);
  return type == "enabled";
}

// Of those that chat templates of others take, the ones that this format has.
void read_template_fields(const ReadJson& json, ThinkingAsked& thinking, UnknownFields& unknown) {
  JsonFields fields(json, "chat_template_kwargs", "chat_template_kwargs.");
  refuse_foreign(fields);
  for (const char* key : {"thinking", "enable_thinking"})
    thinking.note(fields.name_of(key), fields.truth(key));
  tell_unknown(fields, unknown);
}

void read_thinking(JsonFields& body, GenerationOptions& options, UnknownFields& unknown) {
  const std::optional<std::string> effort = body.text("reasoning_effort");
  ThinkingAsked thinking;
  thinking.note("thinking", read_thinking_field(body, options.max_thinking, unknown));
  thinking.note("enable_thinking", body.truth("enable_thinking"));
  if (const ReadJson* kwargs = body.find("chat_template_kwargs"))
    read_template_fields(*kwargs, thinking, unknown);
  options.thinking = thinking.asked().value_or(effort ? *effort != "none" : options.thinking);
}

// -1 is one at random, as elsewhere.
void read_seed(JsonFields& body, BatchRequest& request) {
  const ReadJson* asked = body.find("seed");
  request.has_random_seed = asked && !asked->is_number_unsigned() && *asked == -1;
  const std::optional<uint64_t> seed = request.has_random_seed ? std::nullopt : body.seed("seed");
  request.has_seed = seed.has_value();
  request.options.sampling.seed = seed.value_or(request.options.sampling.seed);
}

void read_options(JsonFields& body, BatchRequest& request, UnknownFields& unknown) {
  GenerationOptions& options = request.options;
  for (const GenerationOption& option : generation_options())
    if (option.is_batch_field) body.read(option, options);
  const std::optional<int64_t> newer = body.integer("max_completion_tokens", -1, kMostTokenLimit);
  options.max_tokens = newer.value_or(options.max_tokens);
  if (newer || body.find("max_tokens")) options.max_answer = -1;
  read_seed(body, request);
  if (const ReadJson* stop = body.find("stop")) options.stops = parse_stops(*stop);
  read_logprobs(body, options.n_top_logprobs);
  read_thinking(body, options, unknown);
}

// Of a stream, which there is none of: usage comes with every answer.
void read_stream_options(JsonFields& body, UnknownFields& unknown) {
  const ReadJson* options = body.find("stream_options");
  if (!options) return;
  JsonFields fields(*options, "stream_options", "stream_options.");
  fields.truth("include_usage");
  tell_unknown(fields, unknown);
}

void read_prompt_text(JsonFields& body, BatchRequest& request) {
  request.prompt.user = body.text("prompt").value_or("");
  if (request.prompt.user.empty()) fail(ErrorKind::usage, "prompt is empty");
}

void read_body(JsonFields& body, BatchRequest& request, UnknownFields& unknown) {
  refuse_foreign(body);
  body.find("model");
  read_options(body, request, unknown);
  read_stream_options(body, unknown);
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
  tell_unknown(body, unknown);
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
  line.find("model");
  for (const std::string& name : line.unknown())
    if (fields.is_known(name) && !is_foreign(name))
      fail(ErrorKind::usage, name + " stands beside body, expected in it");
  tell_unknown(line, unknown);
}

}  // namespace

void UnknownFields::note(const std::string& name) {
  if (told_.size() < kMostTold && told_.insert(name).second) tell_(name);
}

std::optional<std::string> custom_id_of(JsonFields& line) {
  std::optional<std::string> id = line.text("custom_id");
  if (id && id->empty()) fail(ErrorKind::usage, "custom_id is empty");
  return id;
}

BatchRequest read_request(JsonFields& line, BatchRequest request, UnknownFields& unknown) {
  if (const ReadJson* body = line.find("body"))
    read_envelope(line, *body, request, unknown);
  else if (line.find("url") || line.find("method"))
    fail(ErrorKind::usage, "body is missing");
  else
    read_body(line, request, unknown);
  return request;
}

int status_of(const Error& error) {
  if (error.kind() == ErrorKind::usage) return 400;
  return error.kind() == ErrorKind::context_full ? 413 : 500;
}

}  // namespace dsv32
