// A conversation as the model was trained to read it: its chat format's prompt, as ids and as text.
//
// The chat format (chat_kind.h) lays the conversation out in texts and marks. Marks are token ids; messages
// are encoded with special tokens off, each text between two marks on its own. In V3.2's format the prompts
// of two successive turns in thinking mode share a prefix up to the <｜Assistant｜> of the earlier turn.
// Tools, calls and their results: dsml.h. Immutable; threads may share it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "text/chat_kind.h"
#include "text/message.h"
#include "text/tokenizer.h"

namespace dsv32 {

// Gives `tools` to the system message at the beginning; if there is none, an empty one is put there.
std::vector<Message> with_tools(std::vector<Message> messages, std::string tools);

class ChatFormat {
 public:
  // The format of the model's file, or the `named` one. `tokenizer` must outlive the object. Throws
  // Error{model} naming the special token that its vocabulary lacks.
  explicit ChatFormat(const Tokenizer& tokenizer, const ChatKind* named = nullptr);

  const ChatKind& kind() const { return kind_; }

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
  int32_t id_of(const PromptPart& part) const;
  std::vector<Item> layout(std::span<const Message> messages, bool thinking) const;

  const Tokenizer& tokenizer_;
  const ChatKind& kind_;
};

}  // namespace dsv32
