// How a bound of Quest becomes a code of four bits (backend/cache_layout.h): steps to the nearest, from -7 to
// 7, plus 8.
#pragma once

namespace dsv32 {

constexpr float kMostSteps = 7;
constexpr int kZeroStep = 8;           // the code of 0
constexpr float kLeastBound = 1e-30f;  // a tile of smaller magnitudes is zeros: they have no inverse

}  // namespace dsv32
