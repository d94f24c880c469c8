// How many sequences a machine holds at a time, and how many it should: the plan, asked again and again.
#pragma once

#include <cstdint>

#include "engine/plan.h"

namespace dsv32 {

// The options for n sequences, each as long as a context, with the rows and keys of all of them.
EngineOptions options_for_batch(const ModelArgs& args, EngineOptions options, int64_t n);

// The most sequences that a plan for them fits the machine with, with no more experts on the host than for
// one; 0: not even one. Throws Error{usage} as make_plan() does.
int64_t largest_batch(const ModelArgs& args, const EngineOptions& options, const Machine& machine);

// The options with a number of sequences that suits the machine, where they leave it open (kAsManyAsSuit),
// and rows and keys for as many of a usual length: the most that fit with the smallest buffers, up to where a
// step of more hardly gains, and no experts leave a device for them. What is left goes to slots, up to twice
// top-k for each, or to every row where that fits. A context is then as long as for one sequence.
EngineOptions with_suitable_batch(const ModelArgs& args, EngineOptions options, Machine machine);

}  // namespace dsv32
