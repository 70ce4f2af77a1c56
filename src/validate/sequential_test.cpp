// SPDX-License-Identifier: Apache-2.0
#include "validate/sequential.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>

namespace nibble {
namespace {

TEST(AbortMultiplier, IsTwoPointTwoForTenLooks) {
  std::vector<double> looks;
  for (int i = 3; i <= 12; ++i) looks.push_back(i / 12.0);
  EXPECT_DOUBLE_EQ(abort_multiplier(looks, 3, 0.01), 2.2);
}

TEST(AbortMultiplier, AgreesWithTheThresholdsResampledFromRealRuns) {
  // Rows: in a row, false-alarm rate, threshold found by resampling sixty runs of an 8 B model.
  const struct {
    int consecutive;
    double rate, threshold;
  } kResampled[] = {{1, 0.05, 2.42}, {1, 0.01, 2.91}, {2, 0.05, 1.91}, {2, 0.01, 2.52},
                    {3, 0.05, 1.67}, {3, 0.01, 2.20}, {5, 0.05, 1.32}, {5, 0.01, 2.04}};
  std::vector<double> looks;
  for (int i = 3; i <= 12; ++i) looks.push_back(i / 12.0);
  for (const auto& r : kResampled) {
    EXPECT_NEAR(abort_multiplier(looks, r.consecutive, r.rate), r.threshold, 0.2)
        << r.consecutive << " " << r.rate;
  }
}

TEST(AbortMultiplier, IsDeterministicAndQuick) {
  std::vector<double> looks;
  for (int i = 1; i <= 30; ++i) looks.push_back(i / 30.0);
  const auto start = std::chrono::steady_clock::now();
  const double k = abort_multiplier(looks, 3, 0.01);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  EXPECT_EQ(k, abort_multiplier(looks, 3, 0.01));
  EXPECT_LT(elapsed.count(), 3.0) << "0.05 s when measured; the bound leaves room for sanitizers";
}

TEST(AbortMonitor, FiresAtTheThirdInARowAndNotBefore) {
  AbortMonitor m({.consecutive = 3, .limit = 0.035, .sigma_multiplier = 2.2, .first_step = 30});
  EXPECT_FALSE(m.push(15, 0.9, 0.003)) << "an evaluation before the first look counted";
  EXPECT_FALSE(m.push(30, 0.04, 0.003));
  EXPECT_FALSE(m.push(45, 0.04, 0.003));
  EXPECT_FALSE(m.push(60, 0.03, 0.003));
  EXPECT_FALSE(m.push(75, 0.04, 0.003));
  EXPECT_FALSE(m.push(90, std::nan(""), 0.003));
  EXPECT_TRUE(m.push(105, 0.04, 0.003));
  EXPECT_EQ(m.fired_at(), 105);
}

TEST(AbortMonitor, LargeNoiseRaisesTheThreshold) {
  AbortMonitor m({.consecutive = 1, .limit = 0.035, .sigma_multiplier = 2.2});
  EXPECT_DOUBLE_EQ(m.threshold(0.003), 0.035);
  EXPECT_DOUBLE_EQ(m.threshold(0.03), 0.066);
}

}  // namespace
}  // namespace nibble
