// See printer.h.
//
// Characters never arrive in halves, so each text can be escaped by itself.
#include "cli/terminal/printer.h"

#include <utility>

#include "base/text.h"

namespace dsv32 {
namespace {

constexpr const char* kDim = "\x1b[2m";
constexpr const char* kReset = "\x1b[0m";

}  // namespace

Printer::Printer(const PrinterStyle& style, Sink out, Sink err)
    : style_(style), out_(std::move(out)), err_(std::move(err)) {}

void Printer::print_reasoning(const std::string& text) {
  const bool is_first = !std::exchange(has_reasoned_, true);
  is_reasoning_ = true;
  if (style_.thinking == ThinkingDisplay::hide) return;
  if (style_.thinking == ThinkingDisplay::on_stdout) return print_out((is_first ? "<think>" : "") + text);
  if (is_first && !style_.has_color) print_err("thinking:\n");
  print_err(visible(text, true), style_.has_color);
}

void Printer::end_reasoning() {
  if (!std::exchange(is_reasoning_, false)) return;
  if (style_.thinking == ThinkingDisplay::on_stdout) return print_out("</think>");
  if (style_.thinking == ThinkingDisplay::hide) return;
  print_err(std::string(last_err_ == '\n' ? "" : "\n") + (style_.has_color ? "\n" : "answer:\n"));
}

void Printer::print_answer(const std::string& text) {
  end_reasoning();
  print_out(text);
}

// By way of standard error: the answer is not changed.
void Printer::break_row() {
  const bool is_amid_answer = style_.escapes_out && last_out_ != '\0' && last_out_ != '\n';
  if (is_amid_answer || last_err_ != '\n') err_("\n");
  last_err_ = '\n';
  wrap_ = {};
}

void Printer::finish(bool is_thinking_closed, bool is_broken_off) {
  if (is_thinking_closed)
    end_reasoning();
  else if (is_reasoning_ && style_.thinking == ThinkingDisplay::show && last_err_ != '\n')
    print_err("\n");
  if (last_out_ == '\0' && is_broken_off) return;
  if (last_out_ != '\n') out_("\n");
  last_out_ = '\n';
}

void Printer::print_out(std::string_view text) {
  if (text.empty()) return;
  out_(wrapped(style_.escapes_out ? visible(text, true) : std::string(text)));
  last_out_ = text.back();
}

// `text`: escaped.
void Printer::print_err(const std::string& text, bool is_dim) {
  if (text.empty()) return;
  last_err_ = text.back();
  const std::string shown = wrapped(text);
  err_(is_dim ? kDim + shown + kReset : shown);
}

std::string Printer::wrapped(std::string text) {
  return style_.columns ? wrap_.wrap(text, style_.columns()) : std::move(text);
}

}  // namespace dsv32
