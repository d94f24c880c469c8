// A conversation as the model was trained to read it: the prompt format of DeepSeek-V3.2 (encoding_dsv32.py).
// The formats of other models are in chat_kind.h.
//
//   <BOS>{system}<｜User｜>{q1}<｜Assistant｜></think>{a1}<EOS><｜User｜>{q2}<｜Assistant｜><think>
//
// The mark after <｜Assistant｜> is <think> for the last user turn in thinking mode and </think> everywhere
// else: the reasoning of earlier turns is dropped. So in thinking mode the prompts of two successive turns
// share a prefix up to the <｜Assistant｜> of the earlier turn. Tools, calls and their results: dsml.h. A
// turn lasts from a user message to the next, so between its calls the reasoning stays. Marks are token ids;
// messages are encoded with special tokens off, each text between two marks on its own. Immutable; threads
// may share it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "text/chat_kind.h"
#include "text/tokenizer.h"

namespace dsv32 {

// A call that an assistant makes.
struct ToolCall {
  std::string name;
  std::string arguments;  // a JSON object
  std::string id = {};
};

struct Message {
  // OpenAI's role `developer` is `system` here. (DeepSeek's own code has a `developer` of another meaning,
  // for its search: a user's message with tools.)
  enum class Role { system, user, assistant, tool };
  Role role;
  std::string content;               // a tool's: the result
  std::string reasoning;             // of an assistant; used only if no user message follows
  std::vector<ToolCall> calls = {};  // of an assistant
  // How the model wrote its calls, with all that stands between content and the end (CallParser gives it);
  // empty: as the format writes them.
  std::string calls_text = {};
  std::string tools = {};  // of the system message: a JSON array of OpenAI's form
};

// Gives `tools` to the system message at the beginning; if there is none, an empty one is put there.
std::vector<Message> with_tools(std::vector<Message> messages, std::string tools);

class ChatFormat {
 public:
  // The format of the model's file, or the `named` one. `tokenizer` must outlive the object. Throws
  // Error{model} naming the special token that its vocabulary lacks.
  explicit ChatFormat(const Tokenizer& tokenizer, std::optional<ChatKind> named = {});

  ChatKind kind() const { return kind_; }
  bool has_tools() const { return traits_of(kind_).has_tools; }

  // The prompt for `messages`, with thinks(kind(), thinking). An assistant message after the last user
  // message is a finished turn: in thinking mode it is {reasoning}</think>{content}<EOS> in V3.2's format;
  // others drop all reasoning. Throws Error{usage} for tools in a format without them, and for tools, calls
  // or results that cannot be written (dsml.h).
  // `n_most`: as for Tokenizer::encode().
  std::vector<int32_t> encode(std::span<const Message> messages, bool thinking,
                              size_t n_most = SIZE_MAX) const;

  // The same prompt as text, with the names of marks.
  std::string render(std::span<const Message> messages, bool thinking) const;

 private:
  static constexpr int32_t kText = -1;
  struct Item {
    int32_t mark;           // a special token, or kText
    std::string text = {};  // only for kText
  };
  std::vector<Item> layout(std::span<const Message> messages, bool thinking) const;
  // chat_format_earlier.cpp
  std::vector<Item> layout_earlier(std::span<const Message> messages, bool thinking) const;
  void begin_answer(std::vector<Item>& items, bool thinking) const;

  const Tokenizer& tokenizer_;
  ChatKind kind_;
  int32_t user_, assistant_;
  int32_t think_ = -1, end_think_ = -1;  // of formats that think
};

}  // namespace dsv32
