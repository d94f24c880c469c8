// The command `dsv32 chat`: a conversation at the terminal, several turns in one session.
//
// Each turn is the whole conversation in the chat format; the session computes only what is new of it.
// Ctrl-C ends an answer and keeps what was said. With --session or --continue the conversation is saved after
// each answer and can be resumed (saved_talk.h); otherwise it is lost at the end.
#pragma once

#include "cli/options.h"

namespace dsv32 {

// Returns the exit code. Throws Error{usage} when standard output is no terminal or a talk cannot be resumed.
int chat_command(const Options& options);

}  // namespace dsv32
