// The commands `dsv32 warm start`, `status` and `stop`: a process of the user's own that holds a model, and
// its work.
//
// `start` returns when the model is loaded and the process has left the terminal; what fails before that is
// told as any command tells it. What the process has to say afterwards goes to the log beside its socket.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "base/file.h"
#include "cli/options/options.h"
#include "cli/terminal/signals.h"
#include "cli/warm/warm_wire.h"
#include "engine/engine.h"
#include "text/tokenizer.h"

namespace dsv32 {

// Each returns the exit code and throws Error. A process that hangs is passed over when several are asked,
// which is said.
int warm_start_command(const Options& options);
int warm_status_command(const Options& options);  // 1: there is none
int warm_stop_command(const Options& options);    // 1: one that is meant goes on, or -m means none

struct WarmTerms {
  std::string model;             // its file
  std::vector<FileStamp> parts;  // of it, when they were opened
  std::chrono::seconds keep;     // as long it may be idle
};

// Runs the engine's loop for all clients of the socket, until it was idle for too long, its socket has lost
// its name, or a client asks for its end: then what is under way ends first, and later requests are refused.
// Returns the links of clients that wait for the end of the process, and take the end of their links for it.
// Throws what ends the loop, when all clients that wait for answers have been told.
std::vector<WarmLink> serve_warm(Engine& engine, const Tokenizer& tokenizer, WarmListener listener,
                                 const WarmTerms& terms, const GracefulStop& stop);

}  // namespace dsv32
