// Whether this program was built with the sanitizers (`make test SAN=1`): it is several times slower then,
// and tests that look for the same thing many times look fewer times.
#pragma once

namespace dsv32 {

#ifdef __SANITIZE_ADDRESS__
inline constexpr bool kIsSanitized = true;
#else
inline constexpr bool kIsSanitized = false;
#endif

}  // namespace dsv32
