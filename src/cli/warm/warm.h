// The commands `dsv32 warm start`, `status` and `stop`, and the loop of the user's warm process.
//
// `start` returns when the model is loaded and the process has left the terminal. Until then errors are shown
// as any command shows them; later messages go to the log beside the process's socket.
#pragma once

#include <chrono>

#include "cli/options/options.h"
#include "cli/terminal/signals.h"
#include "cli/warm/model.h"
#include "cli/warm/warm_wire.h"

namespace dsv32 {

// Each returns the exit code and throws Error. `status` and `stop` report a process that hangs, and go on
// with the next one.
int warm_start_command(const Options& options);
int warm_status_command(const Options& options);  // 1: none answers
int warm_stop_command(const Options& options);    // 1: one does not answer, or none holds the model of -m

// Runs the loop of a loaded model for all clients of the socket. Ends when the process was idle for `keep`,
// when its socket's file and its clients are gone, or when a client or a signal asks for the end; then
// requests under way are finished and later ones refused. The connections of clients that wait for the end
// close when the process has ended. Throws what ends the loop.
void serve_warm(Model& model, WarmListener listener, std::chrono::seconds keep, const GracefulStop& stop);

}  // namespace dsv32
