// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "numeric/random_key.h"
#include "quant/fp8_block.h"
#include "quant/mxfp4.h"
#include "quant/mxfp8.h"
#include "quant/operand.h"

namespace nibble {
namespace {

constexpr MxScaleRule kRules[] = {MxScaleRule::RoundUp, MxScaleRule::Floor, MxScaleRule::Even,
                                  MxScaleRule::Ceil, MxScaleRule::Round};

template <class Element>
int exponent(float amax, MxScaleRule rule) {
  return mx_scale<Element>(amax, rule).bits - 127;
}

struct Vector {
  float amax;
  int of[5];  ///< in the order of kRules
};

template <class Element>
void expect_exponents(std::initializer_list<Vector> vectors) {
  for (const Vector& v : vectors) {
    for (int r = 0; r < 5; ++r)
      EXPECT_EQ(exponent<Element>(v.amax, kRules[r]), v.of[r]) << v.amax << " " << r;
  }
}

TEST(MxRules, GiveTheExponentsOfTheirDefinitionsAtEveryEdge) {
  expect_exponents<E2M1>({{3.9999998f, {0, -1, 0, 0, -1}},
                          {4.0f, {0, 0, 0, 0, -1}},
                          {4.2426405f, {0, 0, 0, 1, -1}},
                          {4.242641f, {0, 0, 0, 1, 0}},
                          {6.0f, {0, 0, 0, 1, 0}},
                          {6.0000005f, {1, 0, 0, 1, 0}},
                          {6.9999995f, {1, 0, 0, 1, 0}},
                          {7.0f, {1, 0, 1, 1, 0}},
                          {7.9999995f, {1, 0, 1, 1, 0}},
                          {1023.99994f, {8, 7, 8, 8, 7}}});
  expect_exponents<E4M3>({{448.0f, {0, 0, 0, 1, 0}},
                          {448.00003f, {1, 0, 0, 1, 0}},
                          {480.0f, {1, 0, 0, 1, 0}},
                          {511.99997f, {1, 0, 1, 1, 0}},
                          {512.0f, {1, 1, 1, 1, 0}}});
  expect_exponents<E5M2>({{57344.0f, {0, 0, 0, 1, 0}}, {61440.0f, {1, 0, 1, 1, 0}}});
  expect_exponents<E2M3>({{7.5f, {0, 0, 0, 1, 0}}, {7.75f, {1, 0, 1, 1, 0}}, {8.0f, {1, 1, 1, 1, 0}}});
  expect_exponents<E3M2>({{28.0f, {0, 0, 0, 1, 0}}, {30.0f, {1, 0, 1, 1, 0}}, {31.0f, {1, 0, 1, 1, 0}}});
}

TEST(MxRules, RoundIsTheNearestWholeLogarithm) {
  for (std::uint64_t i = 0; i < 20000; ++i) {
    const float amax =
        std::ldexp(1.0f + static_cast<float>(initial_uniform(1, 1, i)), static_cast<int>(i % 90) - 45);
    const auto by_logarithm = [&](double max) {
      return static_cast<int>(std::lrint(std::log2(static_cast<double>(amax) / max)));
    };
    ASSERT_EQ(exponent<E2M1>(amax, MxScaleRule::Round), by_logarithm(6)) << amax;
    ASSERT_EQ(exponent<E4M3>(amax, MxScaleRule::Round), by_logarithm(448)) << amax;
  }
}

TEST(MxRules, StayInsideTheFormatForZeroTheSmallestAndTheLargestAndShowWhatIsNotFinite) {
  for (MxScaleRule rule : kRules) {
    EXPECT_EQ(mx_scale<E2M1>(0.0f, rule).bits, 0);
    EXPECT_EQ(mx_scale<E5M2>(std::numeric_limits<float>::denorm_min(), rule).bits, 0);
    EXPECT_LE(mx_scale<E2M1>(kFloatMax, rule).bits, 0xFE);
    EXPECT_TRUE(mx_scale<E2M1>(std::numeric_limits<float>::quiet_NaN(), rule).nan());
    const E8M0 infinite = mx_scale<E2M1>(std::numeric_limits<float>::infinity(), rule);
    EXPECT_EQ(infinite.bits, rule == MxScaleRule::RoundUp ? 0xFE : 0xFF);
  }
}

using Block = float[32];

void fill_normal(Block& x, std::uint64_t seed) {
  for (int j = 0; j < 32; ++j) {
    x[j] = static_cast<float>(initial_normal(seed, 1, static_cast<std::uint64_t>(j)));
  }
}

TEST(MxRules, RoundUpCeilAndThreeQuartersClipNothing) {
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    Block x;
    fill_normal(x, seed);
    for (MxScaleRule rule : {MxScaleRule::RoundUp, MxScaleRule::Ceil, MxScaleRule::ThreeQuarters}) {
      const Mxfp4Block b = encode_mxfp4(x, NearestEven{}, rule);
      const float factor = mxfp4_tensor_factor(rule);
      for (int j = 0; j < 32; ++j) {
        const float unit = b.scale.value() * factor;
        ASSERT_LE(std::abs(x[j]), 6 * unit * 1.000001f);
        ASSERT_LE(std::abs(decode(unpack_code(b.codes, j), b.scale) * factor - x[j]), unit * 1.000001f);
      }
    }
  }
}

TEST(MxRules, DecodedValuesEncodeToThemselvesUnderEveryRule) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    for (MxScaleRule rule : kRules) {
      Block x, y;
      fill_normal(x, seed);
      const Mxfp4Block b = encode_mxfp4(x, NearestAway{}, rule);
      for (int j = 0; j < 32; ++j) y[j] = decode(unpack_code(b.codes, j), b.scale);
      // Under the scale they were made with: the rules that clip may choose a smaller one for the result.
      for (int j = 0; j < 32; ++j) {
        ASSERT_EQ(E2M1::nearest(y[j] * b.scale.inverse()), unpack_code(b.codes, j));
      }
    }
  }
}

