// See prompt.h. Every text is read before the model is opened, so that a missing file is told at once.
//
// The limit is on the sum of the parts.
#include "cli/options/prompt.h"

#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "cli/options/commands.h"
#include "cli/options/flags.h"
#include "cli/terminal/streams.h"
#include "text/chat_format.h"

namespace dsv32 {
namespace {

constexpr size_t kMaxTextBytes = size_t{64} << 20;

void append_part(std::string& text, const std::string& part) {
  if (part.empty()) return;
  if (!text.empty() && text.back() != '\n') text += '\n';
  text += part;
  if (text.size() > kMaxTextBytes)
    fail(ErrorKind::usage, format("the prompt's parts are longer than %zu bytes together", kMaxTextBytes));
}

bool names_stdin(const Options& options) {
  return options.prompt == "-" || options.words == std::vector<std::string>{"-"} ||
         options.system_file == "-" || std::ranges::count(options.files, "-") > 0;
}

}  // namespace

std::string read_input(const std::string& path, const Options& options) {
  const bool is_told = path == "-" && !options.quiet;
  const bool can_leave = find_flag(flags_of(options.command), "no-stdin") != nullptr;
  const std::string line =
      std::string("reading standard input to its end") + (can_leave ? "; --no-stdin leaves it alone" : "");
  return read_text(path, kMaxTextBytes, is_told ? [&] { say(line); } : std::function<void()>());
}

std::string read_system(const Options& options) {
  return options.system_file.empty() ? options.system_text : read_input(options.system_file, options);
}

PromptText read_prompt(const Options& options, bool is_in_terminal) {
  PromptText text;
  text.system = read_system(options);
  if (!is_in_terminal && !options.leaves_stdin && !names_stdin(options))
    append_part(text.user, read_input("-", options));
  for (const std::string& path : options.files) append_part(text.user, read_input(path, options));
  const std::string last = options.prompt.value_or(joined(options.words));
  append_part(text.user, last == "-" ? read_input("-", options) : last);
  if (text.user.empty())
    fail(ErrorKind::usage,
         format("there is no prompt, expected one as words, with -p, with -f or on standard input, "
                "see dsv32 %s --help",
                row_of(options.command).name().c_str()));
  return text;
}

Prompt make_prompt(const Tokenizer& tokenizer, const PromptText& text, bool is_raw, bool thinking) {
  const std::string bos(tokenizer.piece(tokenizer.bos_id()));
  const bool begins_with_bos = text.user.starts_with(bos);
  Prompt prompt;
  prompt.is_raw = is_raw || begins_with_bos;
  if (!prompt.is_raw) {
    std::vector<Message> messages;
    if (!text.system.empty()) messages.push_back({Message::Role::system, text.system, {}});
    messages.push_back({Message::Role::user, text.user, {}});
    const ChatFormat chat(tokenizer);
    prompt.thinking = thinking;
    prompt.ids = chat.encode(messages, thinking);
    prompt.rendered = chat.render(messages, thinking);
    return prompt;
  }
  if (!text.system.empty())
    fail(ErrorKind::usage,
         format("the prompt begins with %s and is taken as rendered already, a system prompt "
                "cannot be added to it",
                visible(bos).c_str()));
  prompt.ids = tokenizer.encode(text.user, true);
  if (prompt.ids.empty() || prompt.ids[0] != tokenizer.bos_id())
    prompt.ids.insert(prompt.ids.begin(), tokenizer.bos_id());
  prompt.rendered = (begins_with_bos ? "" : bos) + text.user;
  prompt.thinking = tokenizer.find("<think>") == prompt.ids.back();
  return prompt;
}

}  // namespace dsv32
