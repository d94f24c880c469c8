// The command `dsv32 talks`: the talks that are kept, from outside of a chat.
#pragma once

#include "cli/chat/saved_talk.h"
#include "cli/options/options.h"

namespace dsv32 {

// Returns the exit code. Throws Error{usage, io}: there is no such talk, it is damaged, or it is held in a
// chat and was to be changed.
int talks_command(const Options& options);

// A line for each talk that is kept, the one used last first: its name, turns, age and first words. `current`
// is said to be this one.
std::string talks_list(const TalkFolder& folder, const std::string& current = {});

}  // namespace dsv32
