// The table of commands: the one place that knows their names, what their help says first, and what runs.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "cli/flag_parser.h"
#include "cli/options.h"

namespace dsv32 {

struct CommandRow {
  Command command;  // its number is the row's
  CommandText text;
  int (*run)(const Options& options);  // returns the exit code, throws Error

  std::string name() const;  // "run", "inspect tokens": as typed
};

std::span<const CommandRow> commands();
const CommandRow& row_of(Command command);

// "inspect": a word that names no command by itself but begins the names of several.
bool is_group(const std::string& word);

// The command that the first words name; `n_taken` is how many they are. Throws Error{usage} for others.
const CommandRow& find_command(const std::vector<std::string>& words, size_t& n_taken);

}  // namespace dsv32
