// Which of Highway's instruction sets the CPU's kernels are compiled for, before <hwy/foreach_target.h>.
#pragma once

// SSSE3 machines without SSE4 are gone; SVE's registers have no size at compile time, and NEON serves there.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
