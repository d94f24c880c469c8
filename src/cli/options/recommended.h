// What a model's file recommends to draw its answers by: GGUF's keys general.sampling.temp, top_k, top_p and
// min_p, which are the defaults of the flags of these names.
#pragma once

#include <optional>
#include <string>

#include "cli/options/options.h"
#include "gguf/gguf.h"

namespace dsv32 {

// `options` with what the file recommends where neither the command line nor the settings file says
// anything. Throws Error{model} for what cannot be drawn by.
Options with_recommended(Options options, const GgufFile& file);

// The value of that flag which the file recommends, as it would be typed. Throws Error{model}.
std::optional<std::string> recommended_value(const GgufFile& file, const std::string& flag);

}  // namespace dsv32
