// The command `dsv32 chat`: a conversation at the terminal, several turns in one session.
//
// Each turn is the whole conversation in the chat format; the session computes only what is new of it.
// Ctrl-C ends an answer and keeps what was said. Each is kept from its first message on and can be resumed
// (talk.h), unless --no-save.
#pragma once

#include "cli/options/options.h"

namespace dsv32 {

// Returns the exit code. Throws Error{usage} when standard output is no terminal or a talk cannot be resumed.
int chat_command(const Options& options);

}  // namespace dsv32
