// Terms of the texts that a schema's `pattern` and `format` accept.
//
// Patterns are the regular part of ECMA-262's expressions: characters, `.`, classes such as [a-f0-9] and \d
// \D \w \W \s \S, escapes, groups, `|`, `* + ? {n} {n,} {n,m}` also lazy, and ^ and $ at the ends of a
// branch. A branch without ^ or $ may have any text before or after it, as the standard says. Refused:
// lookaround, back references, \b, \B, \p, and repetitions that need more than kMostPatternStates.
#pragma once

#include <optional>
#include <string_view>

#include "constrain/terms.h"

namespace dsv32 {

inline constexpr int64_t kMostPatternStates = 2000;

// `pattern` is well-formed UTF-8. Throws Error{usage} that names the fault.
Terms::Id pattern_term(Terms& terms, std::string_view pattern);

// date, date-time, time (RFC 3339) and uuid; nothing for any other format.
std::optional<Terms::Id> format_term(Terms& terms, std::string_view format);

}  // namespace dsv32
