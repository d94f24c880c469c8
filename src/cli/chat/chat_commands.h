// What can be typed in a chat beside messages: the one table of names, their help, and what Tab makes of
// them.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "cli/terminal/line_editor.h"

namespace dsv32 {

enum class ChatAction {
  help,
  file,
  edit,
  system,
  set,
  think,
  think_off,
  retry,
  undo,
  copy,
  tokens,
  stats,
  save,
  talks,
  clear,
  leave
};

struct ChatCommand {
  ChatAction action;
  const char* names;  // with spaces between them
  const char* argument;
  const char* text;
  bool is_harmless;  // it may be guessed from a slip of the fingers: it deletes nothing and leaves nothing
};

std::span<const ChatCommand> chat_commands();
std::string chat_help();

// Null for a name, with its slash, that there is not.
const ChatCommand* find_chat_command(const std::string& name);

// A harmless one that was probably meant; empty when none is near.
std::string nearest_chat_command(const std::string& name);

// What /set takes: names of flags.
std::vector<std::string> chat_settings();

// Commands, what they take, paths, and @paths in a message.
LineEditor::Completion complete_chat_line(std::string_view before);

}  // namespace dsv32
