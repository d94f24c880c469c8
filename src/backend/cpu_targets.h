// Highway's instruction sets that the CPU's kernels are compiled for; include it before
// <hwy/foreach_target.h>.
#pragma once

// Machines with SSSE3 but not SSE4 are extinct. SVE registers have no compile-time size; machines with SVE
// use NEON.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
