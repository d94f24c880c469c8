// The table of commands: their names, and what their help says first. dispatch.h runs them.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "cli/options/flag_parser.h"
#include "cli/options/options.h"

namespace dsv32 {

struct CommandRow {
  Command command;  // its number is the row's
  CommandText text;

  std::string name() const;  // "run", "inspect tokens": as typed
};

std::span<const CommandRow> commands();
const CommandRow& row_of(Command command);

// "inspect": a word that names no command by itself but begins the names of several.
bool is_group(const std::string& word);

// The command that the first words name; `n_taken` is how many they are. Throws Error{usage} for others.
const CommandRow& find_command(const std::vector<std::string>& words, size_t& n_taken);

}  // namespace dsv32
