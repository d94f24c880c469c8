// The layout of a conversation in the formats before V3.2's.
//
// The text of all system messages comes first. Between a question and its answer stands the mark of an
// answer without thinking, after the last question that of the answer that is asked for.
#include <string>
#include <utility>

#include "base/error.h"
#include "text/chat_format.h"
#include "text/marks.h"

namespace dsv32 {
namespace {

std::string joined_system(std::span<const Message> messages) {
  std::string text;
  bool is_first = true;
  for (const Message& message : messages) {
    if (message.role != Message::Role::system) continue;
    text += (std::exchange(is_first, false) ? "" : "\n\n") + message.content;
  }
  return text;
}

std::string without_thinking(const std::string& content, ChatTraits::Dropped dropped) {
  if (dropped == ChatTraits::Dropped::nothing) return content;
  const size_t at = dropped == ChatTraits::Dropped::to_first ? content.find(marks::kEndThink)
                                                             : content.rfind(marks::kEndThink);
  return at == content.npos ? content : content.substr(at + marks::kEndThink.size());
}

}  // namespace

void ChatFormat::begin_answer(std::vector<Item>& items, bool thinking) const {
  items.push_back({assistant_});
  if (thinking)
    items.insert(items.end(), {{think_}, {kText, traits_of(kind_).after_think}});
  else if (traits_of(kind_).thinking == ChatTraits::Thinking::optional)
    items.push_back({end_think_});
}

std::vector<ChatFormat::Item> ChatFormat::layout_earlier(std::span<const Message> messages,
                                                         bool thinking) const {
  std::vector<Item> items{{tokenizer_.bos_id()}, {kText, joined_system(messages)}};
  bool is_asked = false;
  for (const Message& message : messages) {
    if (message.role == Message::Role::tool || !message.calls.empty() || !message.tools.empty())
      fail(ErrorKind::usage, format("the chat format %s has no tools here", traits_of(kind_).name));
    if (message.role == Message::Role::system) continue;
    is_asked = message.role == Message::Role::user;
    if (is_asked) {
      items.insert(items.end(), {{user_}, {kText, message.content}});
    } else {
      begin_answer(items, false);
      const std::string content = without_thinking(message.content, traits_of(kind_).dropped);
      items.insert(items.end(), {{kText, content}, {tokenizer_.eos_id()}});
    }
  }
  if (is_asked) begin_answer(items, thinking);
  return items;
}

}  // namespace dsv32
