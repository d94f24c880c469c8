// See talk_name.h.
#include "cli/options/talk_name.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"

namespace dsv32 {

bool is_talk_name(std::string_view name) {
  const auto is_allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  };
  return !name.empty() && name.size() <= kMaxTalkName && name[0] != '.' &&
         std::ranges::all_of(name, is_allowed);
}

void check_talk_name(const std::string& name) {
  if (is_talk_name(name)) return;
  fail(ErrorKind::usage,
       format("'%s' is no name for a talk, expected 1 to %zu letters, digits, '.', '_' or '-', "
              "not beginning with '.'",
              visible(name, false, 80).c_str(), kMaxTalkName));
}

}  // namespace dsv32
