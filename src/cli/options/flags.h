// The list of flags: each one's names, help, group, takers, bounds, and the field of Options that it sets.
//
// Everything that knows flags is made of it: the command line and its help, the manual page, completions, the
// settings file, `config`, and the name of a warm process's socket (engine_flags()). Flags of generation
// options are made of their own list (engine/generation_options.h). A new flag is a row. cxxopts splits the
// words; values stay text until apply().
#pragma once

#include <chrono>
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

struct Bounds {
  double least = 0, most = 0;   // of a number
  const char* unset = nullptr;  // what holds without the flag, where the field's value does not say it
};

// One of a few words, in the order of the enumeration's values; of a text the word itself.
template <typename T>
struct Choice {
  T* field;
  std::vector<std::string> words;
};

struct Negated {  // a switch that sets false
  bool* field;
};

struct BufferRows {  // a number of rows, full (kEveryRow), or auto (nothing)
  std::optional<int64_t>* field;
};

// Thrown where one of a few words was expected, which completion offers then.
struct WrongChoice : Error {
  // `also`: what else fits, such as "a number", or empty.
  WrongChoice(const FlagValue& value, std::vector<std::string> words, const std::string& also = {});
  std::vector<std::string> words;
};

// "FLAG takes EXPECTED, not 'TEXT'"
[[noreturn]] void fail_value(const FlagValue& value, const std::string& expected);

int64_t parse_integer(const FlagValue& value, int64_t least, int64_t most);  // decimal
TensorType parse_type(const FlagValue& value);  // a format that can be computed with, in any case
size_t parse_word(const FlagValue& value, const std::vector<std::string>& words);
std::optional<uint64_t> parse_seed(const FlagValue& value,
                                   bool may_be_random);  // nothing for -1, a random one
Shard parse_shard(const FlagValue& value);               // "I/N"
// What a file is called by: a mix of formats, else, and with "-pure" behind it, the format of all matrices.
SyntheticTypes parse_file_type(const FlagValue& value);
// "2x141G+256G": GPUs, each as SIZE, NxSIZE or, for one that was measured, by its name (2xH200), with +
// between them, or 0; then + and the host's memory.
ImaginedMachine parse_machine(const FlagValue& value);

// Texts to fields, whole and within bounds, or Error{usage}; and the way back, "" for nothing.
void read_value(const FlagValue& value, const Bounds&, bool* field);
void read_value(const FlagValue& value, const Bounds&, Negated field);
void read_value(const FlagValue& value, const Bounds& bounds, int* field);
void read_value(const FlagValue& value, const Bounds& bounds, int64_t* field);
void read_value(const FlagValue& value, const Bounds&, uint64_t* field);  // bytes, "24G"
void read_value(const FlagValue& value, const Bounds& bounds, float* field);
void read_value(const FlagValue& value, const Bounds& bounds, double* field);
void read_value(const FlagValue& value, const Bounds&, std::string* field);
void read_value(const FlagValue& value, const Bounds&, TensorType* field);
void read_value(const FlagValue& value, const Bounds&, std::chrono::seconds* field);  // "90s", "30m", "8h"
void read_value(const FlagValue& value, const Bounds&, BufferRows field);
void read_value(const FlagValue& value, const Bounds& bounds, std::vector<int>* field);      // joins them
void read_value(const FlagValue& value, const Bounds& bounds, std::vector<int64_t>* field);  // sorted
void read_value(const FlagValue& value, const Bounds&, std::vector<uint64_t>* field);
void read_value(const FlagValue& value, const Bounds&, std::vector<std::string>* field);  // joins them
void read_value(const FlagValue& value, const Bounds& bounds, GenerationOption::Field field);

template <typename T>
void read_value(const FlagValue& value, const Bounds& bounds, std::optional<T>* field) {
  if (bounds.unset && value.text == "auto" && value.text == bounds.unset) return field->reset();
  T inner{};
  read_value(value, bounds, &inner);
  *field = inner;
}

