// `dsv32 completion` and `dsv32 config`: the tables of commands and flags, written for a shell, for man, and
// for a person who asks which values hold.
//
// The shells' scripts ask `dsv32 completion next -- WORDS...` for the possible words in place of the last.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>

#include "base/error.h"
#include "base/text.h"
#include "cli/chat/chat.h"
#include "cli/chat/talk.h"
#include "cli/inspect/inspect.h"
#include "cli/options/flags.h"
#include "cli/options/inputs.h"
#include "cli/terminal/streams.h"
#include "cli/terminal/user_files.h"
#include "cli/warm/model.h"

namespace dsv32 {
namespace {

using Words = std::vector<std::string>;

// Possible words in the scripts' form: the first line is "files" where names of files are possible too, else
// "words"; each other line is a word and, behind a tab, its description.
struct Offers {
  std::string text = "words\n";

  void add(const std::string& word, const std::string& about = "") {
    text += word + (about.empty() ? "" : "\t" + about) + "\n";
  }
  void add(const Words& words) {
    for (const std::string& word : words) add(word);
  }
  void add_files() { text.replace(0, 5, "files"); }
};

// The flag's help up to the first bracket or semicolon.
std::string short_text(const Flag& flag) {
  const std::string text = flag.about;
  return text.substr(0, std::min(text.find("; "), text.find(" (")));
}

// The first words of commands, each once: "run" of "run", "inspect" of "inspect plan".
Words first_words() {
  Words words;
  for (const CommandRow& row : commands())
    if (const std::string word = split(row.name(), ' ')[0]; std::ranges::count(words, word) == 0)
      words.push_back(word);
  return words;
}

Words talk_names() {
  const std::string folder = user_folder(UserFolder::state) + "/talks";
  std::error_code error;
  return std::filesystem::exists(folder, error) ? TalkStore(folder).names() : Words{};
}

void add_values(Offers& offers, const Flag& flag) {
  const std::string name = flag.name(), value = flag.value;
  Options options;
  offers.add(name == "talk" ? talk_names() : name == "model" ? model_names() : flag.field(options).words);
  if (name == "model" || value == "FILE" || value == "DIR") offers.add_files();
}

// Adds the possible words that are no flags.
void add_words(Offers& offers, const CommandRow& row) {
  const std::string usage = row.usage;
  if (usage.find("NAME") != usage.npos)
    offers.add(talk_names());
  else if (usage.find("COMMAND") != usage.npos)
    offers.add(first_words());
  else if (usage.find('|') != usage.npos)
    offers.add(split(usage, '|'));
  else
    offers.add_files();
}

// The flag whose value is the last word. Bash splits words at "=". Null: the last word is no flag's value.
const Flag* flag_before(const Flags& flags, const Words& line) {
  const size_t n = line.size();
  const bool is_behind = line[n - 2] == "=" && n > 2;
  std::string word = line[n - (is_behind ? 3 : 2)];
  if (line.back().starts_with("--") && line.back().find('=') != std::string::npos)
    word = line.back().substr(0, line.back().find('='));
  if (!word.starts_with('-')) return nullptr;
  const Flag* flag = find_flag(flags, word.substr(word.starts_with("--") ? 2 : 1));
  return flag && flag->value ? flag : nullptr;
}

struct Script {
  std::string_view shell, text;
};

constexpr Script kScripts[] = {
    {"bash", R"(# What bash completes for dsv32, made by: dsv32 completion bash
_dsv32() {
  local word=${COMP_WORDS[COMP_CWORD]} kind words files=
  { read -r kind; words=$(cut -f 1); } < <(
    "${COMP_WORDS[0]}" completion next -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
  [[ $word == = ]] && word=
  [[ $kind == files ]] && files=-f && compopt -o filenames 2>/dev/null
  mapfile -t COMPREPLY < <(compgen $files -W "$words" -- "$word")
}
complete -o default -F _dsv32 dsv32
)"},
    {"zsh", R"(#compdef dsv32
# Made by: dsv32 completion zsh
_dsv32() {
  local -a offers
  offers=("${(@f)$($words[1] completion next -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
  if [[ $PREFIX == --*=* ]]; then compset -P '*='; fi
  if [[ $offers[1] == files ]]; then _files; fi
  shift offers
  offers=("${(@)offers/$'\t'/:}")
  _describe word offers
}
if [[ $funcstack[1] == _dsv32 ]]; then _dsv32; else compdef _dsv32 dsv32; fi
)"},
    {"fish", R"(# What fish completes for dsv32, made by: dsv32 completion fish
function __dsv32
  set -l word (commandline -ct)
  set -l name (string match -r -- '^--[^=]*=' "$word")
  set -l offers (dsv32 completion next -- (commandline -opc)[2..] "$word" 2>/dev/null)
  test "$offers[1]" = files; and set -a offers (__fish_complete_path (string replace -- "$name" '' "$word"))
  for offer in $offers[2..]
    echo "$name$offer"
  end
end
complete -c dsv32 -f -a '(__dsv32)'
)"},
};

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

std::string example_section() {
  std::string text = ".SH EXAMPLES\n";
  for (const Example& example : examples()) text += paragraph(example.command, "", example.text);
  return text;
}

std::string row(const std::string& name, const std::string& value, const std::string& from) {
  const std::string text =
      format("%-16s %-28s %s", name.c_str(), visible(value).c_str(), visible(from).c_str());
  return text.substr(0, text.find_last_not_of(' ') + 1) + "\n";
}

// The file that a command without -m opens, or why there is none.
std::string model_row(const std::string& set, const std::string& set_where) {
  Options none;
  none.engine.model_path = set;
  const char* variable = std::getenv("DSV32_MODEL");
  try {
    const std::string path = find_model(none);
    const char* from = !set.empty()             ? set_where.c_str()
                       : variable && *variable  ? "DSV32_MODEL"
                       : is_stopgap(none, path) ? "came with the program; no other model found"
                                                : "the only one there";
    return row("model", path, from);
  } catch (const Error& error) {
    return row("model", "-", error.what());
  }
}

// Opens that file for its recommended sampling values. Null without a file, or if the command never samples.
std::unique_ptr<GgufFile> open_model(Command command, const std::vector<GivenFlag>& settings) {
  if (!find_flag(flags_of(command), "temp")) return nullptr;
  Options none;
  for (const GivenFlag& setting : settings)
    if (setting.flag->name() == "model") none.engine.model_path = setting.value;
  try {
    return std::make_unique<GgufFile>(find_model(none));
  } catch (const Error&) {
    return nullptr;
  }
}

// The flag's value or values, and their sources.
std::string rows_of(const Flag& flag, const std::vector<GivenFlag>& settings, const GgufFile* model) {
  std::string rows, value, where;
  for (const GivenFlag& setting : settings) {
    if (setting.flag != &flag) continue;
    value = setting.value, where = setting.where;
    rows += row(flag.name(), flag.value ? value : "on", where);
  }
  if (flag.name() == "model") return model_row(value, where);
  if (!rows.empty()) return rows;
  if (flag.name() == "cache-dir") return row("cache-dir", cache_directory({}), "default");
  Options advised;
  if (model && flag.option && take_recommended(*model, *flag.option, advised.generation))
    return row(flag.name(), flag.text_in(advised), model->path());
  const std::string standard = flag.default_text();
  return row(flag.name(), !standard.empty() ? standard : flag.value ? "-" : "off", "default");
}

}  // namespace

std::string offers_for(const std::vector<std::string>& line) {
  Offers offers;
  if (line.size() < 2) {
    offers.add(first_words());
    return offers.text;
  }
  const bool is_flag = line.back().starts_with('-');
  const CommandRow* command = nullptr;
  for (const CommandRow& row : commands()) {
    const Words name = split(row.name(), ' ');
    if (name[0] != line[0]) continue;
    if (name.size() == 2 && line.size() == 2 && !is_flag) offers.add(name[1], row.about);
    if (name.size() == 1 ? !command : line.size() > 2 && name[1] == line[1]) command = &row;
  }
  if (!command || offers.text != Offers().text) return offers.text;
  const Flags flags = flags_of(command->command);
  if (const Flag* flag = flag_before(flags, line)) {
    add_values(offers, *flag);
  } else if (is_flag) {
    for (const Flag* one : flags) offers.add("--" + one->name(), short_text(*one));
  } else {
    add_words(offers, *command);
  }
  return offers.text;
}

int completion_command(const Options& options) {
  const std::string what = options.words.empty() ? "" : options.words.front();
  const auto script = std::ranges::find(kScripts, what, &Script::shell);
  if (what == "man")
    write_out(manual_page());
  else if (what == "next")
    write_out(offers_for({options.words.begin() + 1, options.words.end()}));
  else if (script != std::end(kScripts) && options.words.size() == 1)
    write_out(std::string(script->text));
  else
    fail(ErrorKind::usage,
         format("completion takes bash, zsh, fish or man, not '%s'", visible(what, false, 40).c_str()));
  return 0;
}

std::string manual_page() {
  std::string text = ".TH DSV32 1\n.SH NAME\ndsv32 \\- runs DeepSeek\\-V3.2 from a GGUF file\n.SH SYNOPSIS\n";
  text += ".B dsv32\n\\fICOMMAND\\fR [\\fIFLAGS\\fR] [\\fIWORDS\\fR]\n.SH COMMANDS\n";
  for (const CommandRow& row : commands()) text += paragraph(row.name(), row.usage, row.about);
  text += flag_section() + chat_section();
  text +=
      ".SH SETTINGS\n$XDG_CONFIG_HOME/dsv32/config, else ~/.config/dsv32/config, has lines\n.RS\n.nf\nflag = "
      "value\n.fi\n"
      ".RE\nfor all commands, and behind a line [\\fICOMMAND\\fR] for one. The command line wins.\n";
  text +=
      ".SH GPUS\nWhat data sheets say of those that plans know by name.\n.nf\n" + roff(gpu_table()) + ".fi\n";
  text += ".SH EXIT STATUS\n" + roff(exit_codes());
  text += section_of("ENVIRONMENT", kEnvironment) + section_of("FILES", kFiles);
  return text + example_section();
}

std::string config_text(const CommandRow& command) {
  const std::vector<GivenFlag> settings = settings_for(command.command, {});
  const std::unique_ptr<GgufFile> model = open_model(command.command, settings);
  std::error_code error;
  const bool is_there = std::filesystem::exists(settings_path(), error);
  const std::string state = user_folder(UserFolder::state);
  std::string text = row("settings", settings_path(), is_there ? "" : "not there");
  text += row("talks", state.empty() ? "-" : state + "/talks", "") + "\n" + command.full_name + "\n";
  for (const Flag* flag : flags_of(command.command))
    if (!flag->is_once()) text += rows_of(*flag, settings, model.get());
  return text;
}

int config_command(const Options& options) {
  size_t n_taken = 0;
  const std::vector<std::string> words =
      options.words.empty() ? std::vector<std::string>{"run"} : options.words;
  write_out(config_text(find_command(words, n_taken)));
  return 0;
}

}  // namespace dsv32
