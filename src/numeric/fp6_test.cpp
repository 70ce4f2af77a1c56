// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "numeric/e2m1.h"
#include "numeric/e2m3.h"
#include "numeric/e3m2.h"
#include "numeric/random_key.h"

namespace nibble {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

template <class Element>
class Fp6Laws : public ::testing::Test {};
using Elements = ::testing::Types<E2M3, E3M2>;
TYPED_TEST_SUITE(Fp6Laws, Elements);

template <class Element>
int nearest_by_search(float x) {
  const double a = std::min<double>(std::abs(x), Element::kMax);
  int best = 0;
  for (int c = 1; c < 32; ++c) {
    const double d = std::abs(Element{static_cast<std::uint8_t>(c)}.value() - a);
    const double d_best = std::abs(Element{static_cast<std::uint8_t>(best)}.value() - a);
    if (d < d_best || (d == d_best && c % 2 == 0)) best = c;
  }
  return best | (std::signbit(x) ? 0x20 : 0);
}

TYPED_TEST(Fp6Laws, EveryCodeIsTheNearestOfItsValueAndMinusZeroKeepsItsSign) {
  for (int c = 0; c < 64; ++c) {
    EXPECT_EQ(TypeParam::nearest(TypeParam{static_cast<std::uint8_t>(c)}.value()).bits, c);
  }
  EXPECT_EQ(TypeParam{0x1F}.value(), TypeParam::kMax);
}

TYPED_TEST(Fp6Laws, NearestIsNearestWithTiesToEvenOnGridsAndRandomNumbers) {
  for (int i = -4200; i <= 4200; ++i) {
    for (const float x : {static_cast<float>(i) / 128, std::nextafter(static_cast<float>(i) / 128, kInf)}) {
      ASSERT_EQ(TypeParam::nearest(x).bits, nearest_by_search<TypeParam>(x)) << x;
    }
  }
  for (std::uint64_t i = 0; i < 20000; ++i) {
    const float x =
        static_cast<float>(initial_normal(4, 4, i)) * std::ldexp(1.0f, static_cast<int>(i % 40) - 30);
    ASSERT_EQ(TypeParam::nearest(x).bits, nearest_by_search<TypeParam>(x)) << x;
  }
}

TYPED_TEST(Fp6Laws, InfinitiesSaturateAndANanBecomesTheLargest) {
  EXPECT_EQ(TypeParam::nearest(kInf).bits, 0x1F);
  EXPECT_EQ(TypeParam::nearest(-kInf).bits, 0x3F);
  EXPECT_EQ(TypeParam::nearest(-kNan).bits, 0x1F);
}

TEST(E2m1Away, TiesGoAwayFromZeroAndNothingElseDiffersFromNearestEven) {
  const float ties[] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
  for (int i = 0; i < 7; ++i) {
    EXPECT_EQ(E2M1::nearest_away(ties[i]).code, i + 1);
    EXPECT_EQ(E2M1::nearest_away(-ties[i]).code, (i + 1) | 8);
    EXPECT_EQ(E2M1::nearest_away(std::nextafter(ties[i], 0.0f)).code, i);
  }
  for (int i = -7000; i <= 7000; ++i) {
    const float x = static_cast<float>(i) / 1000 + 1e-5f;
    ASSERT_EQ(E2M1::nearest_away(x), E2M1::nearest(x)) << x;
  }
  EXPECT_EQ(E2M1::nearest_away(-0.0f).code, 8);
  EXPECT_EQ(E2M1::nearest_away(kInf).code, 7);
  EXPECT_EQ(E2M1::nearest_away(-kInf).code, 15);
  EXPECT_EQ(E2M1::nearest_away(-kNan).code, 7);
}

}  // namespace
}  // namespace nibble