template <typename T>
void read_value(const FlagValue& value, const Bounds&, const Choice<T>& choice) {
  const size_t place = parse_word(value, choice.words);
  if constexpr (std::is_same_v<T, std::string>)
    *choice.field = choice.words[place];
  else
    *choice.field = static_cast<T>(place);
}

std::string text_of(bool value);  // "on", "off"
std::string text_of(int64_t value);
std::string text_of(uint64_t value);
std::string text_of(double value);
std::string text_of(float value);  // the shortest that is read as the same number
std::string text_of(const std::string& value);
std::string text_of(TensorType value);
std::string text_of(std::chrono::seconds value);
std::string text_of(Negated field);
std::string text_of(BufferRows field);
std::string text_of(GenerationOption::Field field);
inline std::string text_of(int value) { return text_of(int64_t{value}); }

template <typename T>
std::string text_of(const std::optional<T>& value) {
  return value ? text_of(*value) : "";
}

template <typename T>
std::string text_of(const std::vector<T>& values) {
  std::string text;
  for (const T& value : values) text += (text.empty() ? "" : ",") + text_of(value);
  return text;
}

template <typename T>
std::string text_of(const Choice<T>& choice) {
  if constexpr (std::is_same_v<T, std::string>)
    return *choice.field;
  else
    return choice.words.at(static_cast<size_t>(*choice.field));
}

struct Flag {
  static constexpr unsigned kOnce = 1u << 31;

  const char* names;  // "max-tokens,predict,n": the name in messages first, the letter last
  const char* value;  // "N"; null for a switch
  const char* about;  // for the help, without the default
  const char* group;  // heading in the help
  unsigned commands;  // bit 1 << Command for each command that takes it; kOnce
  Bounds bounds;
  const GenerationOption* option = nullptr;  // that it sets
  void (*set)(const Flag& flag, Options& options, const FlagValue& value) = nullptr;
  std::string (*get)(const Flag& flag, Options& options) = nullptr;  // null: it sets no field alone

  // `what`: gives the field in Options that is set, or sets by itself: void (Options&, const FlagValue&).
  template <typename What>
  constexpr Flag(const char* names_, const char* value_, const char* about_, const char* group_,
                 unsigned commands_, What, Bounds bounds_ = {})
      : names(names_), value(value_), about(about_), group(group_), commands(commands_), bounds(bounds_) {
    if constexpr (std::is_invocable_v<What, Options&, const FlagValue&>) {
      set = [](const Flag&, Options& options, const FlagValue& given) { What{}(options, given); };
    } else {
      set = [](const Flag& flag, Options& options, const FlagValue& given) {
        read_value(given, flag.bounds, What{}(options));
      };
      get = [](const Flag&, Options& options) {
        const auto field = What{}(options);
        if constexpr (std::is_pointer_v<decltype(field)>)
          return text_of(*field);
        else
          return text_of(field);
      };
    }
  }
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

struct GivenFlag {
  const Flag* flag;
  std::string value;  // of a switch "true"
  std::string where;  // of the settings file: "/home/me/.config/dsv32/config:3"

  void apply(Options& options) const;
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

// $XDG_CONFIG_HOME/dsv32/config, else ~/.config/dsv32/config; empty when there is no such place.
std::string settings_path();

// What the settings file says for a command whose words give these flags: neither theirs nor what contradicts
// them, in the order of the file. A model that the environment names hides one that the file names. Throws
// Error{usage}, one line that names the file's, for what is no section, flag or value, wherever it stands.
//
//   # a comment
//   temp = 0.6          for every command that takes --temp
//   [run]               from here on for this one; [inspect] is a group, [inspect plan] one of it
//   no-think            a switch
//
// Lines of the more particular section hide those of others for the same flag.
std::vector<GivenFlag> settings_for(Command command, const GivenWords& given);

}  // namespace dsv32
