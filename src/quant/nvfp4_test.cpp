// SPDX-License-Identifier: Apache-2.0
#include "quant/nvfp4.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>

#include "numeric/random_key.h"
#include "quant/operand.h"

namespace nibble {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

using Block = float[16];

/// Fills x with normal values of magnitude `size` and returns their amax.
float fill_normal(Block& x, std::uint64_t seed, float size) {
  float amax = 0;
  for (int j = 0; j < 16; ++j) {
    x[j] = size * static_cast<float>(initial_normal(seed, 0, static_cast<std::uint64_t>(j)));
    amax = amax_dropping_nan(amax, x[j]);
  }
  return amax;
}

Stochastic<16> random_block(std::uint64_t draw) {
  const RandomKey key{.seed = 11, .step = 0, .layer = 0, .role = 0, .first_element = 0};
  const PhiloxBlock bytes = random_bytes(key, draw);
  Stochastic<16> round{};
  for (int j = 0; j < 16; ++j) round.random[j] = bytes.byte(j);
  return round;
}

float decoded(const Nvfp4Block& b, int j, float amax) {
  return decode(unpack_code(b.codes, j), b.scale, amax);
}

TEST(TensorScale, IsTheRangeOverTheAmaxWithItsFallbacks) {
  EXPECT_EQ(TensorScale::from_amax(2688.0f).encode, 1.0f);
  EXPECT_EQ(TensorScale::from_amax(0.5f).encode, 5376.0f);
  EXPECT_EQ(TensorScale::from_amax(0.0f).encode, 1.0f);
  EXPECT_EQ(TensorScale::from_amax(kInf).encode, 1.0f);
  EXPECT_EQ(TensorScale::from_amax(kInf).amax, kInf) << "decoding keeps the overflow visible";
  EXPECT_EQ(TensorScale::from_amax(kNan).encode, kFloatMax);
  for (float tiny : {7.8e-36f, 1e-40f, std::numeric_limits<float>::denorm_min()}) {
    EXPECT_EQ(TensorScale::from_amax(tiny).encode, kFloatMax) << tiny;
    EXPECT_GT(TensorScale::from_amax(tiny).decode, 0.0f) << "subnormal, not flushed";
  }
  EXPECT_EQ(TensorScale::from_amax(kFloatMax).encode, 2688.0f / kFloatMax);
}

TEST(TensorScale, ConstantsHaveTheBitsOfTheSource) {
  EXPECT_EQ(float_bits(nvfp4::kOneSixth), 0x3E2AAAABu);
  EXPECT_EQ(float_bits(nvfp4::kInverseRange), 0x39C30C31u);
  EXPECT_EQ(float_bits(nvfp4::kInverseRangeSquared), 0x34149B93u);
}

TEST(BlockScale, TheBlockWithTheTensorsAmaxUsesTheWholeRangeOfTheScale) {
  for (float amax : {1.0f, 3.7230983f, 1e-20f, 4.375f, 1e30f}) {
    EXPECT_EQ(block_scale(amax, TensorScale::from_amax(amax)).bits, 0x7E) << amax;
  }
}

TEST(BlockScale, FollowsTheOrderOfOperationsOfTheProfile) {
  const auto scale = [](float amax, float block, Profile p) {
    return block_scale(block, TensorScale::from_amax(amax), p).value();
  };
  EXPECT_EQ(scale(4.0625f, 3.046875f, Profile::Te), 352.0f);
  EXPECT_EQ(scale(4.375f, 2.265625f, Profile::Te), 240.0f);
  EXPECT_EQ(scale(4.375f, 2.65625f, Profile::Te), 288.0f);
  EXPECT_EQ(scale(4.375f, 2.65625f, Profile::Te213), 288.0f);
}

TEST(BlockScale, UnderflowsToSubnormalsAndThenToZeroAndNeverEarlier) {
  const TensorScale g = TensorScale::from_amax(1.0f);
  const std::pair<float, float> expected[] = {{1e-5f, 0x1p-8f}, {7e-6f, 0x1p-8f},    {6.49e-6f, 0x1p-9f},
                                              {3e-6f, 0x1p-9f}, {2.18e-6f, 0x1p-9f}, {2.17e-6f, 0.0f}};
  for (const auto& [amax, scale] : expected) EXPECT_EQ(block_scale(amax, g).value(), scale) << amax;
}

TEST(Nvfp4Block, TiesGoToTheEvenCode) {
  const Block x = {6,     5,      3.5f,   2.5f,   1.75f,  1.25f, 0.75f, 0.25f,
                   -0.0f, -0.25f, -0.75f, -1.25f, -1.75f, -2.5f, -3.5f, -5};
  const int codes[16] = {7, 6, 6, 4, 4, 2, 2, 0, 8, 8, 0xA, 0xA, 0xC, 0xC, 0xE, 0xE};
  const Nvfp4Block b = encode_block(x, TensorScale::from_amax(2688.0f), Profile::Te, NearestEven{});
  EXPECT_EQ(b.scale.value(), 1.0f);
  for (int j = 0; j < 16; ++j) EXPECT_EQ(unpack_code(b.codes, j).code, codes[j]) << x[j];
}

TEST(Nvfp4Block, EvenPlacesAreInTheLowHalfOfAByte) {
  Block x = {};
  x[2] = 6;
  x[3] = -1;
  const Nvfp4Block b = encode_block(x, TensorScale::from_amax(2688.0f), Profile::Te, NearestEven{});
  EXPECT_EQ(b.codes[1], 0xA7);
}

TEST(Nvfp4Block, ZeroKeepsItsSignAsATinyNegativeDoes) {
  Block x = {6, -0.0f, -1e-9f, 0.0f};
  const Nvfp4Block b = encode_block(x, TensorScale::from_amax(6.0f), Profile::Te, NearestEven{});
  EXPECT_EQ(unpack_code(b.codes, 1).code, 0x8);
  EXPECT_EQ(unpack_code(b.codes, 2).code, 0x8);
  EXPECT_EQ(unpack_code(b.codes, 3).code, 0x0);
}

TEST(Nvfp4Block, AZeroBlockAndAZeroTensorHaveZeroCodesAndAZeroScale) {
  const Block x = {};
  for (float amax : {0.0f, 1e-30f, 1.0f, kFloatMax}) {
    for (const Nvfp4Block& b :
         {encode_block(x, TensorScale::from_amax(amax), Profile::Te, NearestEven{}),
          encode_block(x, TensorScale::from_amax(amax), Profile::Te, random_block(3))}) {
      EXPECT_EQ(b.scale.bits, 0);
      for (int j = 0; j < 16; ++j) {
        EXPECT_EQ(unpack_code(b.codes, j).code, 0);
        EXPECT_EQ(decoded(b, j, amax), 0.0f);
      }
    }
  }
}

TEST(Nvfp4Block, AScaleThatUnderflowsLeavesCodesOfSixThatDecodeToZero) {
  Block x;
  for (int j = 0; j < 16; ++j) x[j] = j % 2 ? -2.17e-6f : 1e-6f;
  const Nvfp4Block b = encode_block(x, TensorScale::from_amax(1.0f), Profile::Te, NearestEven{});
  EXPECT_EQ(b.scale.bits, 0);
  for (int j = 0; j < 16; ++j) {
    EXPECT_EQ(unpack_code(b.codes, j).code, j % 2 ? 0xF : 0x7);
    EXPECT_EQ(decoded(b, j, 1.0f), 0.0f);
  }
}

TEST(Nvfp4Block, ANanElementBecomesPlusSixUnderTheSourcesRule) {
  Block x = {1, kNan, -kNan, 2};
  const Nvfp4Block b = encode_block(x, TensorScale::from_amax(2.0f), Profile::Te, NearestEven{});
  EXPECT_EQ(b.scale.bits, 0x7E) << "the maximum drops NaN";
  EXPECT_EQ(unpack_code(b.codes, 1).code, 0x7);
  EXPECT_EQ(unpack_code(b.codes, 2).code, 0x7);
}

TEST(Nvfp4Block, AnInfinityStaysVisibleWhenDecoded) {
  Block x = {1, kInf, -kInf, 2};
  const Nvfp4Block b = encode_block(x, TensorScale::from_amax(kInf), Profile::Te, NearestEven{});
  EXPECT_EQ(b.scale.bits, 0x7E);
  EXPECT_EQ(decoded(b, 1, kInf), kInf);
  EXPECT_EQ(decoded(b, 2, kInf), -kInf);
}

TEST(Nvfp4Block, DecodedValueIsWithinOneScaleOfInput) {
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    Block x;
    const float size = std::exp(-0.005f * static_cast<float>(seed % 1000));
    const float amax = std::max(fill_normal(x, seed, size), 4.0f);
    const TensorScale g = TensorScale::from_amax(amax);
    for (Profile p : {Profile::Te, Profile::Te213}) {
      const Nvfp4Block near = encode_block(x, g, p, NearestEven{});
      const Nvfp4Block noisy = encode_block(x, g, p, random_block(seed));
      ASSERT_GE(near.scale.value(), 0x1p-6f) << "this law is about normal scales";
      ASSERT_EQ(near.scale, noisy.scale) << "only codes are random";
      const float s = decode_factor(near.scale, amax) * (1 + 0x1p-20f);
      for (int j = 0; j < 16; ++j) {
        ASSERT_LE(std::abs(decoded(near, j, amax) - x[j]), s);
        ASSERT_LT(std::abs(decoded(noisy, j, amax) - x[j]), 2 * s);
      }
    }
  }
}

