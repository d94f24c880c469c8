// A machine in one word, "2x141G+256G": what `inspect plan --on` plans for.
#pragma once

#include <string>

#include "cli/options/options.h"
#include "engine/plan.h"

namespace dsv32 {

// GPUs, each as SIZE, NxSIZE or, for one that was measured, by its name (2xH200), with + between them, or 0;
// then + and the host's memory. Throws Error{usage}.
ImaginedMachine parse_machine(const std::string& flag, const std::string& text);

// What would be free there when backends of these limits have been made. Without GPUs the weights lie in the
// host's memory, where their file would be mapped: they are taken from it here.
// Throws Error{memory} when they do not fit.
Machine machine_of(const ImaginedMachine& imagined, const ModelBytes& bytes, const EngineOptions& options);

}  // namespace dsv32
