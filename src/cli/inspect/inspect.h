// The commands that look at a model, its logits, the machine, and the cache on disk, and those that measure.
//
// Each returns the exit code and throws Error.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "cli/options/options.h"

namespace dsv32 {

// What a model file holds, what a context costs, how text becomes tokens: headers and vocabulary are read.
int inspect_model(const Options& options);
int inspect_plan(const Options& options);
int inspect_tokens(const Options& options);
int inspect_prompt(const Options& options);

// The logits of every token of a prompt, for comparison with other programs: float32 [n_tokens, vocab_size],
// row-major, little-endian, in a file that appears only when it is whole. Throws Error{model} for logits that
// are no numbers.
int inspect_logits(const Options& options);

// "1,2 3" -> {1, 2, 3}: decimal ids with commas or white space between them. Throws Error{usage} for anything
// else, for ids outside [0, vocab_size), and for none at all.
std::vector<int32_t> parse_token_list(std::string_view text, int64_t vocab_size);

// Whether this machine computes a model as it should, without any other program. Decode with a small top-k
// buffer must give the bits of decode with every row resident, and a prompt the same bits however it is cut,
// on each backend. A GPU's logits must be near those of the CPU, which is the oracle; where they first leave
// it is told by position, layer and stage. 1: a comparison failed.
int check_command(const Options& options);

// What is kept on disk, whether it is whole, and how it is made smaller; no model is opened. A folder that is
// not there is an empty cache, and stays away. 1: verify found damage, or not all went that was to go.
int cache_command(const Options& options);

// Prefill and decode at context frontiers, for a model file or for synthetic weights of any shape.
int bench_model_command(const Options& options);
// How many sequences of given lengths a machine holds, and how fast they decode together.
int bench_batch_command(const Options& options);

}  // namespace dsv32
