// SPDX-License-Identifier: Apache-2.0
#include "numeric/random_key.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

#include "numeric/e2m1.h"

namespace nibble {
namespace {

constexpr RandomKey kKey{.seed = 7, .step = 3, .layer = 5, .role = 2, .first_element = 0};

TEST(Philox, GivesThePublishedKnownAnswers) {
  EXPECT_EQ(philox({0}, {}), (PhiloxBlock{{0x6627E8D5u, 0xE169C58Du, 0xBC57AC4Cu, 0x9B00DBD8u}}));
  constexpr std::uint32_t kOnes = 0xFFFFFFFFu;
  EXPECT_EQ(philox({~std::uint64_t{0}}, {{kOnes, kOnes, kOnes, kOnes}}),
            (PhiloxBlock{{0x408F276Du, 0x41C83B0Eu, 0xA20BC7C6u, 0x6D5451FDu}}));
}

TEST(RandomKey, AByteIsTheByteOfItsElementsBlock) {
  for (std::uint64_t element : {0ull, 1ull, 15ull, 16ull, 37ull, (1ull << 36) + 5}) {
    const std::uint64_t group = element / 16;
    const PhiloxBlock b = philox(
        {7}, {{static_cast<std::uint32_t>(group), 3, 5u << 8 | 2u, static_cast<std::uint32_t>(group >> 32)}});
    const auto j = static_cast<unsigned>(element % 16);
    EXPECT_EQ(random_byte(kKey, element), (b.word[j / 4] >> 8 * (j % 4)) & 0xFF) << element;
  }
}

TEST(RandomKey, ASliceOfABatchDrawsWhatTheWholeBatchWould) {
  RandomKey slice = kKey;
  slice.first_element = 1000;
  for (std::uint64_t i = 0; i < 100; ++i) {
    EXPECT_EQ(random_byte(slice, i), random_byte(kKey, 1000 + i));
    EXPECT_EQ(random_bits24(slice, i), random_bits24(kKey, 1000 + i));
  }
}

TEST(RandomKey, EveryPartOfTheKeyChangesTheStream) {
  std::vector<RandomKey> keys(6, kKey);
  keys[1].seed += std::uint64_t{1} << 32;
  keys[2].step += 1;
  keys[3].layer += 1;
  keys[4].role += 1;
  keys[5].first_element += std::uint64_t{1} << 40;
  std::set<std::uint32_t> first_words;
  for (const RandomKey& k : keys) {
    first_words.insert(random_bytes(k, k.first_element / 16).word[0]);
    first_words.insert(random_words(k, k.first_element / 4).word[0]);
  }
  EXPECT_EQ(first_words.size(), 12u) << "the 8-bit and the 24-bit streams share no block either";
}

TEST(RandomKey, BytesAreUniform) {
  constexpr int kDraws = 1 << 16;
  std::vector<int> count(256);
  for (int i = 0; i < kDraws; ++i) ++count[random_byte(kKey, static_cast<std::uint64_t>(i))];
  double chi2 = 0;
  for (int c : count) chi2 += (c - 256.0) * (c - 256.0) / 256.0;
  EXPECT_NEAR(chi2, 255.0, 5 * std::sqrt(2 * 255.0));
}

/// Mean of `draws` rounded values, compared with `expected` in units of the mean's standard deviation.
template <class Draw>
double sigmas_off(Draw draw, double low, double high, double expected) {
  constexpr int kDraws = 1 << 17;
  double sum = 0;
  for (int i = 0; i < kDraws; ++i) sum += draw(static_cast<std::uint64_t>(i));
  const double p = (expected - low) / (high - low);
  return (sum / kDraws - expected) / ((high - low) * std::sqrt(p * (1 - p) / kDraws));
}

TEST(StochasticRounding, TheMeanIsWhatItsRandomBitsAllow) {
  for (const auto& [x, low, high] : {std::tuple{2.3f, 2.0, 3.0}, {0.2f, 0.0, 0.5}, {5.1f, 4.0, 6.0}}) {
    const double eight_bit = low + (high - low) * std::floor(256 * (x - low) / (high - low)) / 256;
    const auto coarse = [x = x](std::uint64_t i) {
      return E2M1::stochastic(x, random_byte(kKey, i)).value();
    };
    const auto fine = [x = x](std::uint64_t i) {
      return E2M1::stochastic_exact(x, random_bits24(kKey, i)).value();
    };
    EXPECT_LT(std::abs(sigmas_off(coarse, low, high, eight_bit)), 4.0) << x;
    EXPECT_LT(std::abs(sigmas_off(fine, low, high, x)), 4.0) << x;
  }
}

TEST(StochasticRounding, FloorOf256TimesTheFractionOfTheRandomBytesRoundUp) {
  const double grid[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  for (int c = 0; c < 7; ++c) {
    for (int k = 0; k < 512; ++k) {
      const auto x = static_cast<float>(grid[c] + (grid[c + 1] - grid[c]) * (k + 0.37 * (k % 2)) / 512);
      int up = 0, others = 0;
      for (int r = 0; r < 256; ++r) {
        const float v = E2M1::stochastic(-x, static_cast<std::uint8_t>(r)).value();
        up += v == -grid[c + 1];
        others += v != -grid[c + 1] && v != -grid[c];
      }
      ASSERT_EQ(up, std::floor(256 * (x - grid[c]) / (grid[c + 1] - grid[c]))) << x;
      ASSERT_EQ(others, 0) << x;
    }
  }
}

TEST(StochasticRounding, GridValuesStayAndLargeOnesSaturate) {
  for (int r = 0; r < 256; ++r) {
    const auto byte = static_cast<std::uint8_t>(r);
    for (int c = 0; c < 16; ++c) {
      const E2M1 code{static_cast<std::uint8_t>(c)};
      EXPECT_EQ(E2M1::stochastic(code.value(), byte), code);
      EXPECT_EQ(E2M1::stochastic_exact(code.value(), static_cast<std::uint32_t>(r) << 16 | 0xFFFF), code);
    }
    for (float x : {6.0001f, 7.5f, 1e30f, kFloatMax, bits_float(kInfinityBits)}) {
      EXPECT_EQ(E2M1::stochastic(-x, byte).code, 0xF) << x;
      EXPECT_EQ(E2M1::stochastic_exact(x, static_cast<std::uint32_t>(r) << 16).code, 0x7) << x;
    }
  }
}

TEST(StochasticRounding, WithTwentyFourBitsTheThresholdIsTheFraction) {
  // 0.3 lies 0.6 of a step above 0: round up iff random / 2^24 >= 1 - 0.6.
  const auto threshold = static_cast<std::uint32_t>(std::ceil((1.0 - 2.0 * 0.3f) * 0x1p24));
  EXPECT_EQ(E2M1::stochastic_exact(0.3f, threshold).code, 1);
  EXPECT_EQ(E2M1::stochastic_exact(0.3f, threshold - 1).code, 0);
  EXPECT_EQ(E2M1::stochastic_exact(0x1p-24f, 0xFFFFFF).code, 1) << "eight bits would never round this up";
  EXPECT_EQ(E2M1::stochastic(0x1p-24f, 255).code, 0);
}

TEST(InitialValues, AreUniformAndNormalToWithinTheirStatisticalError) {
  constexpr int kDraws = 1 << 15;
  double u1 = 0, n1 = 0, n2 = 0, n4 = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double u = initial_uniform(1, 99, static_cast<std::uint64_t>(i));
    const double n = initial_normal(1, 99, static_cast<std::uint64_t>(i));
    ASSERT_GT(u, 0.0);
    ASSERT_LT(u, 1.0);
    u1 += u / kDraws;
    n1 += n / kDraws;
    n2 += n * n / kDraws;
    n4 += n * n * n * n / kDraws;
  }
  EXPECT_NEAR(u1, 0.5, 4 * std::sqrt(1.0 / 12 / kDraws));
  EXPECT_NEAR(n1, 0.0, 4 * std::sqrt(1.0 / kDraws));
  EXPECT_NEAR(n2, 1.0, 4 * std::sqrt(2.0 / kDraws));
  EXPECT_NEAR(n4, 3.0, 4 * std::sqrt(96.0 / kDraws));
}

TEST(InitialValues, TheOpenIntervalHoldsAtItsEnds) {
  EXPECT_GT(open_unit(0, 0), 0.0);
  EXPECT_LT(open_unit(0xFFFFFFFFu, 0xFFFFFFFFu), 1.0);
}

TEST(InitialValues, DependOnSeedTensorAndElement) {
  const double base = initial_normal(1, 2, 3);
  EXPECT_NE(base, initial_normal(2, 2, 3));
  EXPECT_NE(base, initial_normal(1, 3, 3));
  EXPECT_NE(base, initial_normal(1, 2, 4));
  EXPECT_EQ(base, initial_normal(1, 2, 3));
}

}  // namespace
}  // namespace nibble
