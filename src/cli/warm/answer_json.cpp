// See answer_json.h. JSON keys keep the order in which they are written here. Ids and times are the only
// fields that differ between two runs with the same seed.
#include "cli/warm/answer_json.h"

#include <ctime>
#include <random>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "cli/options/messages.h"

namespace dsv32 {

// A result for read_chunk(), but for the texts that come in pieces.
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(TokenRun, begin, end)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(TokenLogprob, id, logprob)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(TokenRecord, chosen, top)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ToolCall, name, arguments, id)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Completion, calls, calls_text, is_call_cut, call_fault, thinking_closed)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Forward::BufferTally, n_rows, n_misses)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(GenerationResult, completion, finish_reason, n_prompt_tokens,
                                   n_cached_tokens, n_completion_tokens, n_read_tokens, n_thinking_tokens,
                                   n_guessed, n_accepted, why_none_cached, prefill_seconds, decode_seconds,
                                   logprobs, decoded, n_held_tokens, buffer_tally)

namespace {

constexpr const char* kThinkingField = "reasoning_content";

Json bytes_json(const std::string& text) { return std::vector<uint8_t>(text.begin(), text.end()); }

Json token_json(const TokenLogprob& token, const Tokenizer& tokenizer) {
  const bool is_known = token.id < tokenizer.n_vocab();  // else an id beyond the vocabulary
  return {{"token", is_known ? sanitize_utf8(tokenizer.piece(token.id)) : "?"},
          {"logprob", token.logprob},
          {"bytes", is_known ? bytes_json(std::string(tokenizer.bytes_of(token.id))) : Json::array()}};
}

// Adds finish_reason and logprobs to a choice.
void end_choice(Json& choice, const GenerationResult& result, const Tokenizer& tokenizer) {
  const bool calls = result.finish_reason == FinishReason::stop && !result.completion.calls.empty();
  choice["finish_reason"] = calls ? "tool_calls" : finish_reason_name(result.finish_reason);
  if (result.logprobs.empty()) return;
  Json& content = choice["logprobs"]["content"] = Json::array();
  for (const TokenRecord& record : result.logprobs) {
    Json token = token_json(record.chosen, tokenizer);
    Json& others = token["top_logprobs"] = Json::array();
    for (const TokenLogprob& other : record.top) others.push_back(token_json(other, tokenizer));
    content.push_back(std::move(token));
  }
}

// Adds usage, seed, timings and the top-k buffer's figures.
void add_figures(Json& json, const GenerationResult& result, const AnswerFacts& facts) {
  const auto per_second = [](int64_t n, double seconds) {
    return seconds > 0 ? static_cast<double>(n) / seconds : 0;
  };
  json["usage"] = {{"prompt_tokens", result.n_prompt_tokens},
                   {"completion_tokens", result.n_completion_tokens},
                   {"total_tokens", result.n_prompt_tokens + result.n_completion_tokens},
                   {"prompt_tokens_details", {{"cached_tokens", result.n_cached_tokens}}},
                   {"completion_tokens_details", {{"reasoning_tokens", result.n_thinking_tokens}}}};
  if (facts.has_drafts) {
    Json& details = json["usage"]["completion_tokens_details"];
    details["accepted_prediction_tokens"] = result.n_accepted;
    details["rejected_prediction_tokens"] = result.n_guessed - result.n_accepted;
  }
  json["seed"] = facts.seed;
  Json& timings = json["timings"] = Json::object();
  if (facts.load_seconds) timings["load_seconds"] = *facts.load_seconds;
  timings["prefill_seconds"] = result.prefill_seconds;
  timings["prefill_tokens_per_second"] =
      per_second(result.n_read_tokens - result.n_cached_tokens, result.prefill_seconds);
  timings["decode_seconds"] = result.decode_seconds;
  timings["decode_tokens_per_second"] = per_second(result.n_completion_tokens, result.decode_seconds);
  const Forward::BufferTally& tally = result.buffer_tally;
  if (facts.load_seconds && tally.n_rows > 0)
    json["topk_buffer"] = {{"rows", tally.n_rows}, {"misses", tally.n_misses}};
}

// The text of a piece, which is in "bytes" where it is no UTF-8.
std::string text_in(const Json& delta, const char* field) {
  if (!delta.contains("bytes")) return delta.at(field).get<std::string>();
  const auto bytes = delta["bytes"].get<std::vector<uint8_t>>();
  return {bytes.begin(), bytes.end()};
}

}  // namespace

