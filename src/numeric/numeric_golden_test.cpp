// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "../../tests/support/golden_file.h"
#include "numeric/e2m1.h"
#include "numeric/e4m3.h"
#include "numeric/philox.h"

namespace nibble {
namespace {

const testing::GoldenFile& golden() {
  static const testing::GoldenFile file(NIBBLE_SOURCE_DIR "/tests/golden/nvfp4_te.safetensors");
  return file;
}

TEST(GoldenUnits, E2M1CodesAreThoseOfTheReference) {
  const auto x = golden().floats("unit/e2m1.x");
  const auto code = golden().values<std::uint8_t>("unit/e2m1.code");
  ASSERT_EQ(x.size(), code.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    // The reference gives -0.0 the code 0 and the hardware 8; the sign of zero is left out on both sides.
    const int ours = E2M1::nearest(x[i]).code;
    EXPECT_EQ(ours == 8 ? 0 : ours, code[i] == 8 ? 0 : code[i]) << x[i];
  }
}

TEST(GoldenUnits, E4M3BytesAreThoseOfTheReference) {
  const auto x = golden().floats("unit/e4m3.x");
  const auto byte = golden().values<std::uint8_t>("unit/e4m3.byte");
  ASSERT_EQ(x.size(), byte.size());
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_EQ(E4M3::nearest(x[i]).bits, byte[i]) << x[i];
}

TEST(GoldenUnits, StochasticRoundingGoesUpForTheTabledCountOfTheRandomBytes) {
  const auto x = golden().floats("unit/sr.x"), lo = golden().floats("unit/sr.lo"),
             hi = golden().floats("unit/sr.hi");
  const auto count = golden().values<std::int32_t>("unit/sr.count_up_of_256");
  for (std::size_t i = 0; i < x.size(); ++i) {
    int up = 0;
    for (int r = 0; r < 256; ++r) {
      const float v = E2M1::stochastic(x[i], static_cast<std::uint8_t>(r)).value();
      const float a = magnitude(v);
      if (a == hi[i] && hi[i] != lo[i]) ++up;
      ASSERT_TRUE(a == lo[i] || a == hi[i]) << x[i] << " became " << v;
      ASSERT_EQ(float_bits(v) >> 31, float_bits(x[i]) >> 31);
    }
    EXPECT_EQ(up, count[i]) << x[i];
  }
}

TEST(GoldenUnits, PhiloxGivesTheKnownAnswers) {
  const auto in = golden().values<std::uint64_t>("unit/philox.seed_sub_off");
  const auto out = golden().values<std::uint32_t>("unit/philox.out");
  ASSERT_EQ(in.size() / 3, out.size() / 4);
  for (std::size_t i = 0; i < in.size() / 3; ++i) {
    const std::uint64_t sub = in[3 * i + 1], off = in[3 * i + 2];
    const PhiloxBlock b =
        philox({in[3 * i]}, {{static_cast<std::uint32_t>(off), static_cast<std::uint32_t>(off >> 32),
                              static_cast<std::uint32_t>(sub), static_cast<std::uint32_t>(sub >> 32)}});
    for (std::size_t w = 0; w < 4; ++w) EXPECT_EQ(b.word[w], out[4 * i + w]);
  }
}

}  // namespace
}  // namespace nibble
