// The table of flags: the one place that knows their names, their words in the help, and what they set.
//
// A flag that is not in the table does not exist; a row is all it takes to add one.
#pragma once

#include <span>
#include <string>

#include "cli/flag_parser.h"
#include "cli/options.h"

namespace dsv32 {

struct Flag : FlagText {
  unsigned commands;  // bit 1 << Command for each command that takes it
  // Throws Error{usage}; `flag` is "--max-tokens".
  void (*apply)(Options& options, const std::string& value, const std::string& flag);
};

std::span<const Flag> flags();
FlagTexts flags_of(Command command);  // each of them a Flag

// Decimal, the whole text, within the bounds. Throws Error{usage} naming `flag`.
int64_t parse_integer(const std::string& flag, const std::string& text, int64_t least, int64_t most);

// A storage format that can be computed with, by its name in any case. Throws Error{usage} naming `flag`.
TensorType parse_type(const std::string& flag, const std::string& text);

}  // namespace dsv32
