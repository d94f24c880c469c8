// See answer.h.
#include "cli/chat/answer.h"

#include <utility>

#include "base/error.h"
#include "base/stopwatch.h"
#include "base/text.h"
#include "text/marks.h"

namespace dsv32 {
namespace {

constexpr const char *kDim = "\x1b[2m", *kReset = "\x1b[0m";

}  // namespace

bool lacks_whole_answer(const GenerationResult& result, const GenerationOptions& asked, bool is_of_many) {
  const Completion& answer = result.completion;
  const bool has_ended = result.finish_reason == FinishReason::stop;
  if (asked.max_answer == 0) return false;
  if (!has_ended && (asked.is_document() || answer.is_call_cut)) return true;
  if (is_of_many) return false;
  const bool is_as_asked =
      result.n_completion_tokens == asked.max_tokens || result.n_answer_tokens() == asked.max_answer;
  return !answer.has_begun() || (!has_ended && !is_as_asked);
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
  if (style_.thinking == ThinkingDisplay::on_stdout)
    return print_out((is_first ? std::string(marks::kThink) : "") + text);
  if (is_first && !style_.has_color) print_err("thinking:\n");
  print_err(visible(text, true), style_.has_color);
}

void AnswerPrinter::end_reasoning() {
  if (!std::exchange(is_reasoning_, false)) return;
  if (style_.thinking == ThinkingDisplay::on_stdout) return print_out(marks::kEndThink);
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
  return "guesses: " + with_thousands(n_accepted) + " of " + with_thousands(n_guessed) +
         format(" right (%.0f %%)", 100 * static_cast<double>(n_accepted) / static_cast<double>(n_guessed));
}

std::string buffer_summary(const Forward::BufferTally& tally) {
  const double n_hits = static_cast<double>(tally.n_rows - tally.n_misses);
  return "top-k buffer: " + with_thousands(tally.n_rows) + " rows, " + with_thousands(tally.n_misses) +
         format(" misses, hit rate %.1f %%", 100 * n_hits / static_cast<double>(tally.n_rows));
}

}  // namespace dsv32
