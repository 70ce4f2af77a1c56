// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "numeric/random_key.h"
#include "quant/fp8_tensor.h"
#include "quant/mxfp4.h"
#include "quant/mxfp8.h"
#include "quant/operand.h"

namespace nibble {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

using Block = float[32];

void fill_normal(Block& x, std::uint64_t seed, float size) {
  for (int j = 0; j < 32; ++j) {
    x[j] = size * static_cast<float>(initial_normal(seed, 1, static_cast<std::uint64_t>(j)));
  }
}

TEST(Mxfp4Block, TheDefaultScaleIsTheSmallestThatClipsNothing) {
  EXPECT_EQ(mxfp4_scale(6.0f).value(), 1.0f);
  EXPECT_EQ(mxfp4_scale(std::nextafter(6.0f, 7.0f)).value(), 2.0f);
  EXPECT_EQ(mxfp4_scale(3.0f).value(), 0.5f);
  EXPECT_EQ(mxfp4_scale(0.0f).bits, 0);
  EXPECT_EQ(mxfp4_scale(kInf).bits, 0xFE);
}

TEST(Mxfp4Block, TheFloorRuleTakesTheExponentOfTheAmax) {
  EXPECT_EQ(mxfp4_scale(std::nextafter(1024.0f, 0.0f), MxScaleRule::Floor).value(), 128.0f);
  EXPECT_EQ(mxfp4_scale(7.9f, MxScaleRule::Floor).value(), 1.0f);
}

TEST(Mxfp4Block, DecodedValueIsWithinOneScaleOfInputAndDecodedValuesEncodeToThemselves) {
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    Block x, y;
    fill_normal(x, seed, std::ldexp(1.0f, static_cast<int>(seed % 100) - 50));
    const Mxfp4Block b = encode_mxfp4(x, NearestEven{});
    for (int j = 0; j < 32; ++j) {
      y[j] = decode(unpack_code(b.codes, j), b.scale);
      ASSERT_LE(std::abs(y[j] - x[j]), b.scale.value());
      ASSERT_LE(std::abs(x[j]), 6 * b.scale.value()) << "nothing is clipped";
    }
    const Mxfp4Block again = encode_mxfp4(y, NearestEven{});
    for (int j = 0; j < 32; ++j) ASSERT_EQ(decode(unpack_code(again.codes, j), again.scale), y[j]);
  }
}

TEST(Mxfp4Block, PlusZeroIsCodeZeroAndTiesGoToEven) {
  Block x = {6.0f, 0.75f, -0.75f, 0.0f, -0.0f, 5.0f};
  const Mxfp4Block b = encode_mxfp4(x, NearestEven{});
  const int codes[6] = {7, 2, 0xA, 0, 8, 6};
  for (int j = 0; j < 6; ++j) EXPECT_EQ(unpack_code(b.codes, j).code, codes[j]);
}

template <class Element>
class Mxfp8Laws : public ::testing::Test {};
using Elements = ::testing::Types<E4M3, E5M2>;
TYPED_TEST_SUITE(Mxfp8Laws, Elements);

TYPED_TEST(Mxfp8Laws, TheLargestCodeOfABlockIsInTheUpperHalfOfTheRange) {
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    Block x;
    fill_normal(x, seed, std::ldexp(1.0f, static_cast<int>(seed % 100) - 50));
    const auto b = encode_mxfp8<TypeParam>(x);
    float largest = 0;
    for (const TypeParam& c : b.codes) largest = std::max(largest, std::abs(c.value()));
    ASSERT_GE(largest, TypeParam::kMax / 2);
    ASSERT_LE(largest, TypeParam::kMax);
  }
}

TYPED_TEST(Mxfp8Laws, DecodedValuesAreCloseAndEncodeToThemselves) {
  const float relative = std::is_same_v<TypeParam, E4M3> ? 0x1p-4f : 0x1p-3f;
  const float absolute = bits_float(TypeParam::Bits::kStep) / 2;
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    Block x, y;
    fill_normal(x, seed, 1.0f);
    const auto b = encode_mxfp8<TypeParam>(x);
    for (int j = 0; j < 32; ++j) {
      y[j] = decode(b.codes[j], b.scale);
      ASSERT_LE(std::abs(y[j] - x[j]), std::max(relative * std::abs(x[j]), absolute * b.scale.value()));
    }
    const auto again = encode_mxfp8<TypeParam>(y);
    for (int j = 0; j < 32; ++j) ASSERT_EQ(decode(again.codes[j], again.scale), y[j]);
  }
}

