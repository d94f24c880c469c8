// The program's folders in the user's home, by the rules of XDG.
#pragma once

#include <string>

namespace dsv32 {

enum class UserFolder { config, cache, data, state, runtime };

// $XDG_CONFIG_HOME/dsv32, else ~/.config/dsv32, and so on: .cache, .local/share, .local/state, which also
// takes the place of $XDG_RUNTIME_DIR. Empty when neither is an absolute path.
std::string user_folder(UserFolder folder);

// Makes it and those above it, for their owner alone; whoever uses it finds out whether that was possible.
std::string make_user_folder(UserFolder folder);

}  // namespace dsv32
