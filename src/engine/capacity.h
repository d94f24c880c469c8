// How many sequences a machine holds at a time: the plan, asked again and again.
#pragma once

#include <cstdint>

#include "engine/plan.h"

namespace dsv32 {

// The options for n sequences, each as long as a context, with the rows and keys of all of them.
EngineOptions options_for_batch(const ModelArgs& args, EngineOptions options, int64_t n);

// The most sequences that a plan for them fits the machine with; 0: not even
// one. Throws Error{usage} as make_plan() does.
int64_t largest_batch(const ModelArgs& args, const EngineOptions& options, const Machine& machine);

}  // namespace dsv32
