// Prints an answer as it comes.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "cli/terminal/signals.h"
#include "cli/terminal/streams.h"
#include "cli/warm/answer_json.h"
#include "model/forward.h"
#include "text/chat_format.h"

namespace dsv32 {

inline constexpr int kNoWholeAnswer = 6;  // the exit code

// Whether an answer makes that the exit code: a document or a call is cut; or, of the only prompt, no answer
// began, or it was cut by something else than -n and max_tokens. Not after -n 0, which asks for none.
bool lacks_whole_answer(const GenerationResult& result, const GenerationOptions& asked, bool is_of_many);

// Prints one answer: the answer itself on standard output, thinking and progress on standard error.
//
// With colour, thinking is dim and a blank line separates it from the answer; otherwise the lines "thinking:"
// and "answer:" do. Text for a terminal is escaped (visible()), text for a pipe is not changed.
// Every coloured write ends with a reset, so that the terminal is never left coloured. Where both streams are
// one terminal, lines may end between words (WordWrap).
class AnswerPrinter : public Listener {
 public:
  struct Style {
    ThinkingDisplay thinking = ThinkingDisplay::show;
    bool escapes_out = false;    // standard output is a terminal
    bool has_color = false;      // on standard error
    bool wraps = false;          // both streams are one terminal, whose lines end between words
    bool prints = true;          // false: only progress, and `json`
    AnswerJson* json = nullptr;  // writes chunks in place of the text
  };
  // Called every second with the answer so far. With it a failed write of the answer counts as SIGHUP;
  // without it the failure is Error{io}.
  using Keep = std::function<void(const Message& answer)>;
  using Sink = void (*)(std::string_view);

  AnswerPrinter(const Style& style, StatusLine& status, GracefulStop& stop, Keep keep = {},
                Sink out = write_out_as_is, Sink err = write_err);

  void on_prefill(int64_t n_done, int64_t n_total, int64_t n_cached) override;
  // Whole characters; thinking comes before the answer.
  void on_reasoning(const std::string& text) override;
  void on_answer(const std::string& text) override;
  bool is_interrupted() override { return stop_.is_requested(); }

  // Prints calls after the answer, in lines of their own (call_lines()).
  void print_calls(const std::vector<ToolCall>& calls);
  // Ends the last line; an empty answer gets a line end too, unless it was broken off. `is_thinking_closed`:
  // </think> came, perhaps with no answer after it.
  void finish(bool is_thinking_closed, bool is_broken_off = false);

 private:
  void end_reasoning();
  void print_out(std::string_view text);
  void print_err(const std::string& text, bool is_dim = false);

  const Style style_;
  StatusLine& status_;
  GracefulStop& stop_;
  const Keep keep_;
  const Sink out_, err_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point kept_at_ = start_;
  Message answer_{Message::Role::assistant, {}, {}};  // so far
  int64_t n_reasoning_ = 0, n_answer_ = 0;            // pieces of text, nearly tokens
  WordWrap wrap_;
  bool is_reasoning_ = false;
  char last_out_ = '\0', last_err_ = '\n';
};

// Each call as a line of JSON: {"name":...,"arguments":{...}}
std::string call_lines(const std::vector<ToolCall>& calls);

// "reading prompt 18,432 / 61,002 tokens (12,288 from cache)  1,240 t/s  34 s left"
std::string prefill_progress(int64_t n_done, int64_t n_total, int64_t n_cached, double seconds);

// "prompt: 12 tokens (0 from cache: no prefix of it is known), 45.1 t/s" and
// "answer: 31 tokens of thinking, 48 tokens, 12.3 t/s". Why none came from the cache is said of a prompt that
// took long, or of each.
std::string prefill_summary(const GenerationResult& result, bool is_verbose);
std::string decode_summary(const GenerationResult& result);

// "guesses: 812 of 1,024 right (79 %)": of one guess or more.
std::string guess_summary(int64_t n_guessed, int64_t n_accepted);

// "top-k buffer: 1,024 rows, 31 misses, hit rate 97.0 %": of one row or more.
std::string buffer_summary(const Forward::BufferTally& tally);

}  // namespace dsv32
