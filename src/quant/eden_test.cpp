// SPDX-License-Identifier: Apache-2.0
#include "quant/eden.h"

#include <gtest/gtest.h>

#include <cmath>

#include "numeric/random_key.h"

namespace nibble {
namespace {

constexpr QuantSpec kSpec{.format = Format::Nvfp4, .scale_bound = 256, .eden_group = 128};

TEST(E4M3Stochastic, RoundsUpAsOftenAsThePositionBetweenItsNeighboursSays) {
  for (float x : {0.001f, 0.0043f, 0.0156f, 0.3f, 1.0f, 1.07f, 17.3f, 300.0f, 447.0f}) {
    const E4M3 below = E4M3::stochastic_exact(x, 0), above{static_cast<std::uint8_t>(below.bits + 1)};
    ASSERT_LE(below.value(), x);
    ASSERT_GT(above.value(), x);
    const double f = (x - below.value()) / (static_cast<double>(above.value()) - below.value());
    int up = 0;
    for (std::uint32_t k = 0; k < 4096; ++k) up += E4M3::stochastic_exact(x, k << 12) == above ? 1 : 0;
    EXPECT_NEAR(up, 4096 * f, 1.5) << x;
  }
}

TEST(E4M3Stochastic, LeavesItsOwnValuesAndSaturates) {
  for (int code = 0; code <= E4M3::kMaxBits; ++code) {
    const E4M3 v{static_cast<std::uint8_t>(code)};
    EXPECT_EQ(E4M3::stochastic_exact(v.value(), 0xFFFFFF), v);
    EXPECT_EQ(E4M3::stochastic_exact(v.value(), 0), v);
  }
  EXPECT_EQ(E4M3::stochastic_exact(1e6f, 0xFFFFFF).bits, E4M3::kMaxBits);
  EXPECT_EQ(E4M3::stochastic_exact(460.0f, 0xFFFFFF).bits, E4M3::kMaxBits);
}

TEST(E2M1Bits, RoundUpAsOftenAsTheirNumberResolves) {
  for (int bits : {2, 3, 8, 11, 16}) {
    for (float x : {0.07f, 0.3f, 0.61f, 1.2f, 1.9f, 2.3f, 3.1f, 5.4f}) {
      const std::uint32_t all = 1u << bits;
      const E2M1 below = E2M1::stochastic_bits(x, 0, bits);
      const E2M1 above{static_cast<std::uint8_t>(below.code + 1)};
      const double f = (x - below.value()) / (static_cast<double>(above.value()) - below.value());
      std::uint32_t up = 0;
      for (std::uint32_t r = 0; r < all; ++r) up += E2M1::stochastic_bits(x, r, bits) == above ? 1 : 0;
      EXPECT_EQ(up, static_cast<std::uint32_t>(std::floor(all * f))) << bits << " " << x;
    }
  }
  for (int r = 0; r < 256; ++r) {
    for (float x : {-5.3f, -0.2f, 0.0f, 0.74f, 2.6f, 9.0f})
      EXPECT_EQ(E2M1::stochastic_bits(x, static_cast<std::uint32_t>(r), 8),
                E2M1::stochastic(x, static_cast<std::uint8_t>(r)));
  }
}

TEST(MsEden, TheCorrectedGroupHasTheProjectionOfItsValues) {
  // <x, q> = <x, x> for the group under unrounded scales: that is what the correction is for.
  float x[16];
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    float amax = 0;
    for (int j = 0; j < 16; ++j) {
      x[j] = static_cast<float>(initial_normal(seed, 1, static_cast<std::uint64_t>(j)));
      amax = amax_dropping_nan(amax, x[j]);
    }
    const TensorScale g = tensor_scale(kSpec, 3 * amax);
    EdenSums sums;
    const Nvfp4Block block = encode_eden_block(x, counted_amax(kSpec, amax), g, sums);
    const double unit = static_cast<double>(block.scale.value()) * g.decode * sums.correction();
    double xx = 0, xq = 0;
    for (int j = 0; j < 16; ++j) {
      xx += static_cast<double>(x[j]) * x[j];
      xq += x[j] * unit * unpack_code(block.codes, j).value();
    }
    EXPECT_NEAR(xq / xx, 1, 1e-5);
  }
}

TEST(MsEden, AZeroBlockStaysZeroUnderAScaleOfOne) {
  const float x[16] = {};
  EdenSums sums;
  const Nvfp4Block block = encode_eden_block(x, 0, tensor_scale(kSpec, 1.0f), sums);
  EXPECT_EQ(eden_scale(block.scale, sums, 0xFFFFFF).value(), 1.0f);
  for (std::uint8_t code : block.codes) EXPECT_EQ(code, 0);
}

TEST(MsEden, TheLargestBlockLeavesRoomForItsCorrection) {
  const float x[16] = {6.0f, 1.0f};
  EdenSums sums;
  const TensorScale g = tensor_scale(kSpec, 6.0f);
  const Nvfp4Block block = encode_eden_block(x, counted_amax(kSpec, 6.0f), g, sums);
  EXPECT_EQ(block.scale.value(), 256.0f);
  EXPECT_EQ(unpack_code(block.codes, 0).code, 7);
  EXPECT_NEAR(6.0f / (256.0f * g.decode), 6.072f, 1e-3f) << "the maximum lies at 6.07 and is clipped";
}

}  // namespace
}  // namespace nibble
