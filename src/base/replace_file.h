// A small file that is replaced whole: whoever reads it sees the bytes as they were or as they are.
#pragma once

#include <string>
#include <string_view>

#include "base/file_system.h"

namespace dsv32 {

// `name` gets the bytes by a rename, when they are durable under the name `temporary`, which must be free. 0,
// or a negative errno: then `temporary` is gone and `name` is as it was, or as it is but perhaps not durable.
int replace_file(FileSystem& fs, int directory, const std::string& name, const std::string& temporary,
                 std::string_view bytes);

}  // namespace dsv32
