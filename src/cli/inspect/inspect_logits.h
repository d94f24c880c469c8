// `dsv32 inspect logits`: the logits of every token of a prompt, for comparison with other programs.
//
// The file is float32 [n_tokens, vocab_size], row-major, little-endian, and appears only when it is whole.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cli/options/options.h"

namespace dsv32 {

// Returns the exit code. Throws Error{usage} for ids that do not fit the model, Error{io} for the file,
// Error{model} for logits that are no numbers.
int inspect_logits(const Options& options);

// "1,2 3" -> {1, 2, 3}: decimal ids with commas or white space between them. Throws Error{usage} for anything
// else, for ids outside [0, vocab_size), and for none at all.
std::vector<int32_t> parse_token_list(std::string_view text, int64_t vocab_size);

}  // namespace dsv32
