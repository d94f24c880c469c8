// The manual page, dsv32(1).
//
// Commands, flags, what a chat takes, examples and exit codes are those of the program's own tables.
#pragma once

#include <string>

namespace dsv32 {

// For man, in its macros.
std::string manual_page();

}  // namespace dsv32
