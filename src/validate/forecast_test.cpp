// SPDX-License-Identifier: Apache-2.0
#include "validate/forecast.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "io/file.h"
#include "io/test_dir.h"
#include "validate/sequential.h"

namespace nibble {
namespace {

double law_gap(double n, double d) { return 0.02 * std::pow(n / 1e8, -0.05) * std::pow(d / n / 100, 0.17); }

/// Runs of a known law with lognormal scatter. The draws are those of simulate_null at one look.
std::vector<GapRun> made(const std::vector<double>& draws, std::size_t first, double scatter) {
  std::vector<GapRun> runs;
  for (const double n : {2e7, 5e7, 1e8})
    for (const double ratio : {20.0, 60.0, 200.0}) {
      const double noise = draws.empty() ? 0 : draws[first + runs.size()];
      runs.push_back({.name = "made",
                      .parameters = n,
                      .tokens = n * ratio,
                      .gap = law_gap(n, n * ratio) * std::exp(scatter * noise)});
    }
  return runs;
}

TEST(GapLaw, RunsOfALawGiveTheLawBack) {
  const GapLaw law = GapLaw::fit(made({}, 0, 0));
  EXPECT_NEAR(std::exp(law.mean[0]), 0.02, 1e-12);
  EXPECT_NEAR(law.mean[1], -0.05, 1e-12);
  EXPECT_NEAR(law.mean[2], 0.17, 1e-12);
  EXPECT_NEAR(law.predict(1e9, 2e10).gap, law_gap(1e9, 2e10), 1e-12);
}

TEST(GapLaw, TheIntervalOfLeastSquaresHasTheCoverageItSays) {
  constexpr int kTrials = 2000, kDraws = 10;
  const auto draws = simulate_null({1.0}, kTrials * kDraws, 5);
  int inside = 0;
  for (int t = 0; t < kTrials; ++t) {
    const std::size_t first = static_cast<std::size_t>(t) * kDraws;
    const GapForecast f = GapLaw::fit(made(draws, first, 0.1)).predict(8e7, 8e9);
    const double truth = law_gap(8e7, 8e9) * std::exp(0.1 * draws[first + kDraws - 1]);
    inside += f.interval[0] <= truth && truth <= f.interval[1] ? 1 : 0;
  }
  EXPECT_NEAR(inside / static_cast<double>(kTrials), 0.90, 0.02);
}

TEST(GapLaw, WithoutPilotsAnUpdateIsThePrior) {
  const GapLaw prior = literature_prior(), same = GapLaw::update(prior, {});
  for (int i = 0; i < 3; ++i) EXPECT_NEAR(same.mean[i], prior.mean[i], 1e-9);
  EXPECT_NEAR(same.predict(1e9, 1e11).interval[1], prior.predict(1e9, 1e11).interval[1], 1e-9);
}

TEST(GapLaw, PilotsMoveTheLevelAndNarrowTheInterval) {
  const GapLaw prior = literature_prior();
  std::vector<GapRun> pilots;
  for (const double n : {3e7, 6e7})
    for (const double ratio : {25.0, 50.0, 100.0})
      pilots.push_back({.name = "half",
                        .parameters = n,
                        .tokens = n * ratio,
                        .gap = 0.5 * prior.predict(n, n * ratio).gap});
  const GapForecast before = prior.predict(2e8, 1e10),
                    after = GapLaw::update(prior, pilots).predict(2e8, 1e10);
  EXPECT_LT(after.gap, 0.6 * before.gap);
  EXPECT_GT(after.gap, 0.45 * before.gap);
  EXPECT_LT(after.interval[1] / after.interval[0], 0.7 * before.interval[1] / before.interval[0]);
}

TEST(GapLaw, ANoisyPilotCountsForLittle) {
  const GapLaw prior = literature_prior();
  GapRun pilot{.name = "wild", .parameters = 1e8, .tokens = 1e10, .gap = 0.06};
  const double sure = GapLaw::update(prior, {pilot}).predict(1e8, 1e10).gap;
  pilot.noise = 0.05;
  const double unsure = GapLaw::update(prior, {pilot}).predict(1e8, 1e10).gap;
  const double none = prior.predict(1e8, 1e10).gap;
  EXPECT_LT(none, unsure);
  EXPECT_LT(unsure - none, 0.25 * (sure - none));
}

TEST(GapLaw, OneSizeOrOneLengthIsRefused) {
  std::vector<GapRun> runs;
  for (int i = 1; i <= 6; ++i)
    runs.push_back({.name = "one size", .parameters = 1e8, .tokens = i * 1e9, .gap = 0.02});
  EXPECT_THROW(GapLaw::fit(runs), Error);
  EXPECT_THROW(GapLaw::fit({runs.begin(), runs.begin() + 3}), Error);
}

TEST(GapLaw, SaysWhenItExtrapolatesAndWhenTooFar) {
  const GapLaw law = ladder_law();
  EXPECT_EQ(law.predict(1e8, 1e10).reach, Reach::Inside);
  EXPECT_EQ(law.predict(1.9e9, 1e11).reach, Reach::Beyond);
  const GapForecast far = law.predict(8e9, 1e12);
  EXPECT_EQ(far.reach, Reach::TooFar);
  ASSERT_EQ(far.warnings.size(), 1u);
  const GapForecast longer = law.predict(1e8, 1e8 * 3000);
  EXPECT_EQ(longer.reach, Reach::TooFar);
  EXPECT_NE(longer.warnings[0].find("flattened"), std::string::npos);
}

TEST(GapLaw, AnIntervalGrowsWithTheDistanceFromTheRuns) {
  const GapLaw law = ladder_law();
  double last = 0;
  for (const double n : {1e8, 1e9, 1e10}) {
    const GapForecast f = law.predict(n, 100 * n);
    EXPECT_GT(f.sd, last);
    last = f.sd;
  }
}

TEST(ForecastRemedies, KeptBlocksAreOnlyOfferedWithoutPilots) {
  const ForecastReport none = make_forecast("m", 1e9, 1e11, {});
  ASSERT_EQ(none.remedies.size(), 3u);
  EXPECT_TRUE(none.remedies[0].before_the_run);
  EXPECT_GT(none.remedies[0].factor, 0.4);
  EXPECT_LT(none.remedies[0].factor, 0.8);
  const ForecastReport some =
      make_forecast("m", 1e9, 1e11, {{.name = "p", .parameters = 1e8, .tokens = 1e10, .gap = 0.02}});
  EXPECT_EQ(some.remedies.size(), 2u);
}

TEST(ForecastReport, PilotsBelowTheirNoiseAreLeftOutAndSaid) {
  const GapRun good{.name = "good", .parameters = 1e8, .tokens = 1e10, .gap = 0.02, .noise = 0.002};
  const GapRun bad{.name = "bad", .parameters = 1e7, .tokens = 1e8, .gap = -0.001, .noise = 0.002};
  const ForecastReport r = make_forecast("m", 1e9, 1e11, {good, bad});
  EXPECT_EQ(r.pilots.size(), 1u);
  EXPECT_EQ(r.left_out.size(), 1u);
  EXPECT_NE(forecast_text(r).find("left out"), std::string::npos);
  const ForecastReport none = make_forecast("m", 1e9, 1e11, {bad});
  EXPECT_EQ(none.forecast.gap, make_forecast("m", 1e9, 1e11, {}).forecast.gap);
  EXPECT_NE(forecast_text(none).find("NO PILOT HAS A GAP ABOVE ITS NOISE"), std::string::npos);
}

TEST(PilotTable, SeveralRecipesAreNeverMixedSilently) {
  GapRun a{.name = "x", .recipe = "nvfp4"}, b{.name = "y", .recipe = "mxfp4"};
  EXPECT_THROW(runs_of_recipe({a, b}, ""), Error);
  EXPECT_THROW(runs_of_recipe({a, b}, "fp8"), Error);
  EXPECT_EQ(runs_of_recipe({a, b}, "mxfp4").size(), 1u);
  EXPECT_EQ(runs_of_recipe({a, a}, "").size(), 2u);
}

TEST(PilotTable, IsReadBackAsItWasWritten) {
  const TestDir dir;
  const std::vector<GapRun> runs = {{"a", 1e6, 2e7, 0.011, 0.003}, {"b", 2e6, 4e7, 0.02, 0}};
  write_file(dir / "p.csv", gap_runs_csv(runs));
  const auto back = read_gap_runs(dir / "p.csv");
  ASSERT_EQ(back.size(), 2u);
  EXPECT_EQ(back[0].name, "a");
  EXPECT_NEAR(back[0].gap, 0.011, 1e-15);
  EXPECT_NEAR(back[0].noise, 0.003, 1e-15);
  write_file(dir / "q.csv", "parameters,tokens,gap_percent\n1,2,x\n");
  EXPECT_THROW(read_gap_runs(dir / "q.csv"), Error);
  write_file(dir / "r.csv", "parameters,tokens\n1,2\n");
  EXPECT_THROW(read_gap_runs(dir / "r.csv"), Error);
}

}  // namespace
}  // namespace nibble
