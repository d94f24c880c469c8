// One answer on its way to the screen: the listener of generate() that `run` and `chat` share.
//
// Ties the printer, the progress line and the stop request together, and tells afterwards how fast it went.
#pragma once

#include <chrono>
#include <string>

#include "cli/terminal/printer.h"
#include "cli/terminal/signals.h"
#include "cli/terminal/terminal.h"
#include "engine/loop.h"
#include "model/forward.h"

namespace dsv32 {

class AnswerListener : public Listener {
 public:
  // With `prints` false nothing is printed but progress. Both references must outlive the listener.
  AnswerListener(Printer& printer, StatusLine& status, const GracefulStop& stop, bool prints);

  void on_prefill(int64_t n_done, int64_t n_total, int64_t n_cached) override;
  void on_reasoning(const std::string& text) override;
  void on_answer(const std::string& text) override;
  void on_notice(const std::string& line) override;
  bool is_interrupted() override { return stop_.is_requested(); }

  // The answer does not show: count it on the progress line.
  void count_answer() { counts_answer_ = true; }
  void count_reasoning() { counts_reasoning_ = true; }

 private:
  Printer& printer_;
  StatusLine& status_;
  const GracefulStop& stop_;
  bool prints_, counts_answer_ = false, counts_reasoning_ = false;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  int64_t n_reasoning_ = 0, n_answer_ = 0;
};

// "reading prompt 18,432 / 61,002 tokens (12,288 from cache)  1,240 t/s  34 s left"
std::string prefill_progress(int64_t n_done, int64_t n_total, int64_t n_cached, double seconds);

// "prompt: 12 tokens (0 from cache: no prefix of it is known), 45.1 t/s" and
// "answer: 31 tokens of thinking, 48 tokens, 12.3 t/s".
std::string prefill_summary(const GenerationResult& result);
std::string decode_summary(const GenerationResult& result);

// "top-k buffer: 1,024 rows, 31 misses, hit rate 97.0 %"; empty when no buffer was used.
std::string buffer_summary(const Forward::BufferTally& tally);

}  // namespace dsv32