TEST(Nvfp4Block, ABlockThatWasDecodedEncodesToTheSameCodesAndScale) {
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    Block x, y;
    const float amax = std::max(fill_normal(x, seed, 1.0f), 2.0f + 0.01f * static_cast<float>(seed));
    const TensorScale g = TensorScale::from_amax(amax);
    const Nvfp4Block b = encode_block(x, g, Profile::Te, NearestEven{});
    for (int j = 0; j < 16; ++j) y[j] = decoded(b, j, amax);
    const Nvfp4Block again = encode_block(y, g, Profile::Te, NearestEven{});
    ASSERT_EQ(again.scale, b.scale);
    for (int i = 0; i < 8; ++i) ASSERT_EQ(again.codes[i], b.codes[i]);
  }
}

TEST(Nvfp4Block, NoAbsoluteThresholdExists) {
  // A power of two on the whole tensor moves into the tensor scale and leaves every byte as it was.
  for (int exponent : {-100, -60, -24, -7, 9, 80}) {
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
      Block x, y;
      const float amax = fill_normal(x, seed, 1.0f);
      for (int j = 0; j < 16; ++j) y[j] = std::ldexp(x[j], exponent);
      const Nvfp4Block a = encode_block(x, TensorScale::from_amax(amax), Profile::Te, NearestEven{});
      const Nvfp4Block b =
          encode_block(y, TensorScale::from_amax(std::ldexp(amax, exponent)), Profile::Te, NearestEven{});
      ASSERT_EQ(a.scale, b.scale) << exponent;
      for (int i = 0; i < 8; ++i) ASSERT_EQ(a.codes[i], b.codes[i]) << exponent;
    }
  }
}

