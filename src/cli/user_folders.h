// The program's folders in the user's home, by the rules of XDG.
#pragma once

#include <string>

namespace dsv32 {

enum class UserFolder { config, cache, data, state };

// $XDG_CONFIG_HOME/dsv32, else ~/.config/dsv32, and so on: .cache, .local/share, .local/state. Empty when
// neither is an absolute path.
std::string user_folder(UserFolder folder);

// That for state, where things are kept from one run to the next. Makes it and those above it, for their
// owner alone; whoever uses it finds out whether that was possible.
std::string make_state_folder();

}  // namespace dsv32
