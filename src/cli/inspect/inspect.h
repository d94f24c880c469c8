// The commands `dsv32 inspect`: what a model file holds, what a context costs, and how text becomes tokens.
//
// They read headers and vocabulary; only `inspect logits` computes (inspect_logits.h).
#pragma once

#include "cli/options/options.h"

namespace dsv32 {

// Each returns the exit code and throws Error.
int inspect_model(const Options& options);
int inspect_plan(const Options& options);
int inspect_tokens(const Options& options);
int inspect_prompt(const Options& options);

}  // namespace dsv32
