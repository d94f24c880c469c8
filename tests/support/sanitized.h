// Whether this program was built with the sanitizers (`make test SAN=1`): it is several times slower then, so
// tests with many repetitions do fewer.
#pragma once

namespace dsv32 {

#ifdef __SANITIZE_ADDRESS__
inline constexpr bool kIsSanitized = true;
#else
inline constexpr bool kIsSanitized = false;
#endif

}  // namespace dsv32
