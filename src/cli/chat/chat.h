// The commands of this room. Each returns its exit code and throws Error.
#pragma once

#include "cli/options/options.h"

namespace dsv32 {

// `dsv32 run`: one prompt in, one answer out. Standard output is the answer and nothing else, or with --json
// one object. With --talk or --continue the prompt is a talk's next question (talk.h). Exit code 6: no answer
// began, or the full context cut it; 129, 130, 143: a signal ended it.
int run_command(const Options& options);

// `dsv32 chat`: a talk at the terminal (conversation.h). Error{usage} when standard output is no terminal.
int chat_command(const Options& options);

// `dsv32 talks`: lists, shows, exports, renames and deletes the talks that are kept. Error{usage} when there
// is no such talk, or it is held in a chat and was to be changed.
int talks_command(const Options& options);

}  // namespace dsv32
