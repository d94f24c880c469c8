// How many sequences suit a machine: part of make_plan() (engine/plan.h).
#pragma once

#include "engine/plan.h"

namespace dsv32 {

// The usual length of a sequence, for which room is planned.
inline constexpr int64_t kUsualTokens = 16384;

// The plan with all devices of the machine, which share the model as options.split says, for a number of
// sequences that is decided. Throws as make_plan() does.
MemoryPlan plan_on_all(const ModelArgs& args, const EngineOptions& options, const Machine& machine);

// Decides an open number of sequences; see make_plan().
EngineOptions with_sequences(const ModelArgs& args, EngineOptions options, Machine machine);

}  // namespace dsv32
