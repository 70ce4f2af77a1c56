// SPDX-License-Identifier: Apache-2.0
#include "validate/statistics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "validate/fixture.h"
#include "validate/more_data.h"

namespace nibble {
namespace {

using fixture::pair_with;
using fixture::quickstart;
using ::testing::HasSubstr;
using ::testing::Not;

/// The verdict on one pair with this gap and this A/A gap.
Verdict judged(double gap, double aa) {
  const Protocol p = make_protocol(quickstart());
  return decide(p, {.pairs = {pair_with(p, gap, aa)}});
}

TEST(PairedGaps, ArePositiveWhenTheCandidateIsWorse) {
  const auto gaps = paired_gaps({{10, 100, 2.0}}, {{10, 100, 2.1}});
  EXPECT_NEAR(gaps[0].gap, 0.05, 1e-15);
}

TEST(PairedGaps, RefuseStepsOrTokensThatDiffer) {
  EXPECT_THROW(paired_gaps({{10, 100, 2.0}}, {{11, 100, 2.0}}), Error);
  EXPECT_THROW(paired_gaps({{10, 100, 2.0}}, {{10, 101, 2.0}}), Error);
  EXPECT_THROW(paired_gaps({}, {{10, 100, 2.0}}), Error);
}

TEST(Quantile, MatchesTables) {
  EXPECT_NEAR(quantile(0.975, 0), 1.959964, 1e-6);
  EXPECT_NEAR(quantile(0.95, 2), 2.919986, 1e-6);
  EXPECT_NEAR(quantile(0.95, 9), 1.833113, 1e-6);
}

TEST(Noise, IsAssumedAtThreeTenthsOfAPercentWithoutAnAAArm) {
  const Protocol p = make_protocol(quickstart());
  const Noise n = noise_of({pair_with(p, 0.006, 0, 1, false)}, p.windows[0], p.noise);
  EXPECT_DOUBLE_EQ(n.sigma, 0.003);
  EXPECT_TRUE(n.assumed);
}

TEST(Noise, IsTwoPointThreeTimesTheAAGapAndNeverBelowTheFloor) {
  const Protocol p = make_protocol(quickstart());
  EXPECT_NEAR(noise_of({pair_with(p, 0.006, 0.005)}, p.windows[0], p.noise).sigma, 2.3 * 0.005, 1e-12);
  EXPECT_DOUBLE_EQ(noise_of({pair_with(p, 0.006, 1e-6)}, p.windows[0], p.noise).sigma, 0.003);
}

TEST(Noise, OfAnAAArmReachesAsStudentsTWithThreeDegreesAndNoLessThanTheFloorsNormal) {
  const Protocol p = make_protocol(quickstart());
  const Noise wide = noise_of({pair_with(p, 0.006, 0.005)}, p.windows[0], p.noise);
  EXPECT_EQ(wide.degrees, 3);
  EXPECT_NEAR(wide.reach(0.95), quantile(0.95, 3) * 2.3 * 0.005, 1e-12);
  const Noise narrow = noise_of({pair_with(p, 0.006, 1e-6)}, p.windows[0], p.noise);
  EXPECT_NEAR(narrow.reach(0.95), quantile(0.95, 0) * 0.003, 1e-12);
}

TEST(Noise, OfAWindowIsMeasuredOverTheHalfOfTheRunBeforeItsEnd) {
  const Protocol p = make_protocol(quickstart());
  PairData pair = pair_with(p, 0.006, 0.005);
  for (std::size_t i = 0; i < pair.candidate.size(); ++i) {
    // No A/A gap in the first half and after the stable window: only the latter counts in the final one.
    if (pair.candidate[i].step <= 120 || pair.candidate[i].step > 240)
      pair.candidate_aa[i] = pair.candidate[i];
  }
  EXPECT_NEAR(noise_of({pair}, p.windows[0], p.noise).sigma, 2.3 * 0.005, 1e-12);
  EXPECT_LT(noise_of({pair}, p.windows[1], p.noise).measured, 2.3 * 0.005 * 0.9);
}

TEST(Noise, OfAStoredFloorIsPooledWithTheArmsAndKnownBetter) {
  Protocol p = make_protocol(quickstart());
  p.noise.stored_rms = {{"stable", 0.007}, {"final", 0.002}};
  p.noise.stored_arms = 3;
  const Noise n = noise_of({pair_with(p, 0.006, 0.005)}, p.windows[0], p.noise);
  EXPECT_NEAR(*n.aa_rms, std::sqrt((3 * 0.007 * 0.007 + 0.005 * 0.005) / 4), 1e-12);
  EXPECT_EQ(n.degrees, 12);
  const Noise alone = noise_of({pair_with(p, 0.006, 0, 1, false)}, p.windows[0], p.noise);
  EXPECT_NEAR(alone.measured, 2.3 * 0.007, 1e-12);
  EXPECT_FALSE(alone.assumed);
  EXPECT_NEAR(noise_before(p.noise), 2.3 * 0.007, 1e-12) << "the abort rule takes the larger window's";
}

TEST(Noise, IsThePairsOwnSpreadFromThreePairsOn) {
  const Protocol p = make_protocol(quickstart());
  const Noise n =
      noise_of({pair_with(p, 0.01, 0.5, 1), pair_with(p, 0.02, 0.5, 2), pair_with(p, 0.03, 0.5, 3)},
               p.windows[1], p.noise);
  EXPECT_NEAR(n.sigma, 0.01, 1e-12);
  EXPECT_EQ(n.degrees, 2);
}

TEST(ExtraTokens, ReadsTheHorizontalDistanceFromTheBaselinesCurve) {
  const std::vector<EvalPoint> base = {{1, 100, 4.0}, {2, 200, 3.0}, {3, 300, 2.5}};
  const std::vector<EvalPoint> worse = {{1, 100, 4.2}, {2, 200, 3.3}, {3, 300, 2.75}};
  EXPECT_NEAR(*extra_tokens(base, worse), 300.0 / 250.0 - 1, 1e-12);
  EXPECT_NEAR(*extra_tokens(worse, base), 250.0 / 300.0 - 1, 1e-12) << "a better candidate needs fewer";
  EXPECT_EQ(*extra_tokens(base, base), 0);
  EXPECT_FALSE(extra_tokens(base, {{1, 100, 9}, {2, 200, 9}, {3, 300, 9}}));
}

TEST(CentredMean, KeepsALineAndItsLength) {
  std::vector<double> line;
  for (int i = 0; i < 20; ++i) line.push_back(0.5 * i);
  const auto smooth = centred_mean(line, 4);
  ASSERT_EQ(smooth.size(), line.size());
  for (int i = 0; i < 20; ++i) EXPECT_NEAR(smooth[i], line[i], 1e-12);
}

TEST(WhatWouldDecide, CountsSeedsTokensAndAAArmsFromTheWindowsOwnNumbers) {
  const Protocol p = make_protocol(quickstart());
  const Verdict v = judged(0.01, 0.004);  // 1.33 % below the stable limit, bound at 2.353 x 2.3 x 0.4 %
  ASSERT_EQ(v.outcome, Outcome::Inconclusive);
  const int n = pairs_needed(v.windows[0].gap, v.windows[0].limit, v.windows[0].sigma, p.confidence);
  EXPECT_THAT(v.more_data, HasSubstr(fmt::format("About {} pairs would decide", n)));
  EXPECT_THAT(v.more_data, HasSubstr(fmt::format("{} more seeds", n - 1)));
  EXPECT_THAT(v.more_data, HasSubstr(fmt::format("{:.3g} M tokens", (n - 1) * 2 * 300 * 2048 / 1e6)));
  EXPECT_EQ(aa_arms_needed(v.windows[0], p.noise, 1, p.confidence), 0) << "1.645 x 0.92 % is still too far";
  EXPECT_THAT(v.more_data, Not(HasSubstr("A/A arm")));
}

TEST(WhatWouldDecide, SaysWhenABetterKnownNoiseWouldDo) {
  const Protocol p = make_protocol(quickstart());
  const Verdict v = judged(0.008, 0.003);  // 1.53 % below: Student t reaches 1.62 %, the normal 1.14 %
  ASSERT_EQ(v.outcome, Outcome::Inconclusive);
  EXPECT_EQ(aa_arms_needed(v.windows[0], p.noise, 1, p.confidence), 1);
  EXPECT_THAT(v.more_data, HasSubstr("or 1 more A/A arm (614 k tokens"));
}

TEST(PairsNeeded, GrowsAsTheGapNearsTheLimit) {
  EXPECT_EQ(pairs_needed(0.0, 0.035, 0.003, 0.95), 3);
  EXPECT_GT(pairs_needed(0.03, 0.035, 0.01, 0.95), pairs_needed(0.02, 0.035, 0.01, 0.95));
  EXPECT_EQ(pairs_needed(0.0349, 0.035, 0.01, 0.95), 0);
}

}  // namespace
}  // namespace nibble
