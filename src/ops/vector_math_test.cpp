// SPDX-License-Identifier: Apache-2.0
#include "ops/vector_math.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace nibble {
namespace {

double ulps(float got, double exact) {
  const float nearest = static_cast<float>(exact);
  if (std::isinf(nearest)) return std::isinf(got) ? 0 : 1e9;
  int exponent = 0;
  std::frexp(exact, &exponent);
  const double ulp = std::ldexp(1.0, std::max(exponent - 24, -149));
  return std::abs(got - exact) / ulp;
}

/// The worst error over FP32 arguments in [low, high], visiting every `stride`-th bit pattern.
template <class F, class G>
double worst(float low, float high, std::uint32_t stride, F&& fast, G&& exact) {
  double worst = 0;
  for (std::uint32_t sign : {0u, 0x80000000u})
    for (std::uint32_t u = 0; u < 0x7F800000u; u += stride) {
      const float x = std::bit_cast<float>(u | sign);
      if (x < low || x > high) continue;
      worst = std::max(worst, ulps(fast(x), exact(static_cast<double>(x))));
    }
  return worst;
}

constexpr std::uint32_t kStride = 997;  // a prime: every part of the exponent and significand is visited

TEST(VectorMath, ExpIsWithinOneUlp) {
  EXPECT_LE(worst(
                -104, 88.72f, kStride, [](float x) { return vexp(x); }, [](double x) { return std::exp(x); }),
            1.0);
}

TEST(VectorMath, ExpKeepsNanAndReachesZeroAndInfinity) {
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(std::isnan(vexp(std::numeric_limits<float>::quiet_NaN())));
  EXPECT_EQ(vexp(-inf), 0.0f);
  EXPECT_EQ(vexp(inf), inf);
  EXPECT_EQ(vexp(89.0f), inf);
  EXPECT_EQ(vexp(0.0f), 1.0f);
  EXPECT_EQ(vexp(-200.0f), 0.0f);
}

TEST(VectorMath, Log1pIsWithinTwoUlpOnTheUnitInterval) {
  EXPECT_LE(
      worst(
          0, 1, kStride, [](float x) { return vlog1p_unit(x); }, [](double x) { return std::log1p(x); }),
      2.0);
}

TEST(VectorMath, SoftplusSigmoidAndSiluAreWithinThreeUlp) {
  const auto softplus = [](double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); };
  EXPECT_LE(worst(
                -87, 1e30f, kStride, [](float x) { return vsoftplus(x); }, softplus),
            3.0);
  EXPECT_LE(worst(
                -87, 1e30f, kStride, [](float x) { return vsigmoid(x); },
                [](double x) { return 1 / (1 + std::exp(-x)); }),
            3.0);
  EXPECT_LE(worst(
                -87, 1e30f, kStride, [](float x) { return vsilu(x); },
                [](double x) { return x / (1 + std::exp(-x)); }),
            3.0);
}

}  // namespace
}  // namespace nibble
