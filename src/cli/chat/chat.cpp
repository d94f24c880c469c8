// See chat.h. Before the first prompt: the talk is found, the model opened, and both told of.
#include "cli/chat/chat.h"

#include "base/error.h"
#include "base/text.h"
#include "cli/chat/conversation.h"
#include "cli/chat/talk.h"
#include "cli/options/prompt.h"
#include "cli/terminal/streams.h"
#include "cli/terminal/terminal.h"
#include "cli/warm/model.h"
#include "text/chat_format.h"

namespace dsv32 {
namespace {

// What a resumed talk shares with its next prompt, whatever the message will be.
std::vector<int32_t> known_prompt(const Talk& talk, const Tokenizer& tokenizer) {
  std::vector<Message> messages = talk.saved.messages;
  if (talk.has_unanswered()) messages.pop_back();
  messages.push_back({Message::Role::user, {}, {}});
  return ChatFormat(tokenizer).encode(messages, talk.saved.thinking);
}

void report_talk(const Talk& talk, const std::string& model) {
  constexpr size_t kShownChars = 160;
  if (talk.name().empty()) return;
  if (!talk.is_resumed()) return say(format("talk %s begins", talk.name().c_str()));
  const std::vector<Message>& messages = talk.saved.messages;
  say(format("talk %s resumed: %s", talk.name().c_str(), talk_summary(talk.saved).c_str()));
  if (talk.saved.model != model)
    say(format("note: the talk was held with %s", visible(talk.saved.model, false, 80).c_str()));
  const bool is_unanswered = talk.has_unanswered();
  if (messages.size() == talk.has_system()) return;
  const auto question = messages.end() - (is_unanswered ? 1 : 2);
  say("  you: " + visible(question->content, false, kShownChars));
  say(is_unanswered ? "  no answer yet: /retry asks for it"
                    : "  answer: " + visible(messages.back().content, false, kShownChars));
}

}  // namespace

int chat_command(const Options& options) {
  const Terminal terminal = examine_terminal(options.color);
  if (!terminal.is_out)
    fail(ErrorKind::usage, "chat needs a terminal on standard output",
         "dsv32 run answers a prompt in a pipe");
  Talk talk(options, read_system(options));
  Model model(options, [&](PrefixCache& prefixes, const Tokenizer& tokenizer) {
    prefixes.prefetch(known_prompt(talk, tokenizer), talk.saved.decoded);
  });
  const std::string name = model_name(model.path());
  if (!options.quiet) {
    say(format("%s, context %s tokens, /help lists commands", name.c_str(),
               with_thousands(model.facts().context).c_str()));
    report_talk(talk, name);
  }
  return Conversation(options, terminal, model, std::move(talk)).run();
}

}  // namespace dsv32
