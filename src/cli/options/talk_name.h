// What a talk may be called: its name is a file's too.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace dsv32 {

constexpr size_t kMaxTalkName = 64;  // characters

// 1 to 64 letters, digits, '.', '_' and '-', the first of them no '.'.
bool is_talk_name(std::string_view name);

// Throws Error{usage} unless it is one.
void check_talk_name(const std::string& name);

}  // namespace dsv32
