// base/numbers.h against exhaustive round trips and the definitions' corner values.
#include <boost/test/unit_test.hpp>

#include <cmath>

#include "base/numbers.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(numbers)

BOOST_AUTO_TEST_CASE(every_f16_survives_the_round_trip) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = f16_to_f32(static_cast<uint16_t>(bits));
    if (std::isnan(value))
      BOOST_TEST(std::isnan(f16_to_f32(f32_to_f16(value))));
    else
      BOOST_TEST(f32_to_f16(value) == bits);
  }
}

BOOST_AUTO_TEST_CASE(every_e4m3_survives_the_round_trip) {
  for (uint32_t bits = 0; bits < 0x100; ++bits) {
    const float value = e4m3_to_f32(static_cast<uint8_t>(bits));
    if (std::isnan(value))
      BOOST_TEST((bits & 0x7f) == 0x7f);
    else
      BOOST_TEST(f32_to_e4m3(value) == bits);
  }
}

// Between two neighbours the nearer wins, and the even code wins a tie: checked at, below and above every
// midpoint.
BOOST_AUTO_TEST_CASE(e4m3_rounds_to_nearest_even) {
  for (uint8_t low = 0; low < 0x7e; ++low) {
    const float a = e4m3_to_f32(low), b = e4m3_to_f32(low + 1);
    const float middle = (a + b) / 2;
    BOOST_TEST(f32_to_e4m3(middle) == (low % 2 == 0 ? low : low + 1));
    BOOST_TEST(f32_to_e4m3(std::nextafter(middle, a)) == low);
    BOOST_TEST(f32_to_e4m3(std::nextafter(middle, b)) == low + 1);
  }
  BOOST_TEST(f32_to_e4m3(1e9f) == 0x7e);
  BOOST_TEST(f32_to_e4m3(-1e9f) == 0xfe);
}

BOOST_AUTO_TEST_CASE(bf16_rounds_to_nearest_even) {
  BOOST_TEST(f32_to_bf16(1.0f) == 0x3f80);
  BOOST_TEST(f32_to_bf16(1.00390625f) == 0x3f80);  // exactly between 1 and the next: even wins
  BOOST_TEST(f32_to_bf16(1.01171875f) == 0x3f82);
  BOOST_TEST(std::isnan(bf16_to_f32(f32_to_bf16(NAN))));
}

// 2^ceil(log2(amax / 448)), and the scaled maximum always fits.
BOOST_AUTO_TEST_CASE(tile_scale_is_the_smallest_power_of_two_that_fits) {
  for (float amax = 1e-5f; amax < 1e6f; amax *= 1.0371f) {
    const float scale = ue8m0_to_f32(e4m3_tile_scale(amax));
    const float clamped = std::fmax(amax, 1e-4f);
    BOOST_TEST(clamped / scale <= 448.0f);
    BOOST_TEST(clamped / (scale / 2) > 448.0f);
  }
  BOOST_TEST(ue8m0_to_f32(e4m3_tile_scale(448.0f)) == 1.0f);
  BOOST_TEST(ue8m0_to_f32(e4m3_tile_scale(std::nextafter(448.0f, 1e9f))) == 2.0f);
}

BOOST_AUTO_TEST_SUITE_END()
