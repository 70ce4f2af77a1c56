// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "ops/health/quant_stats.h"
#include "ops/quantize/quantize_testing.h"
#include "ops/quantize/rotate.h"

/// Errors of each format on known distributions, 4 M samples each. Bytes can be right against a reference and
/// wrong against the world; these numbers come from an independent emulation and from the literature, and
/// catch a wrong scale rule or a wrong tie where a loose bound would not.
namespace nibble {
namespace {

using testing::normal;
using testing::Quantized;
using testing::TestMatrix;
using testing::uniform;

constexpr std::int64_t kSize = 2048;

struct Distribution {
  const char* name;
  std::function<double(std::int64_t row, std::int64_t col)> value;
};

double gaussian(std::int64_t r, std::int64_t c) { return normal(20, r * kSize + c); }

double laplace(std::int64_t r, std::int64_t c) {
  const double u = uniform(21, r * kSize + c) - 0.5;
  return (u < 0 ? 1 : -1) * std::log1p(-2 * std::fabs(u));
}

/// A normal number over the root of a chi-square one of four degrees of freedom, itself the sum of two
/// exponential ones.
double student_t4(std::int64_t r, std::int64_t c) {
  const std::int64_t i = r * kSize + c;
  const double chi2 = -2 * std::log(uniform(22, i)) - 2 * std::log(uniform(23, i));
  return normal(24, i) / std::sqrt(chi2 / 4);
}

const std::vector<Distribution>& distributions() {
  static const std::vector<Distribution> all = {
      {"gaussian", gaussian},
      {"laplace", laplace},
      {"uniform", [](std::int64_t r, std::int64_t c) { return 2 * uniform(25, r * kSize + c) - 1; }},
      {"student t4", student_t4},
      {"channels x64",
       [](std::int64_t r, std::int64_t c) {
         return gaussian(r, c) * (c % 256 == 37 + c / 256 * 29 % 200 ? 64 : 1);
       }},
      {"log-normal rows",
       [](std::int64_t r, std::int64_t c) { return gaussian(r, c) * std::exp(1.5 * normal(26, r)) * 1e-6; }}};
  return all;
}

/// sum of squared errors over sum of squares, by distribution; 0 where there is no anchor.
struct Anchor {
  const char* name;
  QuantSpec spec;
  double nmse[6];
};

const std::vector<Anchor>& anchors() {
  using R = Rounding;
  const Format nv = Format::Nvfp4;
  static const std::vector<Anchor> all = {
      {"nvfp4 1x16", {.format = nv}, {9.05e-3, 8.61e-3, 1.03e-2, 8.44e-3, 3.32e-3, 9.14e-3}},
      {"nvfp4 16x16",
       {.format = nv, .tile = Tile::Square},
       {1.24e-2, 1.68e-2, 1.21e-2, 2.28e-2, 1.26e-2, 2.04e-2}},
      {"nvfp4 sr exact",
       {.format = nv, .rounding = R::StochasticExact},
       {1.88e-2, 1.83e-2, 2.11e-2, 1.80e-2, 1.30e-2, 1.84e-2}},
      {"nvfp4 sr",
       {.format = nv, .rounding = R::Stochastic},
       {1.89e-2, 1.83e-2, 2.11e-2, 1.80e-2, 1.29e-2, 1.92e-2}},
      {"nvfp4 rotated",
       {.format = nv, .rotation = 16},
       {9.05e-3, 9.25e-3, 8.95e-3, 9.35e-3, 8.40e-3, 9.06e-3}},
      {"mxfp4", {.format = Format::Mxfp4}, {1.332e-2, 1.746e-2, 9.77e-3, 1.934e-2, 1.57e-2, 1.349e-2}},
      {"mxfp8 e4m3", {.format = Format::Mxfp8E4M3}, {7.04e-4, 7.07e-4, 5.62e-4, 7.06e-4, 7.20e-4, 7.03e-4}},
      {"mxfp8 e5m2", {.format = Format::Mxfp8E5M2}, {2.79e-3, 2.78e-3, 2.24e-3, 2.79e-3, 2.75e-3, 2.83e-3}},
      {"fp8 e4m3", {.format = Format::Fp8E4M3}, {7.00e-4, 7.01e-4, 6.51e-4, 7.01e-4, 7.01e-4, 7.09e-4}},
      {"fp8 e5m2", {.format = Format::Fp8E5M2}, {2.77e-3, 2.78e-3, 2.60e-3, 2.78e-3, 2.76e-3, 2.78e-3}}};
  return all;
}

/// Decibels by which a measured error may differ: heavy tails and few independent rows make it noisy.
double tolerance_db(std::size_t distribution, Tile tile) {
  const bool square = tile == Tile::Square;
  if (distribution >= 4) return square ? 1.5 : 0.5;
  return distribution == 3 && square ? 0.1 : 0.05;
}

class QuantAnchors : public ::testing::Test {
 protected:
  static TestMatrix draw(const Distribution& d, bool f32 = false) {
    TestMatrix x(kSize, kSize, f32);
    for (std::int64_t r = 0; r < kSize; ++r) {
      for (std::int64_t c = 0; c < kSize; ++c) x.set(r, c, static_cast<float>(d.value(r, c)));
    }
    return x;
  }

