// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "numeric/bf16.h"
#include "numeric/random_key.h"

/// Tests only: gradients checked against central differences.
namespace nibble {

/// Standard normal numbers, the same for the same seed.
inline std::vector<float> normal_vector(std::uint64_t seed, std::int64_t count, double sigma = 1,
                                        double mean = 0) {
  std::vector<float> v(count);
  for (std::int64_t i = 0; i < count; ++i)
    v[i] = static_cast<float>(mean + sigma * initial_normal(seed, 0, static_cast<std::uint64_t>(i)));
  return v;
}

/// The same, rounded to BF16.
inline std::vector<bf16> normal_bf16(std::uint64_t seed, std::int64_t count, double sigma) {
  std::vector<bf16> out;
  for (float v : normal_vector(seed, count, sigma)) out.push_back(bf16::nearest(v));
  return out;
}

inline double dot(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += double{a[i]} * b[i];
  return sum;
}

/// Compares `gradient` with (loss(x + step) - loss(x - step)) / (2 step), element by element of `x`, which
/// `loss` reads. The bound is `tolerance` times the largest gradient (at least 1): the difference quotient's
/// own error is of the order step^2 and of the roundings of the F32 outputs over the step.
template <class Loss>
void expect_gradient(const std::string& name, std::vector<float>& x, const std::vector<float>& gradient,
                     Loss&& loss, double tolerance = 2e-3, float step = 0x1p-7f) {
  ASSERT_EQ(x.size(), gradient.size()) << name;
  double scale = 1;
  for (float g : gradient) scale = std::max(scale, std::abs(double{g}));
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float kept = x[i], up = kept + step, down = kept - step;
    x[i] = up;
    const double above = loss();
    x[i] = down;
    const double below = loss();
    x[i] = kept;
    const double numeric = (above - below) / (double{up} - down);
    EXPECT_NEAR(gradient[i], numeric, tolerance * scale) << name << "[" << i << "]";
  }
}

}  // namespace nibble
