// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <vector>

#include "numeric/random_key.h"
#include "ops/health/quant_stats.h"

/// What others publish of each format's error, and the means to measure ours: bytes can be right against a
/// reference and wrong against the world. `nibble bench --formats` prints the table, the conformance tests
/// hold us to it.
namespace nibble {

/// A distribution to draw matrices from: x[row, col] is a pure function of the place.
struct AnchorDistribution {
  const char* name;
  double (*value)(std::int64_t row, std::int64_t col);
};

inline constexpr std::int64_t kAnchorCols = 2048;  ///< columns of every matrix of anchors
inline constexpr int kAnchorDistributions = 6;

/// Gaussian, Laplace, uniform on (-1, 1), Student t with four degrees of freedom, Gaussian with one column of
/// 256 64 times as large, Gaussian rows of log-normal size (sigma 1.5) times 1e-6.
std::span<const AnchorDistribution> anchor_distributions();

/// `rows` x kAnchorCols samples.
template <class T>
std::vector<T> draw(const AnchorDistribution& d, std::int64_t rows) {
  std::vector<T> x(static_cast<std::size_t>(rows * kAnchorCols));
  for (std::int64_t i = 0; i < rows * kAnchorCols; ++i) {
    x[static_cast<std::size_t>(i)] =
        from_float<T>(static_cast<float>(d.value(i / kAnchorCols, i % kAnchorCols)));
  }
  return x;
}

/// Published errors of one format, sum (q - x)^2 / sum x^2, by distribution; 0: none is published.
struct FormatAnchor {
  std::string name;
  QuantSpec spec;
  double nmse[kAnchorDistributions];
};

/// An independent emulation's, BF16 samples, 2048 x 2048, three digits [ANCHORS].
const std::vector<FormatAnchor>& format_anchors();

/// Decibels within which an error on 4 M samples agrees with its anchor: heavy tails and few independent rows
/// make it noisy. [ANCHORS]
double anchor_tolerance_db(int distribution, Tile tile);

/// What quantising Gaussian FP32 samples does besides its error [QUARTET2] [ANCHORS].
struct GaussianAnchor {
  std::string name;
  QuantSpec spec;
  double mse;        ///< in the source's own emulation
  double published;  ///< in the paper's table; 0: not there
  double slope;      ///< <x, q> / <x, x> - 1
  double zeros;      ///< share of values that become zero; 0: not given
};
const std::vector<GaussianAnchor>& gaussian_anchors();

/// How the error of the mean of B draws falls with B: to 0 where the rounding is unbiased, to a plateau where
/// it is not. Relative squared error at B = 1, 16, 256, 1024. [QUARTET2] [ANCHORS]
struct UnbiasednessAnchor {
  std::string name;
  QuantSpec spec;
  double error[4];
};
inline constexpr int kAnchorDraws[4] = {1, 16, 256, 1024};
const std::vector<UnbiasednessAnchor>& unbiasedness_anchors();

/// Quantises x (rotated where the spec says so), decodes and compares.
QuantStats measure_format(Stream& stream, ConstRealView x, const QuantSpec& spec, const RandomKey& key);

/// Relative squared error of the mean of `draws` quantisations of x, and its slope. Rotated ones are turned
/// back before the mean is taken; the rotation must divide the columns.
struct MeanError {
  double error = 0, slope = 0;
};
MeanError mean_error(Stream& stream, ConstRealView x, const QuantSpec& spec, int draws);

}  // namespace nibble
