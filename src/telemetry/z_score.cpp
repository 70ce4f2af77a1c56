// SPDX-License-Identifier: Apache-2.0
#include "telemetry/z_score.h"

#include <cmath>

namespace nibble {
namespace {

constexpr std::size_t kEnough = 16;

}  // namespace

std::optional<double> ZScore::push(double value) {
  if (!std::isfinite(value)) return {};
  std::optional<double> z;
  if (values_.size() >= kEnough) {
    // Two passes over at most 128 values: exact enough for any scale, and cheaper than a line of output.
    const double n = static_cast<double>(values_.size());
    double mean = 0, square = 0;
    for (const double v : values_) mean += v;
    mean /= n;
    for (const double v : values_) square += (v - mean) * (v - mean) / (n - 1);
    // A constant window differs from its computed mean by rounding alone.
    if (square > 1e-24 * mean * mean) z = (value - mean) / std::sqrt(square);
  }
  values_.push_back(value);
  if (values_.size() > window_) values_.pop_front();
  return z;
}

}  // namespace nibble
