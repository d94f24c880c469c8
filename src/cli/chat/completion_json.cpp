// See completion_json.h. Keys keep the order in which they are written here.
//
// Ids and times are the only fields that differ between two runs with the same seed.
#include "cli/chat/completion_json.h"

#include <ctime>
#include <random>

#include "base/error.h"
#include "base/text.h"
#include "cli/options/json.h"

namespace dsv32 {
namespace {

std::string random_id(const char* prefix) {
  std::random_device device;
  return format("%s-%08x%08x", prefix, device(), device());
}

Json token_json(const TokenLogprob& token, const Tokenizer& tokenizer) {
  Json bytes = Json::array();
  std::string name = "?";  // an id that only the embedding has
  if (token.id < tokenizer.n_vocab()) {
    for (const char byte : tokenizer.bytes_of(token.id)) bytes.push_back(static_cast<uint8_t>(byte));
    name = sanitize_utf8(tokenizer.piece(token.id));
  }
  return {{"token", name}, {"logprob", token.logprob}, {"bytes", bytes}};
}

Json logprobs_json(const std::vector<TokenRecord>& records, const Tokenizer& tokenizer) {
  Json content = Json::array();
  for (const TokenRecord& record : records) {
    Json token = token_json(record.chosen, tokenizer);
    token["top_logprobs"] = Json::array();
    for (const TokenLogprob& other : record.top)
      token["top_logprobs"].push_back(token_json(other, tokenizer));
    content.push_back(std::move(token));
  }
  return {{"content", std::move(content)}};
}

double per_second(int64_t n, double seconds) { return seconds > 0 ? static_cast<double>(n) / seconds : 0; }

Json timings_json(const GenerationResult& result, std::optional<double> load_seconds) {
  Json json = Json::object();
  if (load_seconds) json["load_seconds"] = *load_seconds;
  json["prefill_seconds"] = result.prefill_seconds;
  json["prefill_tokens_per_second"] =
      per_second(result.n_prompt_tokens - result.n_cached_tokens, result.prefill_seconds);
  json["decode_seconds"] = result.decode_seconds;
  json["decode_tokens_per_second"] = per_second(result.n_completion_tokens, result.decode_seconds);
  return json;
}

Json choice_json(const GenerationResult& result, const Tokenizer& tokenizer,
                 const CompletionContext& context) {
  const std::string content = sanitize_utf8(result.completion.content);
  const Json reasoning = context.thinking ? Json(sanitize_utf8(result.completion.reasoning)) : Json(nullptr);
  Json choice{{"index", 0}};
  if (context.is_text_completion)
    choice.update({{"text", content}, {"reasoning_content", reasoning}});
  else
    choice["message"] = {{"role", "assistant"}, {"content", content}, {"reasoning_content", reasoning}};
  choice["finish_reason"] = finish_reason_name(result.finish_reason);
  if (!result.logprobs.empty()) choice["logprobs"] = logprobs_json(result.logprobs, tokenizer);
  return choice;
}

Json usage_json(const GenerationResult& result) {
  return {{"prompt_tokens", result.n_prompt_tokens},
          {"completion_tokens", result.n_completion_tokens},
          {"total_tokens", result.n_prompt_tokens + result.n_completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", result.n_cached_tokens}}},
          {"completion_tokens_details", {{"reasoning_tokens", result.n_thinking_tokens}}}};
}

// What stands beside the answer.
void add_figures(Json& json, const GenerationResult& result, const CompletionContext& context) {
  json["usage"] = usage_json(result);
  json["seed"] = context.seed;
  json["timings"] = timings_json(result, context.load_seconds);
  const Forward::BufferTally& tally = result.buffer_tally;
  if (context.load_seconds && tally.n_rows > 0)
    json["topk_buffer"] = {{"rows", tally.n_rows}, {"misses", tally.n_misses}};
}

// What every object begins with.
Json head_json(const std::string& id, const char* object, int64_t created, const std::string& model_name,
               Json choice) {
  return {{"id", id},
          {"object", object},
          {"created", created},
          {"model", sanitize_utf8(model_name)},
          {"choices", Json::array({std::move(choice)})}};
}

Json chunk_json(const std::string& id, int64_t created, const std::string& model_name, Json delta) {
  Json choice{{"index", 0}, {"delta", std::move(delta)}, {"finish_reason", nullptr}};
  return head_json(id, "chat.completion.chunk", created, model_name, std::move(choice));
}

}  // namespace

std::string completion_json(const GenerationResult& result, const Tokenizer& tokenizer,
                            const CompletionContext& context) {
  const bool is_text = context.is_text_completion;
  Json json =
      head_json(random_id(is_text ? "cmpl" : "chatcmpl"), is_text ? "text_completion" : "chat.completion",
                std::time(nullptr), context.model_name, choice_json(result, tokenizer, context));
  add_figures(json, result, context);
  return json.dump();
}

CompletionChunks::CompletionChunks(const std::string& model_name)
    : id_(random_id("chatcmpl")),
      model_name_(model_name),
      created_(static_cast<int64_t>(std::time(nullptr))) {}

std::string CompletionChunks::first() const {
  return chunk_json(id_, created_, model_name_, {{"role", "assistant"}}).dump();
}

std::string CompletionChunks::reasoning(const std::string& text) const {
  return chunk_json(id_, created_, model_name_, {{"reasoning_content", sanitize_utf8(text)}}).dump();
}

std::string CompletionChunks::answer(const std::string& text) const {
  return chunk_json(id_, created_, model_name_, {{"content", sanitize_utf8(text)}}).dump();
}

std::string CompletionChunks::last(const GenerationResult& result, const Tokenizer& tokenizer,
                                   const CompletionContext& context) const {
  Json json = chunk_json(id_, created_, model_name_, Json::object());
  Json& choice = json["choices"][0];
  choice["finish_reason"] = finish_reason_name(result.finish_reason);
  if (!result.logprobs.empty()) choice["logprobs"] = logprobs_json(result.logprobs, tokenizer);
  add_figures(json, result, context);
  return json.dump();
}

}  // namespace dsv32
