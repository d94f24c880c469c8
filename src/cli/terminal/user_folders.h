// The program's folders in the user's home, by the rules of XDG.
#pragma once

#include <string>

namespace dsv32 {

enum class UserFolder { config, cache, data, state, runtime };

// $XDG_CONFIG_HOME/dsv32, else ~/.config/dsv32, and so on: .cache, .local/share, .local/state, which also
// takes the place of $XDG_RUNTIME_DIR. Empty when the one is no absolute path and the other no home that is
// there: nobody's home is made.
std::string user_folder(UserFolder folder);

// Makes it and those above it, for their owner alone. Throws Error{io} naming the folder that cannot be made,
// and why.
std::string make_user_folder(UserFolder folder);

}  // namespace dsv32
