// The layouts of the formats, the table of formats, and the rule that finds one.
#include "text/chat_kind.h"

#include <utility>

#include "base/error.h"
#include "text/dsml.h"
#include "text/marks.h"

namespace dsv32 {
namespace {

using Part = PromptPart;
using Layout = std::vector<PromptPart>;
using Role = Message::Role;
using Thinking = ChatKind::Thinking;

Part mark(std::string_view name) { return {std::string(name), Part::Kind::mark}; }

// ---- V3.2 ----

// The mark after <｜Assistant｜> is <think> for the last user turn in thinking mode and </think> everywhere
// else: the reasoning of earlier turns is dropped. A turn lasts from a user message to the next, so between
// its calls the reasoning stays.
Layout layout_v3_2(const ChatKind&, std::span<const Message> messages, bool thinking) {
  size_t end = messages.size();  // of all up to the last user message
  while (end > 0 && messages[end - 1].role != Role::user) --end;
  Layout parts{{"", Part::Kind::begin}};
  for (size_t i = 0; i < messages.size(); ++i) {
    const Message& message = messages[i];
    const bool thinks = thinking && i >= end;
    if (message.role == Role::user) parts.push_back(mark(marks::kUser));
    if (message.role == Role::assistant && thinks)
      parts.insert(parts.end(), {{message.reasoning}, mark(marks::kEndThink)});
    if (message.role != Role::tool) parts.push_back({message.content});
    for (Part& part : dsml_parts(messages, i, thinks)) parts.push_back(std::move(part));
    if (message.role == Role::user)
      parts.insert(parts.end(), {mark(marks::kAssistant),
                                 mark(thinking && i + 1 == end ? marks::kThink : marks::kEndThink)});
    if (message.role == Role::assistant) parts.push_back({"", Part::Kind::end});
  }
  return parts;
}

// ---- before V3.2: the text of all system messages comes first ----

Part joined_system(std::span<const Message> messages) {
  std::string text;
  bool is_first = true;
  for (const Message& message : messages) {
    if (message.role != Role::system) continue;
    text += (std::exchange(is_first, false) ? "" : "\n\n") + message.content;
  }
  return {text};
}

std::string without_thinking(const std::string& content, ChatKind::Dropped dropped) {
  if (dropped == ChatKind::Dropped::nothing) return content;
  const bool is_first = dropped == ChatKind::Dropped::to_first;
  const size_t at = is_first ? content.find(marks::kEndThink) : content.rfind(marks::kEndThink);
  return at == content.npos ? content : content.substr(at + marks::kEndThink.size());
}

// Between a question and its answer stands the mark of an answer without thinking, after the last question
// that of the answer that is asked for.
Layout layout_earlier(const ChatKind& kind, std::span<const Message> messages, bool thinking) {
  Layout parts{{"", Part::Kind::begin}, joined_system(messages)};
  const auto begin_answer = [&](bool with_thinking) {
    parts.push_back(mark(marks::kAssistant));
    if (with_thinking)
      parts.insert(parts.end(), {mark(marks::kThink), {kind.after_think}});
    else if (kind.thinking == Thinking::optional)
      parts.push_back(mark(marks::kEndThink));
  };
  bool is_asked = false;
  for (const Message& message : messages) {
    if (message.role == Role::system) continue;
    is_asked = message.role == Role::user;
    if (is_asked) {
      parts.insert(parts.end(), {mark(marks::kUser), {message.content}});
    } else {
      begin_answer(false);
      parts.insert(parts.end(), {{without_thinking(message.content, kind.dropped)}, {"", Part::Kind::end}});
    }
  }
  if (is_asked) begin_answer(thinking);
  return parts;
}

// ---- which there are ----

constexpr std::string_view kMarks[] = {marks::kUser, marks::kAssistant, marks::kThink, marks::kEndThink};
constexpr std::span<const std::string_view> kOfThinking = kMarks, kOfTalks = kOfThinking.first(2);

constexpr ChatKind kChatKinds[] = {
    {"v3", Thinking::never, "", ChatKind::Dropped::nothing, false, kOfTalks, layout_earlier},
    {"v3.1", Thinking::optional, "", ChatKind::Dropped::to_first, false, kOfThinking, layout_earlier},
    {"r1", Thinking::always, "\n", ChatKind::Dropped::to_last, false, kOfThinking, layout_earlier},
    {"v3.2", Thinking::optional, "", ChatKind::Dropped::nothing, true, kOfThinking, layout_v3_2},
};
constexpr const ChatKind &kV3 = kChatKinds[0], &kV3_1 = kChatKinds[1], &kR1 = kChatKinds[2],
                         &kV3_2 = kChatKinds[3];

}  // namespace

std::span<const ChatKind> chat_kinds() { return kChatKinds; }

std::vector<std::string> chat_format_names() {
  std::vector<std::string> names;
  for (const ChatKind& kind : kChatKinds) names.emplace_back(kind.name);
  return names;
}

bool thinks(const ChatKind& kind, bool wanted, bool is_asking) {
  if (kind.thinking == Thinking::optional) return wanted;
  const bool always = kind.thinking == Thinking::always;
  if (is_asking && wanted != always)
    fail(ErrorKind::usage,
         format("the chat format %s %s", kind.name, always ? "always thinks" : "has no thinking"),
         always ? "a limit of thinking (--think-max N) ends it early"
                : "without --think this model answers at once");
  return always;
}

FoundChatKind find_chat_kind(const Tokenizer& tokenizer) {
  const std::string_view shown = tokenizer.chat_template();
  const auto names = [&](std::string_view mark) { return shown.find(mark) != shown.npos; };
  if (!tokenizer.find(marks::kThink) && !tokenizer.find(marks::kEndThink))
    return {kV3, "the vocabulary has no <think>"};
  if (tokenizer.find(marks::kDsml)) return {kV3_2, "the vocabulary has ｜DSML｜"};
  if (names(marks::kDsml)) return {kV3_2, "the file's template names ｜DSML｜"};
  if (shown.empty()) return {kV3_2, "the file has no template"};
  if (!names(marks::kAssistant)) return {kV3_2, "the file's template does not name <｜Assistant｜>"};
  if (names(std::string(marks::kAssistant).append(marks::kEndThink)))
    return {kV3_1, "the file's template writes <｜Assistant｜></think>"};
  if (names(marks::kEndThink)) return {kR1, "the file's template names </think>"};
  return {kV3, "the file's template does not name </think>"};
}

}  // namespace dsv32
