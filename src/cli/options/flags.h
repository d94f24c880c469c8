// The list of flags: each one's names, help, group, takers, bounds, and the field of Options that it sets.
//
// The command line and its help, manual page, completions, settings file, `config`, and the name of a warm
// process's socket (engine_flags()) are made of it; flags of generation options are made of their own list
// (engine/generation_options.h). A new flag is a row. cxxopts splits the words; values stay text until
// apply().
#pragma once

#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "base/error.h"
#include "cli/options/commands.h"
#include "cli/options/options.h"

namespace dsv32 {

// A value, and what its flag is called where it stands: "--max-tokens", or "/home/me/config:3: max-tokens".
struct FlagValue {
  std::string flag, text;
};

struct Flag {
  static constexpr unsigned kOnce = 1u << 31;

  const char* names;            // "max-tokens,predict,n": the name in messages first, the letter last
  const char* value;            // "N"; null for a switch
  const char* about;            // for the help, without the default
  const char* group;            // heading in the help
  unsigned commands;            // bit 1 << Command for each command that takes it; kOnce
  double least = 0, most = 0;   // of a number
  const char* unset = nullptr;  // what holds without the flag, where the field does not say it
  const GenerationOption* option = nullptr;  // that it sets
  void (*set)(const Flag& flag, Options& options, const FlagValue& value) = nullptr;
  std::string (*get)(const Flag& flag, Options& options) = nullptr;  // null: it sets no field alone

  // `what`: gives the field in Options that is set, or sets by itself: void (Options&, const FlagValue&).
  template <typename What>
  constexpr Flag(const char* names_, const char* value_, const char* about_, const char* group_,
                 unsigned commands_, What what, const char* unset_ = nullptr)
      : Flag(names_, value_, about_, group_, commands_, what, 0, 0, unset_) {}
  template <typename What>
  constexpr Flag(const char* names_, const char* value_, const char* about_, const char* group_,
                 unsigned commands_, What, double least_, double most_, const char* unset_ = nullptr);
  explicit Flag(const GenerationOption& made_of);

  std::vector<std::string> spellings() const;               // without hyphens
  std::string name() const;                                 // "max-tokens"
  bool is_once() const { return (commands & kOnce) != 0; }  // of one call: no default can be set for it
  bool is_of(Command command) const { return commands >> static_cast<unsigned>(command) & 1; }
  void apply(Options& options, const FlagValue& given) const { set(*this, options, given); }
  // The value in these options, as it would be typed; of a switch "on" or "off".
  std::string text_in(Options options) const { return get ? get(*this, options) : ""; }
  std::string default_text() const;  // "" when there is none
  std::string help() const;          // with its default
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
TensorType parse_type(const FlagValue& value);  // a format that can be computed with, in any case
// What a file is called by: a mix of formats, else, and with "-pure" behind it, the format of all matrices.
SyntheticTypes parse_file_type(const FlagValue& value);
// "2x141G+256G": GPUs, each as SIZE, NxSIZE or, for one that was measured, by its name (2xH200), with +
// between them, or 0; then + and the host's memory.
ImaginedMachine parse_machine(const FlagValue& value);

// Thrown where one of a few words was expected, which completion offers then.
struct WrongChoice : Error {
  // `also`: what else fits, such as "a number", or empty.
  WrongChoice(const FlagValue& value, std::vector<std::string> words, const std::string& also = {});
  std::vector<std::string> words;
};

template <typename What>  // in flags.cpp
void set_field(const Flag& flag, Options& options, const FlagValue& value);
template <typename What>
std::string get_field(const Flag& flag, Options& options);

template <typename What>
constexpr Flag::Flag(const char* names_, const char* value_, const char* about_, const char* group_,
                     unsigned commands_, What, double least_, double most_, const char* unset_)
    : names(names_),
      value(value_),
      about(about_),
      group(group_),
      commands(commands_),
      least(least_),
      most(most_),
      unset(unset_) {
  if constexpr (std::is_invocable_v<What, Options&, const FlagValue&>)
    set = [](const Flag&, Options& options, const FlagValue& given) { What{}(options, given); };
  else
    set = set_field<What>, get = get_field<What>;
}

}  // namespace dsv32
