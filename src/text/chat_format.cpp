// layout() makes items of the format's parts; encode() turns these into ids and render() into text, so the
// text shown is what the model reads.
#include "text/chat_format.h"

#include "base/error.h"

namespace dsv32 {

std::vector<Message> with_tools(std::vector<Message> messages, std::string tools) {
  if (messages.empty() || messages[0].role != Message::Role::system)
    messages.insert(messages.begin(), {Message::Role::system, "", ""});
  messages[0].tools = std::move(tools);
  return messages;
}

ChatFormat::ChatFormat(const Tokenizer& tokenizer, const ChatKind* named)
    : tokenizer_(tokenizer), kind_(named ? *named : find_chat_kind(tokenizer).kind) {
  for (const std::string_view name : kind_.marks)
    if (!tokenizer.find(name))
      fail(ErrorKind::model, format("the model's vocabulary has no token %s", std::string(name).c_str()),
           format("the chat format %s needs it; a prompt can still be given raw", kind_.name));
}

// The part's token; kText: it is text.
int32_t ChatFormat::id_of(const PromptPart& part) const {
  switch (part.kind) {
    case PromptPart::Kind::text: return kText;
    case PromptPart::Kind::mark: return tokenizer_.find(part.text).value_or(kText);
    case PromptPart::Kind::begin: return tokenizer_.bos_id();
    case PromptPart::Kind::end: return tokenizer_.eos_id();
  }
  fail(ErrorKind::internal, "a part of a prompt that is of no kind");
}

std::vector<ChatFormat::Item> ChatFormat::layout(std::span<const Message> messages, bool thinking) const {
  for (const Message& message : messages)
    if (!kind_.has_tools &&
        (message.role == Message::Role::tool || !message.calls.empty() || !message.tools.empty()))
      fail(ErrorKind::usage, format("the chat format %s has no tools here", kind_.name));
  std::vector<Item> items;
  for (const PromptPart& part : kind_.layout(kind_, messages, thinks(kind_, thinking))) {
    const int32_t mark = id_of(part);
    if (mark != kText || items.empty() || items.back().mark != kText) items.push_back({mark});
    if (mark == kText) items.back().text += part.text;
  }
  return items;
}

std::vector<int32_t> ChatFormat::encode(std::span<const Message> messages, bool thinking,
                                        size_t n_most) const {
  std::vector<int32_t> ids;
  for (const Item& item : layout(messages, thinking)) {
    if (ids.size() > n_most) break;
    if (item.mark != kText) {
      ids.push_back(item.mark);
      continue;
    }
    const std::vector<int32_t> text = tokenizer_.encode(item.text, false, n_most - ids.size());
    ids.insert(ids.end(), text.begin(), text.end());
  }
  return ids;
}

std::string ChatFormat::render(std::span<const Message> messages, bool thinking) const {
  std::string shown;
  for (const Item& item : layout(messages, thinking))
    shown += item.mark == kText ? std::string_view(item.text) : tokenizer_.piece(item.mark);
  return shown;
}

}  // namespace dsv32
