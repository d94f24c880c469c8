// The command `dsv32 chat`: a conversation at the terminal, several turns in one session.
//
// Each turn is the whole conversation in the chat format; the session computes only what is new of it.
// Ctrl-C ends an answer and keeps what was said. The conversation is lost at the end.
#pragma once

#include "cli/options.h"

namespace dsv32 {

// Returns the exit code. Throws Error{usage} when standard output is no terminal.
int chat_command(const Options& options);

}  // namespace dsv32
