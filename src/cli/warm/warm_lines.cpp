// See warm_lines.h.
#include "cli/warm/warm_lines.h"

#include <algorithm>
#include <limits>

#include "base/text.h"
#include "cli/options/json.h"
#include "cli/warm/warm_socket.h"

namespace dsv32 {
namespace {

constexpr int64_t kMostInt32 = std::numeric_limits<int32_t>::max();

int64_t whole_number(const ReadJson& json, int64_t least) {
  const bool is_small = json.is_number_integer() &&
                        (!json.is_number_unsigned() || json.get<uint64_t>() <= uint64_t{kMostInt32});
  if (!is_small || json.get<int64_t>() < least)
    fail(ErrorKind::usage, JsonFields::shown(json) + " is no token or position");
  return json.get<int64_t>();
}

const ReadJson& list(JsonFields& fields, const std::string& key) {
  const ReadJson* found = fields.find(key);
  if (!found || !found->is_array()) fail(ErrorKind::usage, key + " is no list");
  return *found;
}

ReadJson runs_json(const std::vector<TokenRun>& runs) {
  ReadJson json = ReadJson::array();
  for (const TokenRun& run : runs) json.push_back({run.begin, run.end});
  return json;
}

// Ascending, and none empty.
std::vector<TokenRun> runs_of(const ReadJson& json) {
  std::vector<TokenRun> runs;
  for (const ReadJson& run : json) {
    if (!run.is_array() || run.size() != 2) fail(ErrorKind::usage, "a run is no pair");
    const int64_t begin = whole_number(run[0], runs.empty() ? 0 : runs.back().end);
    runs.push_back({begin, whole_number(run[1], begin + 1)});
  }
  return runs;
}

ReadJson warm_value(const std::vector<std::string>& texts) {
  ReadJson json = ReadJson::array();
  for (const std::string& text : texts) json.push_back(warm_text(text));
  return json;
}
template <typename T>
ReadJson warm_value(const T& value) {
  return value;
}

ReadJson options_json(GenerationOptions options) {
  ReadJson json;
  for (const GenerationOption& option : generation_options())
    json[option.name] =
        std::visit([](const auto* field) { return warm_value(*field); }, option.field(options));
  return json;
}

GenerationOptions options_of(const ReadJson& json) {
  JsonFields fields(json, "options");
  GenerationOptions options;
  for (const GenerationOption& option : generation_options()) {
    const GenerationOption::Field field = option.field(options);
    const auto texts = std::get_if<std::vector<std::string>*>(&field);
    if (!texts) fields.read(option, options);
    if (texts)
      for (const ReadJson& text : list(fields, option.name)) (*texts)->push_back(warm_bytes(text));
  }
  if (std::ranges::count(options.stops, "") > 0) fail(ErrorKind::usage, "a stop is empty");
  return options;
}

ReadJson logprobs_json(const std::vector<TokenRecord>& records) {
  ReadJson json = ReadJson::array();
  for (const TokenRecord& record : records) {
    ReadJson row = ReadJson::array({record.chosen.id, record.chosen.logprob});
    for (const TokenLogprob& other : record.top) row.push_back(other.id), row.push_back(other.logprob);
    json.push_back(std::move(row));
  }
  return json;
}

std::vector<TokenRecord> logprobs_of(const ReadJson& json) {
  std::vector<TokenRecord> records;
  for (const ReadJson& row : json) {
    TokenRecord record;
    for (size_t i = 0; i + 1 < row.size(); i += 2) {
      const TokenLogprob token{row.at(i).get<int32_t>(), row.at(i + 1).get<float>()};
      i == 0 ? void(record.chosen = token) : record.top.push_back(token);
    }
    records.push_back(std::move(record));
  }
  return records;
}

}  // namespace

std::string warm_text(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) append_utf8(text, static_cast<uint8_t>(byte));
  return text;
}

std::string warm_bytes(const ReadJson& json) {
  if (!json.is_string()) fail(ErrorKind::usage, JsonFields::shown(json) + " is no text");
  const auto& text = json.get_ref<const std::string&>();
  std::string bytes;
  for (size_t at = 0; at < text.size();) {
    uint32_t character = 0;
    const int n = decode_utf8(text, at, &character);
    if (n == 0 || character > 0xff) fail(ErrorKind::usage, "a text holds a character beyond U+00FF");
    bytes += static_cast<char>(character);
    at += static_cast<size_t>(n);
  }
  return bytes;
}

