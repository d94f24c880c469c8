// The commands `dsv32 warm start`, `status` and `stop`: a process of the user's own that holds a model.
//
// `start` returns when the model is loaded and the process has left the terminal; what fails before that is
// told as any command tells it. What the process has to say afterwards goes to the log beside its socket.
#pragma once

#include "cli/options/options.h"

namespace dsv32 {

// Each returns the exit code and throws Error. Who asks several passes over one that hangs, and says so.
int warm_start_command(const Options& options);
int warm_status_command(const Options& options);  // 1: there is none
int warm_stop_command(const Options& options);    // 1: one that is meant goes on, or -m means none

}  // namespace dsv32