TEST(Nvfp4Block, TheMeanOfStochasticRoundingIsTheInputLessTheEightBitShrink) {
  Block x = {6.0f};  // holds the scale at 1: 6 is on the grid
  const TensorScale g = TensorScale::from_amax(2688.0f);
  for (int j = 1; j < 16; ++j) x[j] = 0.37f * static_cast<float>(j) - 2.9f;
  constexpr int kDraws = 20000;
  std::array<double, 16> sum{};
  for (int d = 0; d < kDraws; ++d) {
    const Nvfp4Block b = encode_block(x, g, Profile::Te, random_block(static_cast<std::uint64_t>(d)));
    for (int j = 0; j < 16; ++j) sum[static_cast<std::size_t>(j)] += unpack_code(b.codes, j).value();
  }
  for (int j = 1; j < 16; ++j) {
    const double a = std::abs(x[j]), step = a < 2 ? 0.5 : 1.0, low = std::floor(a / step) * step;
    const double p = std::floor(256 * (a - low) / step) / 256;
    const double mean = std::copysign(low + step * p, x[j]);
    EXPECT_NEAR(sum[static_cast<std::size_t>(j)] / kDraws, mean, 4.5 * step * std::sqrt(p * (1 - p) / kDraws))
        << x[j];
  }
}

/// A 16 x 16 tile quantised along its rows and along its columns; returns how many decoded values differ.
int values_that_differ_between_the_copies(bool square) {
  float tile[16][16];
  float amax = 0;
  for (int r = 0; r < 16; ++r)
    amax = std::max(amax, fill_normal(tile[r], static_cast<std::uint64_t>(r), 1.0f));
  const TensorScale g = TensorScale::from_amax(2 * amax);
  const E4M3 shared = block_scale(amax, g);
  Nvfp4Block rows[16], columns[16];
  for (int i = 0; i < 16; ++i) {
    Block column;
    for (int r = 0; r < 16; ++r) column[r] = tile[r][i];
    rows[i] = encode_block(tile[i], g, Profile::Te, NearestEven{});
    columns[i] = encode_block(column, g, Profile::Te, NearestEven{});
    if (!square) continue;
    rows[i].scale = columns[i].scale = shared;
    encode_codes(tile[i], block_multiplier(shared, g), NearestEven{}, rows[i].codes);
    encode_codes(column, block_multiplier(shared, g), NearestEven{}, columns[i].codes);
  }
  int differ = 0;
  for (int r = 0; r < 16; ++r) {
    for (int c = 0; c < 16; ++c) differ += decoded(rows[r], c, g.amax) != decoded(columns[c], r, g.amax);
  }
  return differ;
}

TEST(Nvfp4Tile, RowAndColumnCopiesDifferUnder1x16BlocksAndAgreeUnderSquareOnes) {
  EXPECT_EQ(values_that_differ_between_the_copies(/*square=*/true), 0);
  EXPECT_GT(values_that_differ_between_the_copies(/*square=*/false), 128);
}

TEST(Nvfp4Gemm, AlphaIsFormedLeftToRight) {
  EXPECT_EQ(gemm_alpha(2688.0f, 2688.0f), 1.0f);
  EXPECT_EQ(gemm_alpha(1e-30f, 1e-30f), 0.0f) << "the intermediate product underflows, as the source has it";
  EXPECT_EQ(gemm_alpha(0.0f, 3.0f), 0.0f);
}

TEST(Nvfp4Operand, CodeTimesBlockScaleIsExactInBf16) {
  for (int s = 0; s < 0x7F; ++s) {
    for (int c = 0; c < 16; ++c) {
      const E2M1 code{static_cast<std::uint8_t>(c)};
      const E4M3 scale{static_cast<std::uint8_t>(s)};
      const double product = static_cast<double>(code.value()) * static_cast<double>(scale.value());
      ASSERT_EQ(static_cast<double>(exact_operand(code, scale).value()), product) << c << " " << s;
    }
  }
}

}  // namespace
}  // namespace nibble
