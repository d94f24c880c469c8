// What is said without being asked anything: the screenful of help, the version, how an error looks.
//
// Flags are not listed here; each command's own help comes from the table of flags.
#pragma once

#include <string>

#include "base/error.h"

namespace dsv32 {

std::string version_line();  // "dsv32 0.1.0\n"
std::string overview();      // examples first, then the commands

// "dsv32: message\n" and, when there is one, "hint: ...\n"; escaped.
std::string error_text(const std::string& message, const std::string& hint = {});

}  // namespace dsv32
