// See prompt.h. Every text is read before the model is opened, so that a missing file is told at once.
//
// The limit is on the sum of the parts.
#include "cli/prompt.h"

#include <algorithm>

#include <poll.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/streams.h"
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

std::string join_words(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

// Whoever waits at a terminal and has typed nothing hears what for.
void wait_for_stdin(bool is_quiet) {
  constexpr int kPatienceMs = 500;
  pollfd input{STDIN_FILENO, POLLIN, 0};
  if (poll(&input, 1, kPatienceMs) == 0 && !is_quiet && is_terminal(STDERR_FILENO))
    write_err("reading standard input\n");
}

std::string read_bounded(const std::string& path, const Options& options) {
  if (path == "-") wait_for_stdin(options.quiet);
  return read_text(path, kMaxTextBytes);
}

bool names_stdin(const Options& options) {
  return options.prompt == "-" || options.words == std::vector<std::string>{"-"} ||
         options.system_file == "-" || std::ranges::count(options.files, "-") > 0;
}

}  // namespace

std::string read_system(const Options& options) {
  return options.system_file.empty() ? options.system_text : read_bounded(options.system_file, options);
}

PromptText read_prompt(const Options& options, bool is_in_terminal) {
  PromptText text;
  text.system = read_system(options);
  if (!is_in_terminal && !options.leaves_stdin && !names_stdin(options))
    append_part(text.user, read_bounded("-", options));
  for (const std::string& path : options.files) append_part(text.user, read_bounded(path, options));
  const std::string last = options.prompt.value_or(join_words(options.words));
  append_part(text.user, last == "-" ? read_bounded("-", options) : last);
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
