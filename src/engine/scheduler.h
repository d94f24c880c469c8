// Which step comes next: pure, from what every request waits for to who is in the step.
//
// Steps are of one role. Prompts are read one at a time, in the order of arrival; while one is read, every
// second step is a decode step of all who decode, so that neither starves.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "engine/request.h"

namespace dsv32 {

struct StepPlan {
  enum class What {
    nothing,  // there is no request
    wait,     // all wait for the disk
    prompt,   // a chunk of the prompt of requests[0]
    decode,   // a token of each of `requests`
  };
  What what = What::nothing;
  std::vector<size_t> requests;
};

// phases: of the requests, in the order of their arrival. was_prompt: the last step read a prompt. max_parts:
// most requests of a step.
StepPlan next_step(std::span<const Phase> phases, bool was_prompt, size_t max_parts);

}  // namespace dsv32