ReadJson warm_json(const Request& request) {
  return {{"prompt", request.prompt},
          {"decoded", runs_json(request.decoded)},
          {"options", options_json(request.options)},
          {"is_talk", request.talk != 0}};
}

Request warm_request(const ReadJson& json) {
  JsonFields fields(json, "request");
  Request request;
  for (const ReadJson& token : list(fields, "prompt"))
    request.prompt.push_back(static_cast<int32_t>(whole_number(token, 0)));
  request.decoded = runs_of(list(fields, "decoded"));
  const ReadJson* options = fields.find("options");
  if (!options) fail(ErrorKind::usage, "options are missing");
  request.options = options_of(*options);
  request.talk = fields.truth("is_talk").value_or(false);
  return request;
}

void fail_unread() { throw WarmGone("a warm process said what cannot be understood"); }

ReadJson warm_json(const GenerationResult& result) {
  return {{"reasoning", warm_text(result.completion.reasoning)},
          {"content", warm_text(result.completion.content)},
          {"thinking_closed", result.completion.thinking_closed},
          {"finish", static_cast<int>(result.finish_reason)},
          {"n_prompt", result.n_prompt_tokens},
          {"n_cached", result.n_cached_tokens},
          {"n_completion", result.n_completion_tokens},
          {"n_thinking", result.n_thinking_tokens},
          {"why_none_cached", warm_text(result.why_none_cached)},
          {"prefill_seconds", result.prefill_seconds},
          {"decode_seconds", result.decode_seconds},
          {"logprobs", logprobs_json(result.logprobs)},
          {"decoded", runs_json(result.decoded)},
          {"n_held", result.n_held_tokens},
          {"buffer", {result.buffer_tally.n_rows, result.buffer_tally.n_misses}}};
}

GenerationResult warm_result(const ReadJson& json) {
  GenerationResult result;
  result.completion = {warm_bytes(json.at("reasoning")), warm_bytes(json.at("content")),
                       json.at("thinking_closed").get<bool>()};
  result.finish_reason = static_cast<FinishReason>(json.at("finish").get<int>());
  json.at("n_prompt").get_to(result.n_prompt_tokens);
  json.at("n_cached").get_to(result.n_cached_tokens);
  json.at("n_completion").get_to(result.n_completion_tokens);
  json.at("n_thinking").get_to(result.n_thinking_tokens);
  result.why_none_cached = warm_bytes(json.at("why_none_cached"));
  json.at("prefill_seconds").get_to(result.prefill_seconds);
  json.at("decode_seconds").get_to(result.decode_seconds);
  result.logprobs = logprobs_of(json.at("logprobs"));
  result.decoded = runs_of(json.at("decoded"));
  json.at("n_held").get_to(result.n_held_tokens);
  result.buffer_tally = {json.at("buffer").at(0).get<int64_t>(), json.at("buffer").at(1).get<int64_t>()};
  return result;
}

ReadJson warm_json(const Error& error) {
  return {{"kind", static_cast<int>(error.kind())},
          {"message", warm_text(error.what())},
          {"hint", warm_text(error.hint())}};
}

Error warm_error(const ReadJson& json) {
  return {static_cast<ErrorKind>(json.at("kind").get<int>()), warm_bytes(json.at("message")),
          warm_bytes(json.at("hint"))};
}

ReadJson warm_json(const EngineFacts& facts) {
  ReadJson warnings = ReadJson::array();
  for (const std::string& warning : facts.warnings) warnings.push_back(warm_text(warning));
  return {{"vocab_size", facts.vocab_size},
          {"context", facts.context},
          {"max_seqs", facts.max_seqs},
          {"pool_tokens", facts.pool_tokens},
          {"warnings", std::move(warnings)}};
}

EngineFacts warm_facts(const ReadJson& json) {
  EngineFacts facts;
  json.at("vocab_size").get_to(facts.vocab_size);
  json.at("context").get_to(facts.context);
  json.at("max_seqs").get_to(facts.max_seqs);
  json.at("pool_tokens").get_to(facts.pool_tokens);
  if (facts.vocab_size < 1 || facts.context < 1 || facts.max_seqs < 1) fail_unread();
  for (const ReadJson& warning : json.at("warnings")) facts.warnings.push_back(warm_bytes(warning));
  return facts;
}

}  // namespace dsv32
