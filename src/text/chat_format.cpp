// The layout of a conversation, as ids and as text.
//
// layout() is the format; encode() turns its items into ids and render() into text, so the text shown is what
// the model reads.
#include "text/chat_format.h"

#include "base/error.h"
#include "text/dsml.h"
#include "text/marks.h"

namespace dsv32 {
namespace {

int32_t required_mark(const Tokenizer& tokenizer, ChatKind kind, std::string_view name) {
  const std::optional<int32_t> id = tokenizer.find(name);
  if (!id)
    fail(ErrorKind::model, format("the model's vocabulary has no token %s", std::string(name).c_str()),
         format("the chat format %s needs it; a prompt can still be given raw", traits_of(kind).name));
  return *id;
}

// The index of the last user message, or -1.
ptrdiff_t last_user(std::span<const Message> messages) {
  ptrdiff_t last = std::ssize(messages) - 1;
  while (last >= 0 && messages[static_cast<size_t>(last)].role != Message::Role::user) --last;
  return last;
}

}  // namespace

std::vector<Message> with_tools(std::vector<Message> messages, std::string tools) {
  if (messages.empty() || messages[0].role != Message::Role::system)
    messages.insert(messages.begin(), {Message::Role::system, "", ""});
  messages[0].tools = std::move(tools);
  return messages;
}

ChatFormat::ChatFormat(const Tokenizer& tokenizer, std::optional<ChatKind> named)
    : tokenizer_(tokenizer),
      kind_(named ? *named : find_chat_kind(tokenizer).kind),
      user_(required_mark(tokenizer, kind_, marks::kUser)),
      assistant_(required_mark(tokenizer, kind_, marks::kAssistant)) {
  if (traits_of(kind_).thinking == ChatTraits::Thinking::never) return;
  think_ = required_mark(tokenizer, kind_, marks::kThink);
  end_think_ = required_mark(tokenizer, kind_, marks::kEndThink);
}

std::vector<ChatFormat::Item> ChatFormat::layout(std::span<const Message> messages, bool thinking) const {
  if (kind_ != ChatKind::v3_2) return layout_earlier(messages, thinks(kind_, thinking));
  std::vector<Item> items{{tokenizer_.bos_id()}};
  // Texts with no mark between them, as of two system messages in a row, are encoded as one.
  const auto add_text = [&](const std::string& text) {
    if (items.back().mark != kText) items.push_back({kText});
    items.back().text += text;
  };
  const auto add_dsml = [&](ptrdiff_t i, bool thinks) {
    for (const PromptPart& part : dsml_parts(messages, static_cast<size_t>(i), thinks)) {
      const std::optional<int32_t> mark = part.is_mark ? tokenizer_.find(part.text) : std::nullopt;
      mark ? items.push_back({*mark}) : add_text(part.text);
    }
  };
  const ptrdiff_t last = last_user(messages);
  for (ptrdiff_t i = 0; i < std::ssize(messages); ++i) {
    const Message& message = messages[static_cast<size_t>(i)];
    if (message.role == Message::Role::user) items.push_back({user_});
    if (message.role == Message::Role::assistant && thinking && i > last) {
      add_text(message.reasoning);
      items.push_back({end_think_});
    }
    if (message.role != Message::Role::tool) add_text(message.content);
    add_dsml(i, thinking && i > last);
    if (message.role == Message::Role::user)
      items.insert(items.end(), {{assistant_}, {thinking && i == last ? think_ : end_think_}});
    if (message.role == Message::Role::assistant) items.push_back({tokenizer_.eos_id()});
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
