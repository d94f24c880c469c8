// Where a plan's layers, experts and buffers go: placement (weights/placement) asked with the sizes of a
// plan.
#pragma once

#include "engine/plan.h"

namespace dsv32 {

// Whether experts may have to be the host's.
bool may_leave(const Machine& machine, const EngineOptions& options);

// Completes a plan whose step, context and pools are known, on all devices of the machine. Every row is
// resident if that needs no expert on the host; else there are buffers, of at least twice top-k as long as
// that serves. Throws as make_plan() does.
void place(MemoryPlan& plan, const ModelArgs& args, const EngineOptions& options, const Machine& machine);

// Throws Error{memory} naming the first item that does not fit.
void check_room(const MemoryPlan& plan, const Machine& machine);

}  // namespace dsv32
