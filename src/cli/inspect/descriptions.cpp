// `dsv32 completion`: the tables of commands and flags, written for a shell and for man.
//
// The shells' scripts are lists: they complete commands, and the flags of each.

#include "base/error.h"
#include "base/text.h"
#include "cli/chat/chat.h"
#include "cli/inspect/inspect.h"
#include "cli/options/flags.h"
#include "cli/terminal/streams.h"

namespace dsv32 {
namespace {

using Words = std::vector<std::string>;

// The long names of a command's flags.
std::string flag_words(Command command) {
  Words words;
  for (const Flag* flag : flags_of(command))
    for (const std::string& name : flag->spellings())
      if (name.size() > 1) words.push_back("--" + name);
  return joined(words);
}

// Sets `list` to what may stand in place of a word, in the language of bash and zsh.
std::string lists() {
  std::string flags, seconds;
  for (const CommandRow& row : commands())
    flags += format("      '%s '*) list='%s' ;;\n", row.name().c_str(), flag_words(row.command).c_str());
  for (const std::string& first : words_behind(""))
    if (const Words words = words_behind(first); !words.empty())
      seconds += format("      %s) list='%s' ;;\n", first.c_str(), joined(words).c_str());
  return "  if [[ $word == -* ]]; then\n    case \"$first $second \" in\n" + flags +
         "    esac\n  elif ((nth == 1)); then\n    list='" + joined(words_behind("")) +
         "'\n  elif ((nth == 2)); then\n    case $first in\n" + seconds + "    esac\n  fi\n";
}

std::string bash_script() {
  return "# What bash completes for dsv32, made by: dsv32 completion bash\n_dsv32() {\n"
         "  local nth=$COMP_CWORD word=${COMP_WORDS[COMP_CWORD]} first=${COMP_WORDS[1]} "
         "second=${COMP_WORDS[2]} list=\n" +
         lists() +
         "  mapfile -t COMPREPLY < <(compgen -W \"$list\" -- \"$word\")\n}\n"
         "complete -o default -F _dsv32 dsv32\n";
}

std::string zsh_script() {
  return "#compdef dsv32\n# Made by: dsv32 completion zsh\n_dsv32() {\n"
         "  local nth=$((CURRENT - 1)) word=$PREFIX first=$words[2] second=$words[3] list=\n" +
         lists() +
         "  if [[ -n $list ]]; then compadd -- ${=list}; else _files; fi\n}\n"
         "if [[ $funcstack[1] == _dsv32 ]]; then _dsv32; else compdef _dsv32 dsv32; fi\n";
}

std::string fish_script() {
  const auto offered = [](const std::string& typed, const char* files, const std::string& words) {
    return "complete -c dsv32 -n 'string match -q \"dsv32" + typed +
           "\" (commandline -opc | string join \" \")' " + files + "-a '" + words + "'\n";
  };
  std::string text = "# What fish completes for dsv32, made by: dsv32 completion fish\n";
  text += offered("", "-f ", joined(words_behind("")));
  for (const std::string& first : words_behind(""))
    if (const Words words = words_behind(first); !words.empty())
      text += offered(" " + first, "-f ", joined(words));
  for (const CommandRow& row : commands())
    text += offered(" " + row.name() + "*", "", flag_words(row.command));
  return text;
}

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
    {"$XDG_CACHE_HOME/dsv32", "Prefixes of earlier prompts, and the recorded digests of model files."},
    {"$XDG_STATE_HOME/dsv32/talks", "Talks."},
    {"$XDG_STATE_HOME/dsv32/history", "Lines typed in chats."},
    {"$XDG_RUNTIME_DIR/dsv32", "Sockets and logs of warm processes."},
};

// Escapes a text for roff: hyphens stay as typed, and no line looks like a request.
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

// Describes each row of the table once, with the commands that take it.
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

}  // namespace

std::string completion_script(const std::string& shell) {
  return shell == "bash" ? bash_script() : shell == "zsh" ? zsh_script() : fish_script();
}

int completion_command(const Options& options) {
  const std::string what = joined(options.words);
  if (what != "man" && what != "bash" && what != "zsh" && what != "fish")
    fail(ErrorKind::usage,
         format("completion takes bash, zsh, fish or man, not '%s'", visible(what, false, 40).c_str()));
  write_out(what == "man" ? manual_page() : completion_script(what));
  return 0;
}

std::string manual_page() {
  std::string text = ".TH DSV32 1\n.SH NAME\ndsv32 \\- runs DeepSeek\\-V3.2 from a GGUF file\n.SH SYNOPSIS\n";
  text += ".B dsv32\n\\fICOMMAND\\fR [\\fIFLAGS\\fR] [\\fIWORDS\\fR]\n.SH COMMANDS\n";
  for (const CommandRow& row : commands()) text += paragraph(row.name(), row.usage, row.about);
  text += flag_section() + chat_section();
  text +=
      ".SH SETTINGS\n$XDG_CONFIG_HOME/dsv32/config, else ~/.config/dsv32/config, has flags, one a line\n.RS\n"
      ".nf\n\\-\\-flag=value\n.fi\n.RE\nfor all commands that take them. The command line wins.\n";
  text +=
      ".SH GPUS\nWhat data sheets say of those that plans know by name.\n.nf\n" + roff(gpu_table()) + ".fi\n";
  text += ".SH EXIT STATUS\n" + roff(exit_codes());
  text += section_of("ENVIRONMENT", kEnvironment) + section_of("FILES", kFiles);
  return text + section_of("EXAMPLES", examples());
}

}  // namespace dsv32