TYPED_TEST(Mxfp8Laws, ZeroBlocksAndTheSmallestAndLargestValuesStayFinite) {
  for (float v : {0.0f, std::numeric_limits<float>::denorm_min(), 1e-40f, 0x1p-126f, kFloatMax}) {
    Block x = {v, -v};
    const auto b = encode_mxfp8<TypeParam>(x);
    EXPECT_FALSE(b.scale.nan());
    for (const TypeParam& c : b.codes) EXPECT_FALSE(c.nan());
    if (v == 0.0f) {
      EXPECT_EQ(b.scale.bits, 0);
    }
  }
}

/// Enumerates codes x scales and checks that BF16 holds the product wherever the header says so.
template <class Code>
void expect_exact_operands(int codes) {
  for (int e = 0; e < 255; ++e) {
    const E8M0 scale{static_cast<std::uint8_t>(e)};
    for (int c = 0; c < codes; ++c) {
      const Code code{static_cast<std::uint8_t>(c)};
      const double value = code.value(), product = value * static_cast<double>(scale.value());
      if (!std::isfinite(value) || std::abs(product) >= 0x1p128) continue;
      const double steps = product / 0x1p-133;
      if (steps != std::floor(steps)) continue;
      ASSERT_EQ(static_cast<double>(exact_operand(code, scale).value()), product) << c << " " << e;
    }
  }
}

TEST(MxOperand, CodeTimesScaleIsExactInBf16) {
  expect_exact_operands<E2M1>(16);
  expect_exact_operands<E4M3>(256);
  expect_exact_operands<E5M2>(256);
  for (int c = 0; c < 16; ++c) {
    const double product = static_cast<double>(E2M1{static_cast<std::uint8_t>(c)}.value()) * 0x1p-127;
    EXPECT_EQ(product / 0x1p-133, std::floor(product / 0x1p-133)) << "no MXFP4 value is below BF16's step";
  }
}

TEST(MxOperand, AnFp8ElementIsItsOwnOperand) {
  for (int c = 0; c < 256; ++c) {
    const E4M3 a{static_cast<std::uint8_t>(c)};
    const E5M2 b{static_cast<std::uint8_t>(c)};
    EXPECT_TRUE(a.nan() || exact_operand(a).value() == a.value()) << c;
    EXPECT_TRUE(b.nan() || exact_operand(b).value() == b.value()) << c;
  }
}

TEST(Fp8Scale, MapsTheAmaxToTheLargestElement) {
  const auto s = Fp8Scale::from_amax<E4M3>(3.5f, kFloatMax);
  EXPECT_EQ(s.encode, 128.0f);
  EXPECT_EQ(s.decode, 1.0f / 128.0f);
  EXPECT_EQ(encode_fp8<E4M3>(-3.5f, s).bits, 0xFE);
  EXPECT_EQ(decode_fp8(encode_fp8<E4M3>(3.5f, s), s), 3.5f);
}

TEST(Fp8Scale, IsOneWithoutAUsableAmaxAndBoundedByTheInputsTypeWhenItOverflows) {
  for (float amax : {0.0f, kInf, std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_EQ(Fp8Scale::from_amax<E5M2>(amax, kFloatMax).encode, 1.0f);
  }
  EXPECT_EQ(Fp8Scale::from_amax<E4M3>(1e-40f, kBf16Max).encode, kBf16Max);
  EXPECT_EQ(Fp8Scale::from_amax<E4M3>(1e-40f, kFloatMax).encode, kFloatMax);
  EXPECT_GT(Fp8Scale::from_amax<E4M3>(1e-40f, kFloatMax).decode, 0.0f) << "subnormal, not flushed";
}

TEST(Fp8Scale, RoundsDownToAPowerOfTwoWhenAsked) {
  EXPECT_EQ(Fp8Scale::from_amax<E4M3>(1.0f, kFloatMax, true).encode, 256.0f);
  EXPECT_EQ(Fp8Scale::from_amax<E4M3>(3.5f, kFloatMax, true).encode, 128.0f);
}

}  // namespace
}  // namespace nibble
