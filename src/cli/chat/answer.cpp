// See answer.h. JSON keys keep the order in which they are written here. Ids and times are the only fields
// that differ between two runs with the same seed.
#include "cli/chat/answer.h"

#include <ctime>
#include <random>
#include <utility>

#include "base/error.h"
#include "base/stopwatch.h"
#include "base/text.h"
#include "cli/options/messages.h"

namespace dsv32 {
namespace {

Json token_json(const TokenLogprob& token, const Tokenizer& tokenizer) {
  Json bytes = Json::array();
  std::string name = "?";  // an id beyond the vocabulary
  if (token.id < tokenizer.n_vocab()) {
    for (const char byte : tokenizer.bytes_of(token.id)) bytes.push_back(static_cast<uint8_t>(byte));
    name = sanitize_utf8(tokenizer.piece(token.id));
  }
  return {{"token", name}, {"logprob", token.logprob}, {"bytes", bytes}};
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

constexpr const char *kDim = "\x1b[2m", *kReset = "\x1b[0m";

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

std::string AnswerJson::end(Json json, const GenerationResult& result) const {
  end_choice(json["choices"][0], result, tokenizer_);
  add_figures(json, result, facts_);
  return shown_json(json);
}

std::string AnswerJson::whole(const GenerationResult& result) const {
  const Completion& made = result.completion;
  Json message =
      message_json({Message::Role::assistant, sanitize_utf8(made.content), sanitize_utf8(made.reasoning),
                    with_ids(made.calls), sanitize_utf8(made.calls_text)});
  if (!facts_.thinking) message["reasoning_content"] = nullptr;
  if (facts_.is_text_completion)
    return end(object("text_completion", {{"index", 0},
                                          {"text", message["content"]},
                                          {"reasoning_content", message["reasoning_content"]}}),
               result);
  if (made.content.empty() && !made.calls.empty()) message["content"] = nullptr;
  return end(object("chat.completion", {{"index", 0}, {"message", message}}), result);
}

std::string AnswerJson::begin() {
  return std::exchange(has_begun_, true) ? "" : shown_json(chunk({{"role", "assistant"}})) + "\n";
}

std::string AnswerJson::piece(const char* field, const std::string& text) {
  return begin() + shown_json(chunk({{field, sanitize_utf8(text)}})) + "\n";
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
  return text + end(chunk(Json::object()), result) + "\n";
}

AnswerPrinter::AnswerPrinter(const Style& style, StatusLine& status, GracefulStop& stop, Keep keep, Sink out,
                             Sink err)
    : style_(style), status_(status), stop_(stop), keep_(std::move(keep)), out_(out), err_(err) {}

void AnswerPrinter::on_prefill(int64_t n_done, int64_t n_total, int64_t n_cached) {
  if (n_done == n_total) return status_.erase();
  status_.show(prefill_progress(n_done, n_total, n_cached, seconds_since(start_)));
}

void AnswerPrinter::on_reasoning(const std::string& text) {
  const bool is_first = n_reasoning_++ == 0, is_hidden = style_.thinking == ThinkingDisplay::hide;
  answer_.reasoning += text;
  if (!style_.prints || is_hidden) status_.show("thinking, " + with_thousands(n_reasoning_) + " tokens");
  if (style_.json) write_out(style_.json->piece("reasoning_content", text));
  if (!style_.prints) return;
  is_reasoning_ = true;
  if (is_hidden) return;
  if (style_.thinking == ThinkingDisplay::on_stdout) return print_out((is_first ? "<think>" : "") + text);
  if (is_first && !style_.has_color) print_err("thinking:\n");
  print_err(visible(text, true), style_.has_color);
}

void AnswerPrinter::end_reasoning() {
  if (!std::exchange(is_reasoning_, false)) return;
  if (style_.thinking == ThinkingDisplay::on_stdout) return print_out("</think>");
  if (style_.thinking == ThinkingDisplay::hide) return;
  print_err(std::string(last_err_ == '\n' ? "" : "\n") + (style_.has_color ? "\n" : "answer:\n"));
}

void AnswerPrinter::on_answer(const std::string& text) {
  constexpr double kSecondsBetween = 1;
  ++n_answer_;
  answer_.content += text;
  if (style_.json) write_out(style_.json->piece("content", text));
  if (style_.prints) end_reasoning(), print_out(text);
  if (!style_.prints || !style_.escapes_out)
    status_.show("answering, " + with_thousands(n_answer_) + " tokens");
  if (!keep_ || seconds_since(kept_at_) < kSecondsBetween) return;
  keep_(answer_);
  kept_at_ = std::chrono::steady_clock::now();
}

// Begins a new row of the terminal through standard error: the answer on standard output is not changed.
void AnswerPrinter::on_notice(const std::string& line) {
  const bool is_amid_answer = style_.escapes_out && last_out_ != '\0' && last_out_ != '\n';
  if (is_amid_answer || last_err_ != '\n') err_("\n");
  last_err_ = '\n';
  wrap_ = {};
  say(line);
}

void AnswerPrinter::print_calls(const std::vector<ToolCall>& calls) {
  if (!style_.prints || calls.empty()) return;
  end_reasoning();
  print_out((last_out_ == '\0' || last_out_ == '\n' ? "" : "\n") + call_lines(calls));
}

void AnswerPrinter::finish(bool is_thinking_closed, bool is_broken_off) {
  if (is_thinking_closed)
    end_reasoning();
  else if (is_reasoning_ && style_.thinking == ThinkingDisplay::show && last_err_ != '\n')
    print_err("\n");
  if (last_out_ == '\0' && is_broken_off) return;
  if (last_out_ != '\n') print_out("\n");
}

// Each text has whole characters, so it can be escaped by itself.
void AnswerPrinter::print_out(std::string_view text) try {
  if (text.empty()) return;
  last_out_ = text.back();
  if (!style_.escapes_out) return out_(text);
  out_(wrap_.wrap(visible(text, true), style_.wraps ? columns() : 0));
} catch (const Error&) {
  if (!keep_) throw;
  stop_.hang_up();
}

// `text`: escaped.
void AnswerPrinter::print_err(const std::string& text, bool is_dim) {
  if (text.empty()) return;
  last_err_ = text.back();
  const std::string shown = wrap_.wrap(text, style_.wraps ? columns() : 0);
  err_(is_dim ? kDim + shown + kReset : shown);
}

// Arguments stand as the model wrote them. JSON has line ends only between its parts.
std::string call_lines(const std::vector<ToolCall>& calls) {
  std::string lines;
  for (const ToolCall& call : calls)
    lines += R"({"name":)" + shown_json(sanitize_utf8(call.name)) + R"(,"arguments":)" +
             replaced(replaced(call.arguments, "\n", " "), "\r", " ") + "}\n";
  return lines;
}

std::string prefill_progress(int64_t n_done, int64_t n_total, int64_t n_cached, double seconds) {
  const int64_t n_computed = n_done - n_cached;
  const std::string text = "reading prompt " + with_thousands(n_done) + " / " + with_thousands(n_total) +
                           " tokens (" + with_thousands(n_cached) + " from cache)";
  if (n_computed <= 0 || seconds <= 0) return text;
  const double seconds_left =
      seconds * static_cast<double>(n_total - n_done) / static_cast<double>(n_computed);
  return text + "  " + rate(n_computed, seconds) + format(" t/s  %.0f s left", seconds_left);
}

std::string prefill_summary(const GenerationResult& result, bool is_verbose) {
  constexpr double kLongSeconds = 1;
  const bool is_whole = result.n_read_tokens == result.n_prompt_tokens,
             says_why = result.n_cached_tokens == 0 && !result.why_none_cached.empty() &&
                        (is_verbose || result.prefill_seconds >= kLongSeconds);
  return "prompt: " + (is_whole ? "" : with_thousands(result.n_read_tokens) + " of ") +
         with_thousands(result.n_prompt_tokens) + " tokens (" + with_thousands(result.n_cached_tokens) +
         " from cache" + (says_why ? ": " + result.why_none_cached : "") + "), " +
         rate(result.n_read_tokens - result.n_cached_tokens, result.prefill_seconds) + " t/s";
}

std::string decode_summary(const GenerationResult& result) {
  const int64_t n_thinking = result.n_thinking_tokens;
  return "answer: " + (n_thinking > 0 ? with_thousands(n_thinking) + " tokens of thinking, " : "") +
         with_thousands(result.n_answer_tokens()) + " tokens, " +
         rate(result.n_completion_tokens, result.decode_seconds) + " t/s";
}

std::string guess_summary(int64_t n_guessed, int64_t n_accepted) {
  if (n_guessed == 0) return {};
  return "guesses: " + with_thousands(n_accepted) + " of " + with_thousands(n_guessed) +
         format(" right (%.0f %%)", 100 * static_cast<double>(n_accepted) / static_cast<double>(n_guessed));
}

std::string buffer_summary(const Forward::BufferTally& tally) {
  if (tally.n_rows == 0) return {};
  const double n_hits = static_cast<double>(tally.n_rows - tally.n_misses);
  return "top-k buffer: " + with_thousands(tally.n_rows) + " rows, " + with_thousands(tally.n_misses) +
         format(" misses, hit rate %.1f %%", 100 * n_hits / static_cast<double>(tally.n_rows));
}

}  // namespace dsv32
