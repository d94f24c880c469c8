// The table of flags: the one place that knows their names, their words in the help, and what they set.
//
// A flag that is not in the table does not exist; a row is all it takes to add one.
#pragma once

#include <span>
#include <string>

#include "cli/options/flag_parser.h"
#include "cli/options/options.h"

namespace dsv32 {

struct Flag : FlagText {
  unsigned commands;  // bit 1 << Command for each command that takes it
  // Throws Error{usage}; `flag` is "--max-tokens".
  void (*apply)(Options& options, const std::string& value, const std::string& flag);

  // It says what one call is about: no default can be set for it (settings.h).
  bool is_once() const { return commands >> 31 != 0; }
};

std::span<const Flag> flags();
FlagTexts flags_of(Command command);  // each of them a Flag

}  // namespace dsv32
