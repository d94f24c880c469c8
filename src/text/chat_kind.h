// Which chat formats there are, how they differ, how each lays out a conversation, and which of them a
// model's file means. All that is one format's own is a row of the table in chat_kind.cpp.
//
//   v3    <BOS>{system}<｜User｜>{q1}<｜Assistant｜>{a1}<EOS><｜User｜>{q2}<｜Assistant｜>
//   v3.1  <BOS>{system}<｜User｜>{q1}<｜Assistant｜></think>{a1}<EOS><｜User｜>{q2}<｜Assistant｜><think>
//   r1    <BOS>{system}<｜User｜>{q1}<｜Assistant｜>{a1}<EOS><｜User｜>{q2}<｜Assistant｜><think>\n
//   v3.2  as v3.1 where there are only one system message and no tools (encoding_dsv32.py)
//
// A file's format is found by its vocabulary and by names in the text of tokenizer.chat_template, which is
// never executed. The first that holds decides:
//
//   1. the vocabulary has neither <think> nor </think>: v3. (V3, V3-0324.)
//   2. vocabulary or template have ｜DSML｜, the mark of V3.2's tool calls: v3.2. (Its makers published no
//      template, so that its files have none, V3.1's, or one of others.)
//   3. the template does not name <｜Assistant｜>, or there is none: v3.2.
//   4. the template writes <｜Assistant｜></think>: v3.1. (V3.1, V3.1-Terminus, V3.2-Exp.)
//   5. the template names </think>, where it drops earlier reasoning: r1. (R1, R1-0528.)
//   6. v3.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/message.h"
#include "text/tokenizer.h"

namespace dsv32 {

struct ChatKind {
  enum class Thinking { never, optional, always };
  // What goes from the content of an earlier answer that its sender has not split: all up to the first or to
  // the last "</think>".
  enum class Dropped { nothing, to_first, to_last };

  const char* name;  // as --chat-format takes it
  Thinking thinking;
  const char* after_think;  // text after the <think> that ends a prompt
  Dropped dropped;
  bool has_tools;
  std::span<const std::string_view> marks;  // tokens that the vocabulary must have
  // The prompt for a conversation; see ChatFormat::encode().
  std::vector<PromptPart> (*layout)(const ChatKind& kind, std::span<const Message> messages, bool thinking);
};

std::span<const ChatKind> chat_kinds();
std::vector<std::string> chat_format_names();  // in this order

// Whether answers think: `wanted`, unless the format leaves no choice. Throws Error{usage} if it leaves none
// and somebody `is_asking` for the other.
bool thinks(const ChatKind& kind, bool wanted, bool is_asking = false);

struct FoundChatKind {
  const ChatKind& kind;
  const char* reason;  // "the file's template writes <｜Assistant｜></think>"
};

// By the rule above. It does not say that the vocabulary has all marks of the format.
FoundChatKind find_chat_kind(const Tokenizer& tokenizer);

}  // namespace dsv32
