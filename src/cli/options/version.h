// What this program is: its version, the revision it was built from, with what, for what, and of what.
#pragma once

#include <string>

namespace dsv32 {

// "dsv32 0.1.0 (c53694d)" in the first line; compiler, backends and libraries in the next ones.
std::string version_text();

}  // namespace dsv32
