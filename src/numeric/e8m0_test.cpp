// SPDX-License-Identifier: Apache-2.0
#include "numeric/e8m0.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace nibble {
namespace {

TEST(E8M0, EveryByteIsItsPowerOfTwoAndTheLastIsNan) {
  for (int e = 0; e < 255; ++e) {
    const E8M0 s{static_cast<std::uint8_t>(e)};
    EXPECT_EQ(s.value(), std::ldexp(1.0f, e - 127)) << e;
    EXPECT_EQ(s.value() * s.inverse(), 1.0f) << e;
    EXPECT_EQ(E8M0::round_up(s.value()), s) << e;
  }
  EXPECT_TRUE(std::isnan(E8M0{255}.value()));
  EXPECT_TRUE(std::isnan(E8M0{255}.inverse()));
  EXPECT_GT(E8M0{0}.value(), 0.0f) << "0x00 is 2^-127, not zero";
}

TEST(E8M0, RoundUpGivesTheSmallestPowerThatIsAtLeastTheValue) {
  for (int e = 0; e < 254; ++e) {
    const float power = E8M0{static_cast<std::uint8_t>(e)}.value();
    EXPECT_EQ(E8M0::round_up(std::nextafter(power, 1e38f)).bits, e + 1);
    EXPECT_EQ(E8M0::round_up(1.5f * power).bits, e + 1);
    EXPECT_EQ(E8M0::round_up(std::nextafter(2.0f * power, 0.0f)).bits, e + 1);
  }
}

TEST(E8M0, RoundUpAtTheEdges) {
  EXPECT_EQ(E8M0::round_up(0.0f).bits, 0x00);
  EXPECT_EQ(E8M0::round_up(std::numeric_limits<float>::denorm_min()).bits, 0x00);
  EXPECT_EQ(E8M0::round_up(0x1p-127f).bits, 0x00) << "a subnormal that fits the smallest scale stays";
  EXPECT_EQ(E8M0::round_up(std::nextafter(0x1p-127f, 1.0f)).bits, 0x01);
  EXPECT_EQ(E8M0::round_up(kFloatMax).bits, 0xFE);
  EXPECT_EQ(E8M0::round_up(std::numeric_limits<float>::infinity()).bits, 0xFE);
  EXPECT_EQ(E8M0::round_up(std::numeric_limits<float>::quiet_NaN()).bits, 0xFF);
}

TEST(E8M0, FloorReadsTheExponentAndNotAnInexactLogarithm) {
  const float below_1024 = std::nextafter(1024.0f, 0.0f);  // log2f of it is 10 in FP32
  EXPECT_EQ(E8M0::floor_log2(below_1024, 2).bits, 127 + 9 - 2);
  EXPECT_EQ(E8M0::floor_log2(1024.0f, 2).bits, 127 + 10 - 2);
  EXPECT_EQ(E8M0::floor_log2(0.0f, 2).bits, 0x00);
  EXPECT_EQ(E8M0::floor_log2(std::numeric_limits<float>::infinity(), 2).bits, 0xFF);
  EXPECT_EQ(E8M0::floor_log2(std::numeric_limits<float>::quiet_NaN(), 2).bits, 0xFF);
}

}  // namespace
}  // namespace nibble
