// Where things are kept from one run to the next: the program's folder for state.
#pragma once

#include <string>

namespace dsv32 {

// $XDG_STATE_HOME/dsv32, else ~/.local/state/dsv32; empty when neither is an absolute path. Makes the folder
// and those above it, for their owner alone; whoever uses it finds out whether that was possible.
std::string state_folder();

}  // namespace dsv32
