// The table of flags: the one place that knows their names, their words in the help, and what they set.
//
// options.cpp makes one cxxopts::Options per command from it. A flag that is not in the table does not exist;
// a row is all it takes to add one.
#pragma once

#include <span>
#include <string>

#include "cli/options.h"

namespace dsv32 {

struct Flag {
  const char* names;  // "max-tokens,predict,n": the name in messages first, the letter last
  const char* value;  // "N"; null for a switch
  const char* text;   // for the help
  const char* group;  // heading in the help
  unsigned commands;  // bit 1 << Command for each command that takes it
  // Throws Error{usage}; `flag` is "--max-tokens".
  void (*apply)(Options& options, const std::string& value, const std::string& flag);
};

std::span<const Flag> flags();

// Decimal, the whole text, within the bounds. Throws Error{usage} naming `flag`.
int64_t parse_integer(const std::string& flag, const std::string& text, int64_t least, int64_t most);

}  // namespace dsv32
