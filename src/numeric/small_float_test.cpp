// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "numeric/bf16.h"
#include "numeric/e2m1.h"
#include "numeric/e4m3.h"
#include "numeric/e5m2.h"

namespace nibble {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// A format as the tests see it: its finite magnitudes are the codes 0..kLargest, the sign is kSign.
struct Fp4 {
  using Type = E2M1;
  static constexpr int kLargest = 7, kSign = 8;
  static int code(E2M1 v) { return v.code; }
};
struct Fp8E4M3 {
  using Type = E4M3;
  static constexpr int kLargest = 0x7E, kSign = 0x80;
  static int code(E4M3 v) { return v.bits; }
};
struct Fp8E5M2 {
  using Type = E5M2;
  static constexpr int kLargest = 0x7B, kSign = 0x80;
  static int code(E5M2 v) { return v.bits; }
};

template <class F>
float value_of(int code) {
  return typename F::Type{static_cast<std::uint8_t>(code)}.value();
}

/// The meaning of "nearest, ties to even, saturating", by search over all codes in double precision.
template <class F>
int nearest_by_search(float x) {
  // Bounded first: distances to a huge value are all alike in double precision.
  const double a = std::min<double>(std::abs(x), F::Type::kMax);
  int best = 0;
  for (int c = 1; c <= F::kLargest; ++c) {
    const double d = std::abs(value_of<F>(c) - a), d_best = std::abs(value_of<F>(best) - a);
    if (d < d_best || (d == d_best && c % 2 == 0)) best = c;
  }
  return best | (std::signbit(x) ? F::kSign : 0);
}

template <class F>
class SmallFloatLaws : public ::testing::Test {};
using Formats = ::testing::Types<Fp4, Fp8E4M3, Fp8E5M2>;
TYPED_TEST_SUITE(SmallFloatLaws, Formats);

TYPED_TEST(SmallFloatLaws, CodesAreInTheOrderOfTheirValuesAndAllDistinct) {
  EXPECT_EQ(value_of<TypeParam>(0), 0.0f);
  for (int c = 1; c <= TypeParam::kLargest; ++c)
    EXPECT_GT(value_of<TypeParam>(c), value_of<TypeParam>(c - 1));
  EXPECT_EQ(value_of<TypeParam>(TypeParam::kLargest), TypeParam::Type::kMax);
}

TYPED_TEST(SmallFloatLaws, TheSignBitNegatesTheValueAndZeroKeepsItsSign) {
  for (int c = 0; c <= TypeParam::kLargest; ++c) {
    const float negative = value_of<TypeParam>(c | TypeParam::kSign);
    EXPECT_EQ(negative, -value_of<TypeParam>(c));
    EXPECT_TRUE(std::signbit(negative));
  }
}

TYPED_TEST(SmallFloatLaws, EncodingADecodedCodeGivesTheCode) {
  for (int sign : {0, TypeParam::kSign}) {
    for (int c = 0; c <= TypeParam::kLargest; ++c) {
      EXPECT_EQ(TypeParam::code(TypeParam::Type::nearest(value_of<TypeParam>(c | sign))), c | sign);
    }
  }
}

TYPED_TEST(SmallFloatLaws, TiesAndTheirNeighboursRoundAsTheDefinitionSays) {
  for (int c = 0; c < TypeParam::kLargest; ++c) {
    const float tie = 0.5f * (value_of<TypeParam>(c) + value_of<TypeParam>(c + 1));
    for (float x : {tie, std::nextafter(tie, 0.0f), std::nextafter(tie, kInf)}) {
      EXPECT_EQ(TypeParam::code(TypeParam::Type::nearest(x)), nearest_by_search<TypeParam>(x)) << x;
      EXPECT_EQ(TypeParam::code(TypeParam::Type::nearest(-x)), nearest_by_search<TypeParam>(-x)) << -x;
    }
  }
}

TYPED_TEST(SmallFloatLaws, EveryFiniteBf16ValueRoundsAsTheDefinitionSays) {
  for (int bits = 0; bits < 0x10000; ++bits) {
    const float x = bf16{static_cast<std::uint16_t>(bits)}.value();
    if (!is_finite(x)) continue;
    ASSERT_EQ(TypeParam::code(TypeParam::Type::nearest(x)), nearest_by_search<TypeParam>(x)) << x;
  }
}

TYPED_TEST(SmallFloatLaws, InfinityAndHugeValuesSaturate) {
  for (float x : {std::nextafter(TypeParam::Type::kMax, kInf), 1e9f, kFloatMax, kInf}) {
    EXPECT_EQ(TypeParam::code(TypeParam::Type::nearest(x)), TypeParam::kLargest) << x;
    EXPECT_EQ(TypeParam::code(TypeParam::Type::nearest(-x)), TypeParam::kLargest | TypeParam::kSign) << x;
  }
}

TEST(E2M1, DecodesTheSixteenCodesOfTheStandard) {
  const float expected[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  for (int c = 0; c < 8; ++c) EXPECT_EQ(value_of<Fp4>(c), expected[c]);
}

TEST(E2M1, NanBecomesPlusSixWhateverItsSignAndSmallNegativesKeepTheirSign) {
  EXPECT_EQ(E2M1::nearest(kNan).code, 0x7);
  EXPECT_EQ(E2M1::nearest(-kNan).code, 0x7);
  EXPECT_EQ(E2M1::stochastic(-kNan, 0).code, 0x7);
  EXPECT_EQ(E2M1::stochastic_exact(-kNan, 0xFFFFFF).code, 0x7);
  for (float x : {-0.0f, -1e-9f, -0.1f}) EXPECT_EQ(E2M1::nearest(x).code, 0x8) << x;
}

TEST(E4M3, RoundsTheTopBinadeToEven) {
  const float x[] = {256, 272, 288, 304, 320, 352, 384, 416, 432, 448};
  const int expected[] = {0x78, 0x78, 0x79, 0x7A, 0x7A, 0x7B, 0x7C, 0x7D, 0x7E, 0x7E};
  for (int i = 0; i < 10; ++i) EXPECT_EQ(E4M3::nearest(x[i]).bits, expected[i]) << x[i];
}

TEST(E4M3, SaturatesOrOverflowsToNanAsAsked) {
  const float above = std::nextafter(464.0f, kInf);
  for (float x : {448.0f, 464.0f, above, 480.0f, 1e9f, kInf}) {
    EXPECT_EQ(E4M3::nearest(x).value(), 448.0f);
    EXPECT_EQ(E4M3::nearest(-x).value(), -448.0f);
    EXPECT_EQ(E4M3::nearest_unsaturated(x).nan(), x > 464.0f) << x;
    EXPECT_EQ(E4M3::nearest_unsaturated(-x).nan(), x > 464.0f) << x;
  }
  EXPECT_EQ(E4M3::nearest_unsaturated(464.0f).bits, 0x7E);
}

TEST(E4M3, NanIsTheLastCodeOfEitherSign) {
  EXPECT_EQ(E4M3::nearest(kNan).bits, 0x7F);
  EXPECT_EQ(E4M3::nearest(-kNan).bits, 0x7F);
  EXPECT_EQ(E4M3::nearest_unsaturated(-kNan).bits, 0x7F);
  for (int c = 0; c < 256; ++c) EXPECT_EQ(std::isnan(value_of<Fp8E4M3>(c)), (c & 0x7F) == 0x7F);
}

TEST(E4M3, KeepsSubnormalsDownToHalfTheSmallest) {
  EXPECT_EQ(E4M3::nearest(0x1p-9f).bits, 1);
  EXPECT_EQ(E4M3::nearest(0x1p-10f).bits, 0);
  EXPECT_EQ(E4M3::nearest(std::nextafter(0x1p-10f, 1.0f)).bits, 1);
}

TEST(E5M2, SaturatesOrOverflowsToInfinityAsAsked) {
  EXPECT_EQ(E5M2::nearest(kInf).value(), 57344.0f);
  EXPECT_EQ(E5M2::nearest(-61440.0f).value(), -57344.0f);
  EXPECT_EQ(E5M2::nearest_unsaturated(kInf).value(), kInf);
  EXPECT_EQ(E5M2::nearest_unsaturated(-kInf).value(), -kInf);
  EXPECT_EQ(E5M2::nearest_unsaturated(61440.0f).value(), kInf);
  EXPECT_EQ(E5M2::nearest_unsaturated(std::nextafter(61440.0f, 0.0f)).value(), 57344.0f);
}

TEST(E5M2, EveryByteHasItsClass) {
  EXPECT_EQ(E5M2::nearest(-kNan).bits, 0x7F);
  for (int c = 0; c < 256; ++c) {
    EXPECT_EQ(std::isnan(value_of<Fp8E5M2>(c)), (c & 0x7F) > 0x7C) << c;
    EXPECT_EQ(std::isinf(value_of<Fp8E5M2>(c)), (c & 0x7F) == 0x7C) << c;
  }
}

}  // namespace
}  // namespace nibble
