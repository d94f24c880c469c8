// The tables of commands and of flags. Of a command: its names, what its help says first; of a flag: its
// names, help, group, takers, and the field of Options that it sets.
//
// The command line and its help, manual page, completions, settings file, `config`, and the name of a warm
// process's socket (engine_flags()) are made of it; flags of generation options are made of their own list
// (engine/request.h). A new flag is a row.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <unistd.h>

#include "base/error.h"
#include "cli/options/options.h"
#include "cli/terminal/streams.h"

namespace dsv32 {

struct CommandRow {
  Command command;        // its number is the row's
  const char* full_name;  // "dsv32 run"
  const char* usage;
  const char* about;
  bool takes_words;

  std::string name() const;  // "run", "inspect tokens": as typed
};

std::span<const CommandRow> commands();
const CommandRow& row_of(Command command);

// The command that the first words name; `n_taken` is how many they are. Throws Error{usage} for others.
const CommandRow& find_command(const std::vector<std::string>& words, size_t& n_taken);

std::string exit_codes();  // one line

struct Example {
  const char *command, *text;
};
std::span<const Example> examples();

std::string overview();  // examples first, then the commands, then the exit codes

// Usage, flags by group, where defaults come from, and the exit codes.
std::string command_help(Command command);

// Lines that are longer than `width` columns end between words; what goes on stands under the column that the
// line's last gap of two spaces leads to. By default as wide as the terminal that standard output is,
// else 80.
std::string fitted(const std::string& text, size_t width = window_columns(STDOUT_FILENO));

// What `help`, `--help`, `-h`, `version`, `--version` and `-V` as a command ask for, and `--help` behind a
// group such as `inspect`; empty when `words` are anything else.
std::string general_text(const std::vector<std::string>& words);

// "dsv32 0.1.0 (c53694d)" in the first line; compiler, backends and libraries in the next ones.
std::string version_text();

// "dsv32: message\n" and, when there is one, "hint: ...\n"; escaped.
std::string error_text(const std::string& message, const std::string& hint = {});

// A value, and what its flag is called where it stands: "--max-tokens", or "/home/me/config:3: max-tokens".
struct FlagValue {
  std::string flag, text;
};

// Of certain options the field that a flag sets.
struct FlagField {
  std::function<void(const FlagValue&)> set;  // throws Error{usage}
  // The value, as it would be typed; of a switch "on" or "off". Null: the flag sets no field alone.
  std::function<std::string()> text = nullptr;
  std::vector<std::string> words = {};  // that fit, where they are few
};

struct Flag {
  static constexpr unsigned kOnce = 1u << 31;

  const char* names;  // "max-tokens,predict,n": the name in messages first, the letter last
  const char* value;  // "N"; null for a switch
  const char* about;  // for the help, without the default
  const char* group;  // heading in the help
  unsigned commands;  // bit 1 << Command for each command that takes it; kOnce
  std::function<FlagField(Options&)> field;
  const char* unset = nullptr;               // what holds without the flag, where the field does not say it
  const GenerationOption* option = nullptr;  // that it sets

  std::vector<std::string> spellings() const;               // without hyphens
  std::string name() const;                                 // "max-tokens"
  bool is_once() const { return (commands & kOnce) != 0; }  // of one call: no default can be set for it
  bool is_of(Command command) const { return commands >> static_cast<unsigned>(command) & 1; }
  std::string text_in(Options options) const;  // the field's
  std::string default_text() const;            // "" when there is none
  std::string help() const;                    // with its default
};

// Of one command, in the order of the help.
using Flags = std::vector<const Flag*>;

const std::vector<Flag>& flags();
Flags flags_of(Command command);
// Those that decide what engine a process holds, and what prefixes it knows.
std::span<const Flag> engine_flags();

// `name` without hyphens, any of its spellings. Null when there is no such flag.
const Flag* find_flag(const Flags& flags, const std::string& name);

// As it would be typed; of several values with commas between them.
std::string text_of(GenerationOption::Field field);

struct GivenFlag {
  const Flag* flag;
  std::string value;  // of a switch "true"
  std::string where;  // of the settings file: "/home/me/.config/dsv32/config:3"

  void apply(Options& options) const;  // throws Error{usage}
};

struct GivenWords {
  std::vector<GivenFlag> flags;  // in the order given
  std::vector<std::string> words;

  bool has(const std::string& name) const;  // the flag whose first name it is
};

// `args`: the words after the command's name. Throws Error{usage} for an unknown flag (with the nearest
// spelling), a value that is missing, and, unless help or the version is asked for, words where the command
// takes none.
GivenWords take_apart(const CommandRow& command, const Flags& flags, const std::vector<std::string>& args);

// Usage, and the flags by group, fitted().
std::string help_of(const CommandRow& command, const Flags& flags);

// Of `names` the one that `word` was probably meant to be; empty when none is near.
std::string nearest(const std::string& word, const std::vector<std::string>& names);
// " (did you mean --temp?)", or empty.
std::string did_you_mean(const std::string& word, const std::vector<std::string>& names,
                         const char* prefix = "");

// $XDG_CONFIG_HOME/dsv32/config, else ~/.config/dsv32/config; empty when there is no such place.
std::string settings_path();

// What the settings file says for a command whose words give these flags: neither theirs nor what contradicts
// them, in the order of the file. A model that the environment names hides one that the file names. Lines of
// the more particular section hide those of others for the same flag. Throws Error{usage}, one line that
// names the file's, for what is no section, flag or value, wherever it stands.
//
//   # a comment
//   temp = 0.6          for every command that takes --temp
//   [run]               from here on for this one; [inspect] is a group, [inspect plan] one of it
//   no-think            a switch
std::vector<GivenFlag> settings_for(Command command, const GivenWords& given);

// Values from text, whole and within bounds, or Error{usage}: "FLAG takes EXPECTED, not 'TEXT'".
[[noreturn]] void fail_value(const FlagValue& value, const std::string& expected);
int64_t parse_integer(const FlagValue& value, int64_t least, int64_t most);  // decimal
float parse_number(const FlagValue& value, double least, double most);
std::optional<uint64_t> parse_seed(const FlagValue& value,
                                   bool may_be_random);       // nothing for -1, a random one
std::chrono::seconds parse_duration(const FlagValue& value);  // "90s", "30m", "8h"
Shard parse_shard(const FlagValue& value);                    // "I/N"
size_t parse_word(const FlagValue& value, const std::vector<std::string>& words);
std::vector<std::string> type_names();          // of the formats that can be computed with
TensorType parse_type(const FlagValue& value);  // one of them, in any case
// What a file is called by: a mix of formats, else, and with "-pure" behind it, the format of all matrices.
SyntheticTypes parse_file_type(const FlagValue& value);
// "2x141G+256G": GPUs, each as SIZE, NxSIZE or, for one that was measured, by its name (2xH200), with +
// between them, or 0; then + and the host's memory.
ImaginedMachine parse_machine(const FlagValue& value);
// "full or auto", "fp8, bf16 or f32"
std::string listed(const std::vector<std::string>& names);

}  // namespace dsv32
