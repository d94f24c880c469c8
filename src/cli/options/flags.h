// The tables of commands and of flags. A command's row has its name and the first lines of its help; a flag's
// row has its names, help, group, commands, and the field of Options that it sets.
//
// The command line, its help, the manual page, completions, the settings file and the name of a warm
// process's socket (engine_flags()) are made from the flags' table; rows of generation options are made from
// the list in engine/request.h. A new flag is a row; each name has one row.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "cli/options/options.h"

namespace cxxopts {
class Options;
}

namespace dsv32 {

struct CommandRow {
  Command command;        // as a number: the row's index
  const char* full_name;  // "dsv32 run"
  const char* usage;
  const char* about;
  bool takes_words;

  std::string name() const;  // "run", "inspect tokens": as typed
};

std::span<const CommandRow> commands();
const CommandRow& row_of(Command command);

// The command that the first `n_taken` words name. Throws Error{usage} when they name none.
const CommandRow& find_command(const std::vector<std::string>& words, size_t& n_taken);

// The words that commands go on with: "run", "inspect" and others behind no word, "model", "plan" and
// "tokens" behind "inspect", none behind a command.
std::vector<std::string> words_behind(const std::string& group);

std::string exit_codes();  // one line

// What is typed or set, and what it does.
struct Entry {
  const char *name, *text;
};
std::span<const Entry> examples();

std::string overview();  // examples first, then the commands, then the exit codes

// Usage, flags by group, where defaults come from, and the exit codes.
std::string command_help(Command command);

// The text for `help`, `--help`, `-h`, `version`, `--version` and `-V` in place of a command or, with
// hyphens, after a group such as `inspect`; empty for other `words`.
std::string general_text(const std::vector<std::string>& words);

std::string parser_version();  // of cxxopts

// "dsv32 0.1.0 (c53694d)" in the first line; compiler, backends and libraries in the next ones.
std::string version_text();

// "dsv32: message\n" and, when there is one, "hint: ...\n"; escaped.
std::string error_text(const std::string& message, const std::string& hint = {});

// A value, and its flag as messages name it: "--max-tokens".
struct FlagValue {
  std::string flag, text;
};

// The field of one Options that a flag sets.
struct FlagField {
  std::function<void(const FlagValue&)> set;  // throws Error{usage}
  // The value as it would be typed; of a switch "on" or "off". Null: there is no text for it.
  std::function<std::string()> text = nullptr;
  bool is_list = false;  // the flag may be repeated, and adds a value
};

struct Flag {
  static constexpr unsigned kOnce = 1u << 31;

  const char* names;  // "max-tokens,predict,n": the name in messages first, the letter last; "no-" negates
  const char* value;  // "N"; null for a switch
  const char* about;  // for the help, without the default
  const char* group;  // heading in the help
  unsigned commands;  // bit 1 << Command for each command that takes it; kOnce
  std::function<FlagField(Options&)> field;
  const char* unset = nullptr;               // the default as text, if not the field's
  const GenerationOption* option = nullptr;  // the generation option that the flag sets, if any

  std::vector<std::string> spellings() const;               // without hyphens
  std::string name() const;                                 // "max-tokens"
  bool is_once() const { return (commands & kOnce) != 0; }  // the settings file cannot set it
  bool is_of(Command command) const { return commands >> static_cast<unsigned>(command) & 1; }
  std::string text_in(Options options) const;  // of the field's value
  std::string help() const;                    // with its default
};

// One command's flags, in the order of the help.
using Flags = std::vector<const Flag*>;

const std::vector<Flag>& flags();
Flags flags_of(Command command);
// The flags that decide which engine a process holds and which prefixes it finds.
const std::vector<Flag>& engine_flags();

// `name`: any spelling, without hyphens. Null when there is no such flag.
const Flag* find_flag(const Flags& flags, const std::string& name);

// The field's value as it would be typed, a list's values with commas between them.
std::string text_of(GenerationOption::Field field);

struct GivenFlag {
  const Flag* flag;
  std::string value;  // of a switch "true", or "false" by a name that negates it

  void apply(Options& options) const;  // throws Error{usage}
};

struct GivenWords {
  std::vector<GivenFlag> flags;  // in the order given
  std::vector<std::string> words;

  bool has(const std::string& name) const;  // `name`: a flag's first
};

// A command, its flags, and their parser.
struct CommandLine {
  CommandRow command;
  Flags flags;
  std::shared_ptr<cxxopts::Options> parser;
};
CommandLine make_command_line(const CommandRow& command, Flags flags);

// `args`: the words after the command's name. Throws Error{usage} for an unknown flag (with the nearest
// spelling), a missing value, a switch's value, a value in a word of its own that is spelled like a flag,
// and, without --help, words for a command that takes none.
GivenWords take_apart(const CommandLine& line, const std::vector<std::string>& args);

// Usage, and the flags by group, for standard output's terminal.
std::string help_of(const CommandLine& line);

// The one of `names` that the mistyped `word` probably means; empty when none is near.
std::string nearest(const std::string& word, const std::vector<std::string>& names);
// " (did you mean --temp?)", or empty.
std::string did_you_mean(const std::string& word, const std::vector<std::string>& names,
                         const char* prefix = "");

// Values from text, whole and within bounds, or Error{usage}: "FLAG takes EXPECTED, not 'TEXT'".
[[noreturn]] void fail_value(const FlagValue& value, const std::string& expected);
int64_t parse_integer(const FlagValue& value, int64_t least, int64_t most);  // decimal
float parse_number(const FlagValue& value, double least, double most);
std::optional<uint64_t> parse_seed(const FlagValue& value,
                                   bool may_be_random);       // nothing for -1: random
std::chrono::seconds parse_duration(const FlagValue& value);  // "90s", "30m", "8h"
Shard parse_shard(const FlagValue& value);                    // "I/N", "auto" or "auto/N"
std::vector<double> parse_shares(const FlagValue& value);     // "F,F2,F3": kMostGuesses, the last repeated
size_t parse_word(const FlagValue& value, const std::vector<std::string>& words);
std::vector<std::string> type_names();          // of the supported formats
TensorType parse_type(const FlagValue& value);  // one of them, in any case
// A mix of formats by its name, else one format for all matrices, which "-pure" after the name always means.
SyntheticTypes parse_file_type(const FlagValue& value);
std::string name_of(const SyntheticTypes& types);  // as parse_file_type() reads it
// "2x141G+256G": the GPUs, with + between them, or 0 for none; then + and the host's memory. A GPU is SIZE or
// a name of gpu_kinds(), perhaps after a number (2xH200). Spaces do not count.
ImaginedMachine parse_machine(const FlagValue& value);
// "full or auto", "fp8, bf16 or f32"
std::string listed(const std::vector<std::string>& names);

}  // namespace dsv32
