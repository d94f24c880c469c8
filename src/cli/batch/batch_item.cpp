#include "cli/batch/batch_item.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <random>
#include <utility>

#include "base/sha256.h"
#include "base/text.h"
#include "cli/batch/response_format.h"
#include "cli/options/flags.h"
#include "cli/options/json.h"
#include "cli/options/messages.h"
#include "cli/options/tools.h"

namespace dsv32 {
namespace {

constexpr size_t kMostTold = 32;  // unknown names

// Fields of requests to other programs that would change the answer and are not supported here: those of
// OpenAI's interface and of the servers of vLLM, SGLang, llama.cpp, ollama and TGI. Each has its list of
// values that change nothing; null is always allowed.
const ReadJson& foreign() {
  static const ReadJson parsed = ReadJson::parse(R"({
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

  "guided_regex": [], "guided_choice": [], "guided_grammar": [], "structural_tag": [], "grammar": [""],
  "regex": [""], "ebnf": [""],

  "tool_prompt": [""], "functions": [[]],
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
})");
  return parsed;
}

// Refuses the first of these fields whose value would change the answer.
void refuse_foreign(JsonFields& fields) {
  for (const auto& row : foreign().items()) {
    const ReadJson* value = fields.find(row.key());
    if (!value || std::ranges::count(row.value(), *value) > 0) continue;
    fail(ErrorKind::usage, format("%s is %s, which is not supported", fields.name_of(row.key()).c_str(),
                                  JsonFields::shown(*value).c_str()));
  }
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

// "logprobs" is true, with "top_logprobs" beside it, or the number itself.
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

// true, false, or in the form of DeepSeek's own service {"type": "enabled"}, with a limit.
std::optional<bool> read_thinking_field(JsonFields& body, int64_t& max_thinking,
                                        const LineMaker::Tell& tell) {
  const ReadJson* asked = body.find("thinking");
  if (!asked || asked->is_boolean()) return body.truth("thinking");
  std::string type;
  if (asked->is_object()) {
    JsonFields fields(*asked, "thinking", "thinking.");
    type = fields.text("type").value_or("");
    max_thinking = fields.integer("budget_tokens", -1, kMostTokenLimit).value_or(max_thinking);
    tell_unknown(fields, tell);
  }
  if (type != "enabled" && type != "disabled")
    fail(ErrorKind::usage, "thinking is neither true, false nor of type enabled or disabled");
  return type == "enabled";
}

// Whether to think. Several fields may say so, and must agree.
void read_thinking(JsonFields& body, BatchRequest& request, const LineMaker::Tell& tell) {
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
  note("thinking", read_thinking_field(body, options.max_thinking, tell));
  note("enable_thinking", body.truth("enable_thinking"));
  if (const ReadJson* kwargs = body.find("chat_template_kwargs")) {  // only those of this chat format
    JsonFields fields(*kwargs, "chat_template_kwargs", "chat_template_kwargs.");
    refuse_foreign(fields);
    for (const char* key : {"thinking", "enable_thinking"}) note(fields.name_of(key), fields.truth(key));
    tell_unknown(fields, tell);
  }
  request.is_thinking_asked = asked || effort;
  options.thinking = asked.value_or(effort ? *effort != "none" : options.thinking);
}

// -1 asks for a random seed, as elsewhere.
void read_seed(JsonFields& body, BatchRequest& request) {
  const ReadJson* asked = body.find("seed");
  request.has_random_seed = asked && !asked->is_number_unsigned() && *asked == -1;
  const std::optional<uint64_t> seed = request.has_random_seed ? std::nullopt : body.seed("seed");
  request.has_seed = seed.has_value();
  request.options.sampling.seed = seed.value_or(request.options.sampling.seed);
}

void read_options(JsonFields& body, BatchRequest& request, const LineMaker::Tell& tell) {
  GenerationOptions& options = request.options;
  for (const GenerationOption& option : generation_options())
    if (option.is_batch_field) body.read(option, options);
  const std::optional<int64_t> newer = body.integer("max_completion_tokens", -1, kMostTokenLimit);
  options.max_tokens = newer.value_or(options.max_tokens);
  if (newer || body.find("max_tokens")) options.max_answer = -1;
  read_seed(body, request);
  if (const ReadJson* stop = body.find("stop")) options.stops = parse_stops(*stop);
  read_logprobs(body, options.n_top_logprobs);
  read_thinking(body, request, tell);
}

void read_body(JsonFields& body, BatchRequest& request, const InOrder& in_order,
               const LineMaker::Tell& tell) {
  refuse_foreign(body);
  body.find("model");
  read_options(body, request, tell);
  if (std::optional<std::string> constraint = read_response_format(body, in_order))
    request.options.constraint = std::move(*constraint);
  if (const ReadJson* options = body.find("stream_options")) {  // usage comes with every answer
    JsonFields fields(*options, "stream_options", "stream_options.");
    fields.truth("include_usage");
    tell_unknown(fields, tell);
  }
  const ReadJson* messages = body.find("messages");
  const std::optional<std::string> prompt = body.text("prompt");
  if (messages && prompt) fail(ErrorKind::usage, "messages and prompt are both given");
  if (messages && request.is_completion)
    fail(ErrorKind::usage, "messages is given, /v1/completions takes a prompt");
  if (!messages && !prompt)
    fail(ErrorKind::usage, request.is_completion ? "prompt is missing" : "messages is missing");
  if (prompt == "") fail(ErrorKind::usage, "prompt is empty");
  const Tools tools = read_tools(body, in_order);
  if (!tools.json.empty() && request.is_raw && !messages)
    fail(ErrorKind::usage, "the prompt is rendered already, tools cannot be added to it");
  tools.ask_for(request.options);
  if (messages)
    request.messages = parse_messages(*messages, tell);
  else
    request.prompt.user = *prompt, request.prompt.tools = tools.json;
  if (messages && !tools.json.empty()) request.messages = with_tools(std::move(request.messages), tools.json);
  request.options.check();
  tell_unknown(body, tell);
}

// {"method", "url", "body"} around the body.
void read_envelope(JsonFields& line, const ReadJson& body, BatchRequest& request, const InOrder& in_order,
                   const LineMaker::Tell& tell) {
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
  read_body(
      fields, request, [&](const std::string& pointer) { return in_order("/body" + pointer); }, tell);
  line.find("model");
  for (const std::string& name : line.unknown())
    if (fields.is_known(name) && !foreign().contains(name))
      fail(ErrorKind::usage, name + " must be inside body");
  tell_unknown(line, tell);
}

BatchRequest read_request(JsonFields& line, std::string_view text, BatchRequest request,
                          const LineMaker::Tell& tell) {
  const InOrder in_order = [text](const std::string& pointer) {
    return parse_outside_json<Json>(text, kRequestDepth).at(Json::json_pointer(pointer));
  };
  if (const ReadJson* body = line.find("body"))
    read_envelope(line, *body, request, in_order, tell);
  else if (line.find("url") || line.find("method"))
    fail(ErrorKind::usage, "body is missing");
  else
    read_body(line, request, in_order, tell);
  return request;
}

template <typename Part>
Part first_bytes(const Hash256& hash) {
  Part part;
  std::memcpy(&part, hash.data(), sizeof part);
  return part;
}

// Only where there are some, so that digests without them stay the same. Ids of calls change no answer.
void add_tools(Sha256& hash, const Message& message) {
  if (message.calls.empty() && message.tools.empty()) return;
  hash.add_field(message.tools);
  hash.add_number(message.calls.size());
  for (const ToolCall& call : message.calls) hash.add_field(call.name), hash.add_field(call.arguments);
  hash.add_field(message.calls_text);
}

void add_prompt(Sha256& hash, const BatchRequest& request) {
  hash.add_number(request.messages.size());
  for (const Message& message : request.messages) {
    hash.add_number(static_cast<uint64_t>(message.role));
    hash.add_field(message.content);
    hash.add_field(message.reasoning);
    add_tools(hash, message);
  }
  hash.add_field(request.prompt.system);
  hash.add_field(request.prompt.user);
  if (!request.prompt.tools.empty()) hash.add_field(request.prompt.tools);
  hash.add_number(request.is_raw);
  hash.add_number(request.is_completion);
  if (request.chat_format) hash.add_field(traits_of(*request.chat_format).name);
}

void add_value(Sha256& hash, float value) { hash.add(&value, sizeof value); }
void add_value(Sha256& hash, uint64_t value) { hash.add_number(value); }
void add_value(Sha256& hash, int64_t value) { hash.add_number(static_cast<uint64_t>(value)); }
void add_value(Sha256& hash, bool value) { hash.add_number(value); }
void add_value(Sha256& hash, const std::string& text) { hash.add_field(text); }
void add_value(Sha256& hash, const std::vector<std::string>& texts) {
  hash.add_number(texts.size());
  for (const std::string& text : texts) hash.add_field(text);
}

// In a fixed order, so that digests stay the same; options that are added to the list follow, if they are not
// as by default.
void add_options(Sha256& hash, const BatchRequest& request) {
  constexpr std::string_view kFirst[] = {"temperature", "top_p",        "min_p",      "top_k",
                                         "seed",        "max_tokens",   "max_answer", "max_thinking",
                                         "thinking",    "top_logprobs", "stops"};
  GenerationOptions options = request.options, none;
  options.sampling.top_k = std::max<int64_t>(options.sampling.top_k, 0);
  std::vector<const GenerationOption*> rows;
  for (const GenerationOption& option : generation_options()) rows.push_back(&option);
  std::ranges::stable_sort(rows, {}, [&](const GenerationOption* row) {
    return std::ranges::find(kFirst, row->name) - std::begin(kFirst);
  });
  for (const GenerationOption* row : rows) {
    if (std::ranges::count(kFirst, row->name) == 0) {
      if (text_of(row->field(options)) == text_of(row->field(none))) continue;
      hash.add_field(row->name);
    }
    if (row->name == std::string_view("seed"))
      hash.add_number(request.has_random_seed ? 2 : request.has_seed);
    std::visit([&](const auto* field) { add_value(hash, *field); }, row->field(options));
  }
}

// A hash of the request's hash and one more text.
Hash256 hash_of(const Hash256& request, std::string_view purpose, const std::string& text) {
  Sha256 hash;
  hash.add(request.data(), request.size());
  hash.add_field(purpose);
  hash.add_field(text);
  return hash.finish();
}

}  // namespace

LineDigest digest_of(std::string_view bytes) { return first_bytes<LineDigest>(sha256(bytes)); }

std::optional<LineDigest> parse_line_digest(std::string_view text) {
  LineDigest digest{};
  if (text.size() != 2 * digest.size()) return {};
  for (size_t i = 0; i < digest.size(); ++i) {
    const char* const at = text.data() + 2 * i;
    if (std::from_chars(at, at + 2, digest[i], 16).ptr != at + 2) return {};
  }
  return digest;
}

bool is_in(const Shard& shard, const LineDigest& digest) {
  uint64_t value;
  std::memcpy(&value, digest.data() + sizeof value, sizeof value);
  return value % shard.n_shards == shard.number;
}

int status_of(const Error& error) {
  if (error.kind() == ErrorKind::usage) return 400;
  return error.kind() == ErrorKind::context_full ? 413 : 500;
}

Error at_line(int64_t number, const Error& error) {
  return {error.kind(), format("line %lld: ", as_ll(number)) + error.what(), error.hint()};
}

BatchItem LineMaker::from_json(int64_t number, std::string_view json) {
  std::optional<std::string> id;
  bool is_named = false;  // the line's own id, or the lack of one, has been read
  try {
    const ReadJson root = parse_outside_json(json, kRequestDepth);
    JsonFields line(root, "the line");
    id = line.text("custom_id");
    if (id == "") fail(ErrorKind::usage, "custom_id is empty");
    is_named = true;
    return accepted(number, id, read_request(line, json, defaults_, [this](const std::string& name) {
                      if (told_.size() < kMostTold && told_.insert(name).second) tell_(name);
                    }));
  } catch (...) {
    Error why = current_error();
    if (const size_t begin = json.find_first_not_of(" \t"); begin != json.npos && json[begin] != '{')
      why = Error(why.kind(), why.what(), "dsv32 batch --lines takes each line as a prompt");
    if (!is_named) id = salvaged_text(json, "custom_id");
    if (id == "") id.reset();
    if (is_named && !id) id = std::to_string(number);
    return refused(number, std::move(id), json, at_line(number, why));
  }
}

BatchItem LineMaker::from_text(int64_t number, std::string prompt,
                               const std::optional<std::string>& id) const {
  BatchRequest request = defaults_;
  request.prompt.user = std::move(prompt);
  return accepted(number, id, std::move(request));
}

BatchItem LineMaker::refused(int64_t number, std::optional<std::string> id, std::string_view bytes,
                             const Error& why) const {
  Sha256 hash;
  hash.add(model_.data(), model_.size());
  hash.add_field("refused");
  hash.add_field(id.value_or(std::to_string(number)));
  hash.add_field(bytes);
  BatchItem item;
  item.number = number, item.id = std::move(id), item.error = why;
  item.digest = first_bytes<LineDigest>(hash.finish());
  return item;
}

BatchItem LineMaker::accepted(int64_t number, const std::optional<std::string>& own_id,
                              BatchRequest request) const {
  Sha256 hash;
  hash.add(model_.data(), model_.size());
  add_prompt(hash, request);
  add_options(hash, request);
  const Hash256 asked = hash.finish();
  if (request.has_random_seed)
    request.options.sampling.seed = std::random_device{}();
  else if (!request.has_seed)
    request.options.sampling.seed = first_bytes<uint64_t>(hash_of(asked, "seed", own_id.value_or("")));
  BatchItem item;
  item.number = number, item.id = own_id.value_or(std::to_string(number));
  item.digest = first_bytes<LineDigest>(hash_of(asked, "id", *item.id));
  item.request = std::move(request);
  return item;
}

}  // namespace dsv32