  QuantStats measure(const TestMatrix& x, const QuantSpec& spec) {
    const Quantized q = testing::quantize_all(stream_, x.view(), {.spec = spec, .random = {.seed = 9}});
    TestMatrix rotated(spec.rotation != 0 ? kSize : 0, kSize, false);
    if (spec.rotation != 0) {
      rotate(stream_, {.x_RC = x.view(), .out = View<bf16>(rotated.narrow.data(), kSize, kSize)});
    }
    QuantStats stats;
    MeasureQuant m{.x_RC = spec.rotation != 0 ? rotated.view() : x.view(), .spec = spec, .amax = &q.amax};
    m.scale = &q.scale;
    m.codes = View<const std::uint8_t>(q.codes.data(), q.shape.rows, q.shape.code_cols);
    if (q.shape.scale_cols) m.scales = View<const std::uint8_t>(q.scales.data(), kSize, q.shape.scale_cols);
    m.out = &stats;
    measure_quant(stream_, m);
    return stats;
  }

  HostDevice host_;
  Stream stream_{BackendKind::Cpu, host_, 2};
};

TEST_F(QuantAnchors, ErrorsAreThoseOfAnIndependentEmulation) {
  for (std::size_t d = 0; d < distributions().size(); ++d) {
    const TestMatrix x = draw(distributions()[d]);
    for (const Anchor& a : anchors()) {
      const QuantStats s = measure(x, a.spec);
      const double expected = -10 * std::log10(a.nmse[d]);
      EXPECT_NEAR(s.sqnr_db(), expected, tolerance_db(d, a.spec.tile))
          << a.name << " on " << distributions()[d].name << ": NMSE " << s.sum_e2 / s.sum_x2;
    }
  }
}

TEST_F(QuantAnchors, ShrinkAndShareOfZerosAreThePublishedOnes) {
  struct Case {
    QuantSpec spec;
    double slope, zeros;
  };
  const std::vector<Case> cases = {
      {{.format = Format::Nvfp4}, -0.0045, 0.068},
      {{.format = Format::Nvfp4, .tile = Tile::Square}, -0.0088, 0.101},
      {{.format = Format::Nvfp4, .rounding = Rounding::StochasticExact}, -0.0034, 0.068},
      {{.format = Format::Mxfp4}, -0.0099, 0.107}};
  // FP32 samples: BF16 ones lie on ties often enough, and ties to even go down more often than up, to move
  // the slope of MXFP4 by a tenth of its value.
  const TestMatrix x = draw(distributions()[0], true);
  for (const Case& c : cases) {
    const QuantStats s = measure(x, c.spec);
    EXPECT_NEAR(s.sum_xq / s.sum_x2 - 1, c.slope, 3e-4) << info(c.spec.format).name;
    EXPECT_NEAR(s.flushed_share(), c.zeros, 1e-3) << info(c.spec.format).name;
  }
}

/// The mean over independent keys approaches x clipped to the block's range; eight random bits pull it
/// towards zero by half of 1/256 of a step besides.
TEST_F(QuantAnchors, TheMeanOfStochasticRoundingConvergesAndEightBitsPullItTowardsZero) {
  TestMatrix x(64, 512, false);
  for (std::int64_t i = 0; i < 64 * 512; ++i) x.set(i / 512, i % 512, static_cast<float>(normal(27, i)));
  const auto mean_of = [&](Rounding rounding, int draws) {
    std::vector<double> mean(64 * 512);
    for (int k = 0; k < draws; ++k) {
      const Quantized q =
          testing::quantize_all(stream_, x.view(),
                                {.spec = {.format = Format::Nvfp4, .rounding = rounding},
                                 .random = {.seed = 3, .step = static_cast<std::uint32_t>(k)}});
      for (std::size_t i = 0; i < mean.size(); ++i) {
        mean[i] += bf16{q.values[i]}.value() * static_cast<double>(q.amax) / 2688 / draws;
      }
    }
    return mean;
  };
  const auto slope_and_error = [&](const std::vector<double>& mean) {
    double xq = 0, x2 = 0, e2 = 0;
    for (std::size_t i = 0; i < mean.size(); ++i) {
      const double v = x.narrow[i].value();
      xq += v * mean[i];
      x2 += v * v;
      e2 += (mean[i] - v) * (mean[i] - v);
    }
    return std::pair{xq / x2 - 1, e2 / x2};
  };
  const auto [one_slope, one_error] = slope_and_error(mean_of(Rounding::StochasticExact, 1));
  const auto [exact_slope, exact_error] = slope_and_error(mean_of(Rounding::StochasticExact, 256));
  const auto [coarse_slope, coarse_error] = slope_and_error(mean_of(Rounding::Stochastic, 256));
  // What is left is the clipping of block maxima whose scale was rounded down.
  EXPECT_LT(exact_error, one_error / 60);
  EXPECT_NEAR(exact_slope, -0.0034, 6e-4);
  EXPECT_LT(coarse_slope, exact_slope);
  EXPECT_NEAR(coarse_slope - exact_slope, -9e-4, 6e-4);
}

}  // namespace
}  // namespace nibble
