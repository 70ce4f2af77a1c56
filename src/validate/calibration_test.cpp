// SPDX-License-Identifier: Apache-2.0
#include "validate/calibration.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <sstream>
#include <utility>

#include "base/error.h"

namespace nibble {
namespace {

constexpr int kSimulations = 150;  // the whole calibration is `nibble bench --verdict`

const NoiseWorld& world(const std::string& name) {
  for (const auto& w : noise_worlds()) {
    if (w.name == name) return w;
  }
  fail("no world is called {}", name);
}

/// Rows of a CSV file, the lines of comment and the heading left out.
std::vector<std::vector<std::string>> csv(const std::string& path) {
  std::ifstream in(std::string(NIBBLE_SOURCE_DIR "/tests/golden/") + path);
  std::vector<std::vector<std::string>> rows;
  bool heading = true;
  for (std::string line; std::getline(in, line);) {
    if (line.empty() || line[0] == '#') continue;
    if (std::exchange(heading, false)) continue;
    std::istringstream row(line);
    rows.emplace_back();
    for (std::string field; std::getline(row, field, ',');) rows.back().push_back(field);
  }
  return rows;
}

TEST(NoiseWorlds, ThePublicOneIsThatOfTheBundledTable) {
  struct Sum {
    double loss = 0, square = 0;
    int baselines = 0, systems = 0;
  };
  std::map<double, Sum> by_tokens;
  for (const auto& row : csv("mlperf51/llama31_8b_val_loss.csv")) {
    Sum& s = by_tokens[std::stod(row.at(2))];
    const double mean = std::stod(row.at(4)), sd = std::stod(row.at(5));
    s.square += sd / mean * (sd / mean), ++s.systems;
    if (row.at(0) == "fp8") s.loss += mean, ++s.baselines;
  }
  const auto& curve = world("public").curve;
  ASSERT_EQ(curve.size(), by_tokens.size());
  std::size_t i = 0;
  for (const auto& [tokens, s] : by_tokens) {
    EXPECT_NEAR(curve[i].share, tokens / by_tokens.rbegin()->first, 1e-12);
    EXPECT_NEAR(curve[i].loss, s.loss / s.baselines, 1e-5);
    EXPECT_NEAR(curve[i].sigma, std::sqrt(2 * s.square / s.systems), 1e-6);
    ++i;
  }
}

TEST(NoiseWorlds, OurOwnHasTheSizeAndTheAutocorrelationOfOurAAGaps) {
  std::map<std::string, std::vector<double>> runs;  // every 15 steps of 300, once the gaps have settled
  for (const auto& row : csv("aa/quickstart.csv")) {
    const int step = std::stoi(row.at(1));
    if (step % 15 == 0 && step >= 90) runs[row.at(0)].push_back(std::stod(row.at(2)));
  }
  ASSERT_EQ(runs.size(), 3u);
  double square = 0, lag1 = 0, lag2 = 0;
  int n = 0, n1 = 0, n2 = 0;
  for (const auto& [name, g] : runs) {
    for (std::size_t i = 0; i < g.size(); ++i) {
      square += g[i] * g[i], ++n;
      if (i >= 1) lag1 += g[i] * g[i - 1], ++n1;
      if (i >= 2) lag2 += g[i] * g[i - 2], ++n2;
    }
  }
  const NoiseWorld& own = world("own");
  const double variance = square / n;
  EXPECT_NEAR(own.curve.back().sigma * own.aa_ratio, std::sqrt(variance), 1e-4);
  const auto& m = own.correlation;
  const auto modelled = [&](double distance) {
    return m.offset_share +
           (1 - m.offset_share) * std::pow(m.jitter_correlation, distance / m.jitter_distance);
  };
  EXPECT_NEAR(modelled(0.05), lag1 / n1 / variance, 0.05);
  EXPECT_NEAR(modelled(0.10), lag2 / n2 / variance, 0.10);
}

TEST(Calibration, KeepsItsPromisesInEveryWorldWithFewerSimulations) {
  for (const auto& w : noise_worlds()) {
    for (const int pairs : {1, 3}) {
      const CalibrationRow r = calibrate(w, pairs, kSimulations, 7);
      // Three standard errors of a share of 95 % among 150.
      const double slack = 3 * std::sqrt(0.95 * 0.05 / kSimulations);
      EXPECT_LE(r.false_fail, 0.05) << w.name << pairs;
      EXPECT_LE(r.false_pass, 0.05) << w.name << pairs;
      EXPECT_LE(r.false_abort, 0.01 + slack / 2) << w.name << pairs;
      EXPECT_GE(r.coverage, 0.93 - slack) << w.name << pairs;
      if (pairs >= 3) {
        EXPECT_LE(r.coverage, 0.97 + slack) << w.name << pairs;
      }
      EXPECT_GE(r.true_abort, 0.95) << "a gap of twice the limit must not run to the end";
      EXPECT_LE(r.abort_delay, 0.15) << w.name << pairs;
    }
  }
}

TEST(Calibration, SeesANoiseThatTheRuleTakesTooSmall) {
  // The benchmark must be able to say no: an A/A arm that sees a fifth of the noise makes the interval
  // narrow.
  NoiseWorld blind = world("own");
  blind.aa_ratio = 0.1;
  const CalibrationRow r = calibrate(blind, 1, kSimulations, 7);
  EXPECT_LT(r.coverage, 0.85);
  EXPECT_FALSE(missed_promises(r).empty());
}

TEST(Calibration, IsRepeatable) {
  const CalibrationRow a = calibrate(world("public"), 2, 20, 3), b = calibrate(world("public"), 2, 20, 3);
  EXPECT_EQ(a.coverage, b.coverage);
  EXPECT_EQ(a.abort_delay, b.abort_delay);
  EXPECT_EQ(a.passed_at_limit, b.passed_at_limit);
}

TEST(MissedPromises, NameWorldPairsAndFigure) {
  CalibrationRow r{.world = "own", .pairs = 3, .simulations = 2000};
  r.coverage = 0.98, r.false_abort = 0.02;
  const auto missed = missed_promises(r);
  ASSERT_EQ(missed.size(), 2u);
  EXPECT_NE(missed[0].find("own, 3 pairs: coverage of the 95 % interval is 98.00 %"), std::string::npos);
  EXPECT_NE(missed[1].find("2.00 %"), std::string::npos);
}

}  // namespace
}  // namespace nibble