AnswerJson::AnswerJson(AnswerFacts facts, const Tokenizer& tokenizer)
    : facts_(std::move(facts)), tokenizer_(tokenizer), created_(std::time(nullptr)) {
  std::random_device random;
  id_ = format("%s-%08x%08x", facts_.is_text_completion ? "cmpl" : "chatcmpl", random(), random());
}

Json AnswerJson::object(const char* kind, Json choice) const {
  return {{"id", id_},
          {"object", kind},
          {"created", created_},
          {"model", sanitize_utf8(facts_.model_name)},
          {"choices", Json::array({std::move(choice)})}};
}

Json AnswerJson::chunk(Json delta) const {
  return object("chat.completion.chunk",
                {{"index", 0}, {"delta", std::move(delta)}, {"finish_reason", nullptr}});
}

Json AnswerJson::end(Json json, const GenerationResult& result) const {
  end_choice(json["choices"][0], result, tokenizer_);
  add_figures(json, result, facts_);
  if (facts_.is_for_reader) json["dsv32"] = nlohmann::json(result);
  return json;
}

Json AnswerJson::whole(const GenerationResult& result) const {
  const Completion& made = result.completion;
  Json message =
      message_json({Message::Role::assistant, sanitize_utf8(made.content), sanitize_utf8(made.reasoning),
                    with_ids(made.calls), sanitize_utf8(made.calls_text)});
  if (!facts_.thinking) message[kThinkingField] = nullptr;
  if (facts_.is_text_completion)
    return end(
        object("text_completion",
               {{"index", 0}, {"text", message["content"]}, {kThinkingField, message[kThinkingField]}}),
        result);
  if (made.content.empty() && !made.calls.empty()) message["content"] = nullptr;
  return end(object("chat.completion", {{"index", 0}, {"message", message}}), result);
}

std::string AnswerJson::begin() {
  return std::exchange(has_begun_, true) ? "" : shown_json(chunk({{"role", "assistant"}})) + "\n";
}

std::string AnswerJson::piece(const char* field, const std::string& text) {
  Json delta{{field, sanitize_utf8(text)}};
  if (facts_.is_for_reader && delta[field] != text) delta["bytes"] = bytes_json(text);
  return begin() + shown_json(chunk(std::move(delta))) + "\n";
}

std::string AnswerJson::last(const GenerationResult& result) {
  std::string text = begin();
  if (const std::vector<ToolCall>& calls = result.completion.calls; !calls.empty()) {
    Json list = calls_json(with_ids(calls));
    for (size_t i = 0; i < list.size(); ++i) list[i]["index"] = i;
    text += shown_json(
                chunk({{"tool_calls", list}, {"calls_text", sanitize_utf8(result.completion.calls_text)}})) +
            "\n";
  }
  return text + shown_json(end(chunk(Json::object()), result)) + "\n";
}

// By the name that llama.cpp's server has for it.
std::string AnswerJson::progress(int64_t n_done, int64_t n_total, int64_t n_cached) const {
  Json json = chunk(Json::object());
  json["prompt_progress"] = {{"total", n_total}, {"cache", n_cached}, {"processed", n_done}};
  return shown_json(json) + "\n";
}

bool read_chunk(const Json& chunk, GenerationResult& result, Listener& listener) {
  const Json& delta = chunk.at("choices").at(0).at("delta");
  Completion& made = result.completion;
  if (const auto progress = chunk.find("prompt_progress"); progress != chunk.end()) {
    progress->at("total").get_to(result.n_prompt_tokens);
    progress->at("cache").get_to(result.n_cached_tokens);
    progress->at("processed").get_to(result.n_read_tokens);
    listener.on_prefill(result.n_read_tokens, result.n_prompt_tokens, result.n_cached_tokens);
  } else if (delta.contains(kThinkingField)) {
    const std::string text = text_in(delta, kThinkingField);
    made.reasoning += text;
    ++result.n_completion_tokens, ++result.n_thinking_tokens;
    listener.on_reasoning(text);
  } else if (delta.contains("content")) {
    const std::string text = text_in(delta, "content");
    made.content += text;
    ++result.n_completion_tokens;
    listener.on_answer(text);
  } else if (const auto whole = chunk.find("dsv32"); whole != chunk.end()) {
    nlohmann::json(*whole).get_to(result);
    return true;
  }
  return false;
}

}  // namespace dsv32
