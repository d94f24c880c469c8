// `lab logits`: the logits of every token of a prompt, for comparison with other programs.
#pragma once

#include "tests/tools/lab/lab_options.h"

namespace dsv32 {

// "1,2 3" -> {1, 2, 3}: decimal ids with commas or white space between them. Throws Error{usage} for anything
// else, for ids outside [0, vocab_size), and for none at all.
std::vector<int32_t> parse_token_list(std::string_view text, int64_t vocab_size);

// Writes float32 [n_tokens, vocab_size], row-major, little-endian, to a file that appears only when complete.
// Returns the exit code. Throws Error.
int lab_logits(const LabOptions& options);

}  // namespace dsv32
