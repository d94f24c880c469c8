// A command's words as typed, taken apart: flags with their values, and the rest. What a flag means is its
// table's business (flags.h).
//
// cxxopts splits the words; its exceptions become Error{usage} of one line here and nowhere else. Values stay
// text: no value is split at commas, and messages are ours.
#pragma once

#include <string>
#include <vector>

namespace dsv32 {

struct CommandText {
  std::string name;  // "dsv32 run"
  const char* usage;
  const char* about;
  bool takes_words;
};

struct FlagText {
  const char* names;  // "max-tokens,predict,n": the name in messages first, the letter last
  const char* value;  // "N"; null for a switch
  const char* text;   // for the help
  const char* group;  // heading in the help

  std::vector<std::string> spellings() const;  // without hyphens
  std::string name() const;                    // "max-tokens"
};

// Of one command, in the order of the help. A table's rows, which outlive what is made of them.
using FlagTexts = std::vector<const FlagText*>;

struct GivenWords {
  struct GivenFlag {
    const FlagText* flag;
    std::string value;  // of a switch "true"
  };
  std::vector<GivenFlag> flags;  // in the order given
  std::vector<std::string> words;

  bool has(const std::string& name) const;  // the flag whose first name it is
};

// `args`: the words after the command's name. Throws Error{usage} for an unknown flag (with the nearest
// spelling), a value that is missing, and, unless help or the version is asked for, words where the command
// takes none.
GivenWords take_apart(const CommandText& command, const FlagTexts& flags,
                      const std::vector<std::string>& args);

// `name` without hyphens, any of its spellings. Null when there is no such flag.
const FlagText* find_flag(const FlagTexts& flags, const std::string& name);

// Usage, and the flags by group, fitted().
std::string help_of(const CommandText& command, const FlagTexts& flags);

// Of `names` the one that `word` was probably meant to be; empty when none is near.
std::string nearest(const std::string& word, const std::vector<std::string>& names);

}  // namespace dsv32
