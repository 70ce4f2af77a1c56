// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>

#include "validate/forecast.h"

/// The law on published runs that it did not see.
namespace nibble {
namespace {

TEST(ForecastPublished, TheBundledLadderIsThePublishedTable) {
  const auto rows = read_gap_runs(NIBBLE_SOURCE_DIR "/tests/golden/quartet2/small_runs.csv");
  std::vector<GapRun> bundled;
  for (const std::string& recipe : kLadderRecipes)
    for (const GapRun& r : ladder_runs(recipe)) bundled.push_back(r);
  ASSERT_EQ(rows.size(), bundled.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(rows[i].name, bundled[i].name);
    EXPECT_EQ(rows[i].parameters, bundled[i].parameters);
    EXPECT_EQ(rows[i].tokens, bundled[i].tokens);
    EXPECT_EQ(rows[i].gap, bundled[i].gap);
  }
}

TEST(ForecastPublished, RunsOf200MAreForecastFromSmallerOnesWithinThreeTenthsOfAPoint) {
  const auto held_out = check_forecast().held_out;
  std::vector<CheckRow> three;
  for (const CheckRow& r : held_out)
    if (r.what != "nvidia_4over6") three.push_back(r);
  ASSERT_EQ(three.size(), 9u);
  for (const auto& rows : {three, held_out}) {
    const CheckSummary s = summary_of(rows);
    EXPECT_LE(s.worst, 0.0030);
    EXPECT_LE(s.median, 0.0015);
    EXPECT_GE(s.inside, static_cast<std::size_t>(std::ceil(0.9 * static_cast<double>(s.rows))));
  }
  for (const CheckRow& r : held_out)
    if (r.what == "nvidia") {
      EXPECT_LE(std::abs(r.error()), 0.0015) << r.tokens;
    }
}

TEST(ForecastPublished, NinetyPercentOfHeldOutRunsLieInsideTheNinetyPercentInterval) {
  const ForecastCheck c = check_forecast();
  std::size_t rows = 0, inside = 0;
  for (const auto* split : {&c.held_out, &c.sizes, &c.horizons, &c.handful}) {
    const CheckSummary s = summary_of(*split);
    rows += s.rows, inside += s.inside;
    // Each split by itself too; of 84 runs 75 is what nine in ten come to.
    EXPECT_GE(static_cast<double>(s.inside), 0.89 * static_cast<double>(s.rows)) << check_text(c);
  }
  EXPECT_GE(static_cast<double>(inside), 0.90 * static_cast<double>(rows)) << check_text(c);
}

TEST(ForecastPublished, IntervalsAreNotCheaplyWide) {
  for (const CheckRow& r : check_forecast().held_out)
    EXPECT_LT(r.forecast.interval[1] / r.forecast.interval[0], 1.6) << r.what;
}

TEST(ForecastPublished, LargerRunsStandBesideTheirForecasts) {
  const ForecastCheck c = check_forecast();
  ASSERT_EQ(c.larger.size(), 9u);
  EXPECT_EQ(summary_of(c.larger).inside, 9u) << check_text(c);
  ASSERT_EQ(c.kept.size(), 4u);
  EXPECT_GE(summary_of(c.kept).inside, 3u) << check_text(c);
  EXPECT_NE(check_text(c).find("1.9B, 38B tokens, quartet2"), std::string::npos);
}

}  // namespace
}  // namespace nibble
