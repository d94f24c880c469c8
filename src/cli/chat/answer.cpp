// See answer.h.
//
// A piece of text is a token, but for those that end within a character: near enough for a progress line.
#include "cli/chat/answer.h"

#include "base/error.h"
#include "cli/terminal/streams.h"

namespace dsv32 {

AnswerListener::AnswerListener(Printer& printer, StatusLine& status, const GracefulStop& stop, bool prints)
    : printer_(printer), status_(status), stop_(stop), prints_(prints) {}

void AnswerListener::on_prefill(int64_t n_done, int64_t n_total, int64_t n_cached) {
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start_;
  if (n_done == n_total)
    status_.erase();
  else
    status_.show(prefill_progress(n_done, n_total, n_cached, passed.count()));
}

void AnswerListener::on_reasoning(const std::string& text) {
  ++n_reasoning_;
  if (counts_reasoning_) status_.show(format("thinking, %s tokens", with_thousands(n_reasoning_).c_str()));
  if (prints_) printer_.print_reasoning(text);
}

void AnswerListener::on_answer(const std::string& text) {
  ++n_answer_;
  if (counts_answer_)
    status_.show(format("answering, %s tokens", with_thousands(n_answer_).c_str()));
  else
    status_.erase();
  if (prints_) printer_.print_answer(text);
}

void AnswerListener::on_notice(const std::string& line) {
  status_.erase();
  printer_.break_row();
  say(line);
}

std::string prefill_progress(int64_t n_done, int64_t n_total, int64_t n_cached, double seconds) {
  const int64_t n_computed = n_done - n_cached;
  std::string text = format("reading prompt %s / %s tokens (%s from cache)", with_thousands(n_done).c_str(),
                            with_thousands(n_total).c_str(), with_thousands(n_cached).c_str());
  if (n_computed <= 0 || seconds <= 0) return text;
  const double seconds_left =
      seconds * static_cast<double>(n_total - n_done) / static_cast<double>(n_computed);
  return text + format("  %s t/s  %.0f s left", rate(n_computed, seconds).c_str(), seconds_left);
}

std::string prefill_summary(const GenerationResult& result) {
  const int64_t n_computed = result.n_prompt_tokens - result.n_cached_tokens;
  const bool says_why = result.n_cached_tokens == 0 && !result.why_none_cached.empty();
  return format("prompt: %s tokens (%s from cache%s), %s t/s", with_thousands(result.n_prompt_tokens).c_str(),
                with_thousands(result.n_cached_tokens).c_str(),
                says_why ? (": " + result.why_none_cached).c_str() : "",
                rate(n_computed, result.prefill_seconds).c_str());
}

std::string decode_summary(const GenerationResult& result) {
  const std::string thought = with_thousands(result.n_thinking_tokens) + " tokens of thinking, ";
  return format("answer: %s%s tokens, %s t/s", result.n_thinking_tokens > 0 ? thought.c_str() : "",
                with_thousands(result.n_answer_tokens()).c_str(),
                rate(result.n_completion_tokens, result.decode_seconds).c_str());
}

std::string buffer_summary(const Forward::BufferTally& tally) {
  if (tally.n_rows == 0) return {};
  const double n_hits = static_cast<double>(tally.n_rows - tally.n_misses);
  return format("top-k buffer: %s rows, %s misses, hit rate %.1f %%", with_thousands(tally.n_rows).c_str(),
                with_thousands(tally.n_misses).c_str(), 100 * n_hits / static_cast<double>(tally.n_rows));
}

}  // namespace dsv32
