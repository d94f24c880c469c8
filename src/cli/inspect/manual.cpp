// See manual.h.
#include "cli/inspect/manual.h"

#include "base/text.h"
#include "cli/chat/chat.h"
#include "cli/options/commands.h"
#include "cli/options/flags.h"

namespace dsv32 {
namespace {

struct Entry {
  const char *name, *text;
};

constexpr Entry kEnvironment[] = {
    {"DSV32_MODEL", "The model, where -m names none."},
    {"DSV32_MODELS", "A folder of models, beside models/ and the one of data."},
    {"XDG_CONFIG_HOME, XDG_DATA_HOME, XDG_STATE_HOME, XDG_CACHE_HOME",
     "Where settings, models, talks and prefixes are; ~/.config, ~/.local/share, ~/.local/state and ~/.cache "
     "where they are not set."},
    {"XDG_RUNTIME_DIR", "Where warm processes are found; that of XDG_STATE_HOME where it is not set."},
    {"VISUAL, EDITOR", "What /edit opens in a chat; vi where neither is set."},
    {"NO_COLOR, TERM",
     "No colour where NO_COLOR is set, and no escape sequences where TERM is dumb or unknown."},
};

constexpr Entry kFiles[] = {
    {"$XDG_CONFIG_HOME/dsv32/config", "Settings."},
    {"models/, $DSV32_MODELS, $XDG_DATA_HOME/dsv32/models", "Where -m NAME looks."},
    {"$XDG_CACHE_HOME/dsv32", "Prefixes of earlier prompts, and what is known of models' bytes."},
    {"$XDG_STATE_HOME/dsv32/talks", "Talks."},
    {"$XDG_STATE_HOME/dsv32/history", "Lines typed in chats."},
    {"$XDG_RUNTIME_DIR/dsv32", "Sockets and logs of warm processes."},
};

// Hyphens that are typed, and no line that looks like a request.
std::string roff(std::string text) {
  text = replaced(replaced(text, "\\", "\\e"), "-", "\\-");
  return text.starts_with('.') || text.starts_with('\'') ? "\\&" + text : text;
}

std::string paragraph(const std::string& name, const std::string& argument, const std::string& text) {
  return ".TP\n\\fB" + roff(name) + "\\fR" + (argument.empty() ? "" : " \\fI" + roff(argument) + "\\fR") +
         "\n" + roff(text) + "\n";
}

std::string section_of(const char* heading, std::span<const Entry> entries) {
  std::string text = format(".SH %s\n", heading);
  for (const Entry& entry : entries) text += paragraph(entry.name, "", entry.text);
  return text;
}

// A flag is described once, with the commands that take it so.
std::string flag_section() {
  std::string text = ".SH FLAGS\n";
  for (const Flag& flag : flags()) {
    std::vector<std::string> names, takers;
    for (const std::string& name : flag.spellings()) names.push_back((name.size() > 1 ? "--" : "-") + name);
    for (const CommandRow& row : commands())
      if (flag.is_of(row.command)) takers.push_back(row.name());
    text += paragraph(joined(names, ", "), flag.value ? flag.value : "", flag.help() + ".");
    text += ".br\n" + (takers.size() > commands().size() / 2 ? "most commands" : roff(joined(takers, ", "))) +
            "\n";
  }
  return text;
}

std::string chat_section() {
  std::string text = ".SH IN A CHAT\n";
  for (const Conversation::ChatCommand& command : Conversation::commands())
    text += paragraph(replaced(command.names, " ", ", "), command.argument, command.text);
  return text;
}

std::string example_section() {
  std::string text = ".SH EXAMPLES\n";
  for (const Example& example : examples()) text += paragraph(example.command, "", example.text);
  return text;
}

}  // namespace

std::string manual_page() {
  std::string text = ".TH DSV32 1\n.SH NAME\ndsv32 \\- runs DeepSeek\\-V3.2 from a GGUF file\n.SH SYNOPSIS\n";
  text += ".B dsv32\n\\fICOMMAND\\fR [\\fIFLAGS\\fR] [\\fIWORDS\\fR]\n.SH COMMANDS\n";
  for (const CommandRow& row : commands()) text += paragraph(row.name(), row.usage, row.about);
  text += flag_section() + chat_section();
  text +=
      ".SH SETTINGS\n$XDG_CONFIG_HOME/dsv32/config, else ~/.config/dsv32/config, has lines\n.RS\n.nf\nflag = "
      "value\n.fi\n"
      ".RE\nfor all commands, and behind a line [\\fICOMMAND\\fR] for one. The command line wins.\n";
  text += ".SH EXIT STATUS\n" + roff(exit_codes());
  text += section_of("ENVIRONMENT", kEnvironment) + section_of("FILES", kFiles);
  return text + example_section();
}

}  // namespace dsv32
