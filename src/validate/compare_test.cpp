// SPDX-License-Identifier: Apache-2.0
#include "validate/compare.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "base/error.h"
#include "io/file.h"
#include "io/test_dir.h"
#include "validate/noise_floor.h"
#include "validate/sequential.h"

namespace nibble {
namespace {

Curve curve(const std::vector<std::int64_t>& steps, const std::vector<double>& losses,
            std::int64_t each = 100) {
  Curve c{.source = "made", .format = "text log", .metric = "validation loss", .validation = true};
  for (std::size_t i = 0; i < steps.size(); ++i)
    c.points.push_back({.step = steps[i], .tokens = steps[i] * each, .loss = losses[i]});
  return c;
}

std::vector<std::int64_t> steps_to(int n) {
  std::vector<std::int64_t> out(n);
  std::iota(out.begin(), out.end(), 1);
  return out;
}

TEST(Compare, PointsWithoutAPartnerAreCountedAndNothingIsInterpolated) {
  const CurveComparison c =
      compare_curves(curve({1, 2, 3, 4, 5}, {5, 4, 3, 2, 2}), curve({2, 3, 4, 6}, {4.4, 3.3, 2.2, 2}), {});
  ASSERT_EQ(c.rows.size(), 3u);
  EXPECT_EQ(c.only_a, 2u);
  EXPECT_EQ(c.only_b, 1u);
  EXPECT_FALSE(c.interpolated);
  EXPECT_NEAR(c.gap, 0.1, 1e-12);
}

TEST(Compare, InterpolationIsLinearAskedForAndSaid) {
  const Curve a = curve({10, 20, 30, 40}, {4, 3, 2, 1}), b = curve({5, 15, 25, 45}, {4, 4, 3, 1});
  EXPECT_THROW(compare_curves(a, b, {}), Error);
  const CurveComparison c = compare_curves(a, b, {.interpolate = true});
  EXPECT_TRUE(c.interpolated);
  EXPECT_DOUBLE_EQ(c.rows[1].b, 3.5);
  EXPECT_NE(compare_text(c).find("READ BETWEEN ITS POINTS"), std::string::npos);
}

TEST(Compare, BatchesOfOtherSizesArePairedByTokens) {
  const Curve a = curve({2, 4, 6}, {3, 2, 1}, 100), b = curve({1, 2, 3}, {3.03, 2.02, 1.01}, 200);
  const CurveComparison c = compare_curves(a, b, {.by_tokens = true});
  EXPECT_EQ(c.rows.size(), 3u);
  EXPECT_EQ(c.rows[0].at, 200);
  EXPECT_NEAR(c.gap, 0.01, 1e-12);
}

TEST(Compare, AUnitOfTheLossCannotChangeTheGap) {
  const std::vector<double> x = {3, 2.9, 2.8, 2.75}, y = {3.02, 2.93, 2.83, 2.77};
  std::vector<double> bits_x, bits_y;
  for (const double v : x) bits_x.push_back(v / std::log(2.0));
  for (const double v : y) bits_y.push_back(v / std::log(2.0));
  const auto nats = compare_curves(curve(steps_to(4), x), curve(steps_to(4), y));
  const auto bits = compare_curves(curve(steps_to(4), bits_x), curve(steps_to(4), bits_y));
  EXPECT_NEAR(nats.gap, bits.gap, 1e-14);
  EXPECT_NEAR(nats.interval[1], bits.interval[1], 1e-14);
}

/// Curves whose gaps are `gap` plus the noise of real runs: an offset that a run keeps and AR(1) jitter.
CurveComparison simulated(const std::vector<double>& noise, std::size_t first, int looks, double gap,
                          double sigma) {
  std::vector<double> a(looks, 3.0), b;
  for (int i = 0; i < looks; ++i) b.push_back(3.0 * (1 + gap + sigma * noise[first + i]));
  return compare_curves(curve(steps_to(looks), a), curve(steps_to(looks), b), {.window = 0.5});
}

TEST(Compare, TheIntervalOfOnePairHoldsTheTrueGapInAtLeastNinetyThreePercent) {
  constexpr int kLooks = 24, kPaths = 2000;
  std::vector<double> looks;
  for (int i = 1; i <= kLooks; ++i) looks.push_back(i / static_cast<double>(kLooks));
  const auto noise = simulate_null(looks, kPaths, 11);
  int inside = 0, cried_wolf = 0;
  double width = 0;
  for (int p = 0; p < kPaths; ++p) {
    const auto c = simulated(noise, static_cast<std::size_t>(p) * kLooks, kLooks, 0.008, 0.003);
    inside += c.interval[0] <= 0.008 && 0.008 <= c.interval[1] ? 1 : 0;
    width += (c.interval[1] - c.interval[0]) / kPaths;
    const auto null = simulated(noise, static_cast<std::size_t>(p) * kLooks, kLooks, 0, 0.003);
    cried_wolf += null.interval[0] > 0 || null.interval[1] < 0 ? 1 : 0;
  }
  EXPECT_GE(inside, 0.93 * kPaths);
  EXPECT_LE(cried_wolf, 0.07 * kPaths);
  EXPECT_LT(width, 0.016) << "an interval that is never wrong because it is endless says nothing";
}

TEST(Compare, MorePointsOfOnePairNeverBeatTheNoiseOfOnePair) {
  std::vector<double> a(4000, 3.0), b(4000, 3.03);
  const auto c = compare_curves(curve(steps_to(4000), a), curve(steps_to(4000), b));
  EXPECT_GE(c.standard_error, 0.003);
  EXPECT_EQ(c.degrees, 0);
}

TEST(Compare, NeighboursThatMoveTogetherAreWorthFewer) {
  std::vector<double> a(40, 3.0), wave, zigzag;
  for (int i = 0; i < 40; ++i) {
    wave.push_back(3.03 + 0.02 * std::sin(i / 5.0));
    zigzag.push_back(3.03 + 0.02 * (i % 2 == 0 ? 1 : -1));
  }
  const auto slow = compare_curves(curve(steps_to(40), a), curve(steps_to(40), wave), {.window = 1});
  const auto fast = compare_curves(curve(steps_to(40), a), curve(steps_to(40), zigzag), {.window = 1});
  EXPECT_TRUE(slow.correlation_measured);
  EXPECT_LT(slow.independent, 4);
  EXPECT_GT(fast.independent, 30);
}

TEST(Compare, ALimitGivesTheExitCodesOfAVerdict) {
  const std::vector<double> a(12, 3.0), b(12, 3.03);
  const auto at = [&](double limit) {
    return compare_curves(curve(steps_to(12), a), curve(steps_to(12), b), {.limit = limit}).outcome;
  };
  EXPECT_EQ(at(0.02), Outcome::Pass);
  EXPECT_EQ(at(0.011), Outcome::Inconclusive);
  EXPECT_EQ(at(0.001), Outcome::Fail);
}

TEST(Compare, ARunThatBrokeDownHasNoMeanGap) {
  const Curve a = curve(steps_to(4), {3, 3, 3, 3}), b = curve(steps_to(4), {3, 3, 3, std::nan("")});
  try {
    compare_curves(a, b);
    FAIL() << "NaN was averaged";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::NonFinite);
  }
}

TEST(Compare, OnePairIsSaidToBeOnePairAndAnotherStartIsListed) {
  Curve a = curve(steps_to(4), {3, 3, 3, 3}), b = a;
  a.identity = {{"seed", "1"}, {"data", "d"}, {"init", "i"}};
  b.identity = {{"seed", "2"}, {"data", "d"}, {"init", "j"}};
  const auto c = compare_curves(a, b);
  EXPECT_EQ(c.differences.size(), 2u);
  const std::string text = compare_text(c);
  EXPECT_NE(text.find("One pair: this is about these two runs"), std::string::npos);
  EXPECT_NE(text.find("not told apart"), std::string::npos);
}

TEST(Compare, TheTextEndsWithTheLastPointAndTheJsonHoldsAllOfThem) {
  std::vector<double> a(100, 3.0), b(100, 3.03);
  const auto c = compare_curves(curve(steps_to(100), a), curve(steps_to(100), b));
  EXPECT_NE(compare_text(c, 5).find("         100"), std::string::npos);
  const Json j = compare_json(c);
  EXPECT_EQ(j.at("rows").size(), 100u);
  EXPECT_NEAR(j.at("relative_gap").get<double>(), 0.01, 1e-12);
}

TEST(PairNoise, IsAShareAPercentageOrAFile) {
  const TestDir dir;
  EXPECT_DOUBLE_EQ(pair_noise_from("0.004").sigma, 0.004);
  EXPECT_DOUBLE_EQ(pair_noise_from("0.4%").sigma, 0.004);
  const std::string file = (dir.path() / "floor.json").string();
  write_file(file, R"({"noise_floor": 0.002, "noise_source": "five A/A pairs"})");
  EXPECT_DOUBLE_EQ(pair_noise_from(file).sigma, 0.002);
  EXPECT_NE(pair_noise_from(file).source.find("five A/A pairs"), std::string::npos);
  write_file(dir.path() / "noise_floor.json",
             noise_floor_to_json({.recipe = "nvfp4", .aa_rms = {{"final", 0.002}}, .arms = 1}));
  EXPECT_DOUBLE_EQ(pair_noise_from((dir.path() / "noise_floor.json").string()).sigma, 2.3 * 0.002);
  EXPECT_THROW(pair_noise_from("40"), Error);
  EXPECT_THROW(pair_noise_from("nothing.json"), Error);
}

}  // namespace
}  // namespace nibble
