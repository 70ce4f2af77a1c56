// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "validate/compare.h"

/// Published curves of an 8B model in FP8 and in NVFP4, means of ten seeds.
namespace nibble {
namespace {

Curve published(const char* recipe, const char* system) {
  return read_curve(fmt::format("{}#recipe={},system={}",
                                NIBBLE_SOURCE_DIR "/tests/golden/mlperf51/llama31_8b_val_loss.csv", recipe,
                                system));
}

TEST(ComparePublished, Nvfp4AgainstFp8GivesThePublishedGapWithAnIntervalAroundIt) {
  for (const char* system : {"dell_b200", "nvidia_gb200", "nvidia_gb300"}) {
    for (const char* baseline : {"uf_b200", "dell_b300"}) {
      const auto c =
          compare_curves(published("fp8", baseline), published("nvfp4", system), {.by_tokens = true});
      EXPECT_GE(c.gap, 0.007) << system << " " << baseline;
      EXPECT_LE(c.gap, 0.010) << system << " " << baseline;
      // The gap at the last evaluation is what is quoted.
      EXPECT_LE(c.interval[0], c.rows.back().gap) << system << " " << baseline;
      EXPECT_GE(c.interval[1], c.rows.back().gap) << system << " " << baseline;
      EXPECT_GT(c.interval[0], 0.002) << "ten seeds a side tell the gap from zero";
      EXPECT_LT(c.interval[1], 0.016);
      EXPECT_NE(c.noise.source.find("means of 10 and 10 runs"), std::string::npos) << c.noise.source;
    }
  }
}

TEST(ComparePublished, Fp8AgainstFp8IsNotToldApart) {
  const auto c =
      compare_curves(published("fp8", "uf_b200"), published("fp8", "dell_b300"), {.by_tokens = true});
  EXPECT_LE(c.interval[0], 0);
  EXPECT_GE(c.interval[1], 0);
}

}  // namespace
}  // namespace nibble
