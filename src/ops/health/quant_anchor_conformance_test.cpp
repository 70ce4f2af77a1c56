// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>

#include "ops/health/format_anchors.h"

/// Errors of each format on known distributions. Bytes can be right against a reference and wrong against the
/// world; these numbers come from an independent emulation and from the literature, and catch a wrong scale
/// rule or a wrong tie where a loose bound would not.
namespace nibble {
namespace {

class QuantAnchors : public ::testing::Test {
 protected:
  template <class T>
  static ConstRealView view(const std::vector<T>& x) {
    return View<const T>(x.data(), static_cast<std::int64_t>(x.size()) / kAnchorCols, kAnchorCols);
  }

  void expect_anchors(int d, std::int64_t rows, bool common) {
    const AnchorDistribution& distribution = anchor_distributions()[static_cast<std::size_t>(d)];
    const std::vector<bf16> x = draw<bf16>(distribution, rows);
    for (const FormatAnchor& a : format_anchors()) {
      if (a.nmse[d] == 0 || is_common(a.spec) != common) continue;
      const QuantStats s = measure_format(stream_, view(x), a.spec, {.seed = 9});
      EXPECT_NEAR(s.sqnr_db(), -10 * std::log10(a.nmse[d]), anchor_tolerance_db(d, a.spec.tile))
          << a.name << " on " << distribution.name << ": NMSE " << s.sum_e2 / s.sum_x2;
    }
  }

  HostDevice host_;
  Stream stream_{BackendKind::Cpu, host_, 2};
};

/// What has kernels of its own: every distribution at four million samples.
TEST_F(QuantAnchors, ErrorsAreThoseOfAnIndependentEmulation) {
  for (int d = 0; d < kAnchorDistributions; ++d) expect_anchors(d, 2048, true);
}

/// The rest is slower. A Gaussian of a million samples has a standard error of 0.006 dB; the distributions
/// with heavier tails need four million, which `nibble bench --formats --samples 4194304` draws.
TEST_F(QuantAnchors, ErrorsOfTheOtherFormatsAndRulesToo) {
  for (int d = 0; d < 3; ++d) expect_anchors(d, 512, false);
}

TEST_F(QuantAnchors, ShrinkAndShareOfZerosAreThePublishedOnes) {
  // FP32 samples: BF16 ones lie on ties often enough, and ties to even go down more often than up, to move
  // the slope of MXFP4 by a tenth of its value.
  const std::vector<float> x = draw<float>(anchor_distributions()[0], 1024);
  for (const GaussianAnchor& a : gaussian_anchors()) {
    const QuantStats s = measure_format(stream_, view(x), a.spec, {.seed = 9});
    EXPECT_NEAR(s.sqnr_db(), -10 * std::log10(a.mse), 0.05) << a.name;
    EXPECT_NEAR(s.sum_xq / s.sum_x2 - 1, a.slope, 4e-4) << a.name;
    if (a.zeros > 0) {
      EXPECT_NEAR(s.flushed_share(), a.zeros, 1e-3) << a.name;
    }
  }
}

/// The mean over independent keys approaches x clipped to the block's range; eight random bits pull it
/// towards zero by half of 1/256 of a step besides.
TEST_F(QuantAnchors, TheMeanOfStochasticRoundingConvergesAndEightBitsPullItTowardsZero) {
  const std::vector<bf16> x = draw<bf16>(anchor_distributions()[0], 16);
  QuantSpec exact{.format = Format::Nvfp4, .rounding = Rounding::StochasticExact}, coarse = exact;
  coarse.rounding = Rounding::Stochastic;
  const MeanError one = mean_error(stream_, view(x), exact, 1);
  const MeanError many = mean_error(stream_, view(x), exact, 256);
  const MeanError eight_bits = mean_error(stream_, view(x), coarse, 256);
  // What is left is the clipping of block maxima whose scale was rounded down.
  EXPECT_LT(many.error, one.error / 60);
  EXPECT_NEAR(many.slope, -0.0034, 6e-4);
  EXPECT_LT(eight_bits.slope, many.slope);
  EXPECT_NEAR(eight_bits.slope - many.slope, -9e-4, 6e-4);
}

TEST_F(QuantAnchors, HeadroomHasNoPlateauAndFourOverSixHasTheHighest) {
  const std::vector<float> x = draw<float>(anchor_distributions()[0], 8);
  for (const UnbiasednessAnchor& a : unbiasedness_anchors()) {
    for (int b : {0, 2}) {
      const double measured = mean_error(stream_, view(x), a.spec, kAnchorDraws[b]).error;
      EXPECT_NEAR(measured / a.error[b], 1, 0.15) << a.name << ", mean of " << kAnchorDraws[b];
    }
  }
}

}  // namespace
}  // namespace nibble
