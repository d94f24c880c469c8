// See chat_kind.h.
#include "text/chat_kind.h"

#include "base/error.h"
#include "text/marks.h"

namespace dsv32 {
namespace {

constexpr ChatTraits kChatTraits[] = {
    {"v3", ChatTraits::Thinking::never, "", ChatTraits::Dropped::nothing, false},
    {"v3.1", ChatTraits::Thinking::optional, "", ChatTraits::Dropped::to_first, false},
    {"r1", ChatTraits::Thinking::always, "\n", ChatTraits::Dropped::to_last, false},
    {"v3.2", ChatTraits::Thinking::optional, "", ChatTraits::Dropped::nothing, true},
};

}  // namespace

const ChatTraits& traits_of(ChatKind kind) { return kChatTraits[static_cast<size_t>(kind)]; }

bool thinks(ChatKind kind, bool wanted, bool is_asking) {
  const ChatTraits& traits = traits_of(kind);
  if (traits.thinking == ChatTraits::Thinking::optional) return wanted;
  const bool always = traits.thinking == ChatTraits::Thinking::always;
  if (is_asking && wanted != always)
    fail(ErrorKind::usage,
         format("the chat format %s %s", traits.name, always ? "always thinks" : "has no thinking"),
         always ? "a limit of thinking (--think-max N) ends it early"
                : "without --think this model answers at once");
  return always;
}

std::vector<std::string> chat_format_names() {
  std::vector<std::string> names;
  for (const ChatTraits& traits : kChatTraits) names.emplace_back(traits.name);
  return names;
}

FoundChatKind find_chat_kind(const Tokenizer& tokenizer) {
  const std::string_view shown = tokenizer.chat_template();
  const auto names = [&](std::string_view mark) { return shown.find(mark) != shown.npos; };
  if (!tokenizer.find(marks::kThink) && !tokenizer.find(marks::kEndThink))
    return {ChatKind::v3, "the vocabulary has no <think>"};
  if (tokenizer.find(marks::kDsml)) return {ChatKind::v3_2, "the vocabulary has ｜DSML｜"};
  if (names(marks::kDsml)) return {ChatKind::v3_2, "the file's template names ｜DSML｜"};
  if (shown.empty()) return {ChatKind::v3_2, "the file has no template"};
  if (!names(marks::kAssistant)) return {ChatKind::v3_2, "the file's template does not name <｜Assistant｜>"};
  if (names(std::string(marks::kAssistant).append(marks::kEndThink)))
    return {ChatKind::v3_1, "the file's template writes <｜Assistant｜></think>"};
  if (names(marks::kEndThink)) return {ChatKind::r1, "the file's template names </think>"};
  return {ChatKind::v3, "the file's template does not name </think>"};
}

}  // namespace dsv32
