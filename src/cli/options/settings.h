// The settings file: what flags a user would rather not type again. The command line wins over it.
//
//   # a comment
//   temp = 0.6          for every command that takes --temp
//   [run]               from here on for this one; [inspect] is a group, [inspect plan] one of it
//   no-think            a switch
//
// Lines of the more particular section hide those of others for the same flag.
#pragma once

#include <string>
#include <vector>

#include "cli/options/flags.h"

namespace dsv32 {

struct Setting {
  const Flag* flag;
  std::string value;  // of a switch "true"
  std::string where;  // "/home/me/.config/dsv32/config:3"
};

// $XDG_CONFIG_HOME/dsv32/config, else ~/.config/dsv32/config; empty when there is no such place.
std::string settings_path();

// What the file says for a command whose words give these flags: neither theirs nor what contradicts them, in
// the order of the file. A model that the environment names hides one that the file names. Throws
// Error{usage}, one line that names the file's, for what is no section, flag or value, wherever it stands.
std::vector<Setting> settings_for(Command command, const GivenWords& given);

}  // namespace dsv32