TEST(MxRules, TiesToEvenAndAwayDifferOnTiesAlone) {
  const Block x = {6.0f, 0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f, -0.25f, -5.0f, 0.3f, 4.9f};
  const Mxfp4Block even = encode_mxfp4(x, NearestEven{}), away = encode_mxfp4(x, NearestAway{});
  const int to_even[] = {7, 0, 2, 2, 4, 4, 6, 6, 8, 14, 1, 6};
  const int to_away[] = {7, 1, 2, 3, 4, 5, 6, 7, 9, 15, 1, 6};
  for (int j = 0; j < 12; ++j) {
    EXPECT_EQ(unpack_code(even.codes, j).code, to_even[j]) << j;
    EXPECT_EQ(unpack_code(away.codes, j).code, to_away[j]) << j;
  }
}

TEST(Mxfp6Operand, CodeTimesScaleIsExactInBf16) {
  for (int c = 0; c < 64; ++c) {
    const E2M3 a{static_cast<std::uint8_t>(c)};
    const E3M2 b{static_cast<std::uint8_t>(c)};
    for (int e : {10, 100, 127, 200, 250}) {
      const E8M0 scale{static_cast<std::uint8_t>(e)};
      EXPECT_EQ(exact_operand(a, scale).value(), a.value() * scale.value());
      EXPECT_EQ(exact_operand(b, scale).value(), b.value() * scale.value());
    }
  }
}

TEST(Fp8BlockScale, OfAPowerOfTwoIsItsExponentByteFromZeroBlocksToTheSmallestAmax) {
  for (float amax : {0.0f, 1e-45f, 1e-38f, 3.5f, 448.0f, 500.0f, kFloatMax}) {
    const auto scale = Fp8Scale::from_amax<E4M3>(amax, kBf16Max, true);
    EXPECT_EQ(power_of_two_scale(scale).value(), scale.decode) << amax;
    EXPECT_LE(amax * scale.encode, 448.0f) << amax;
  }
  EXPECT_EQ(power_of_two_scale(Fp8Scale::from_amax<E4M3>(448.0f, kBf16Max, true)).value(), 1.0f);
}

}  // namespace
}  // namespace nibble
