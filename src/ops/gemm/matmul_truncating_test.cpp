// SPDX-License-Identifier: Apache-2.0
#include "ops/gemm/matmul_truncating.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "numeric/e4m3.h"
#include "ops/gemm/truncating_step.h"

namespace nibble {
namespace {

/// The published model in its own terms, significands and exponents in FP64: another route to the same bits.
struct Published {
  double significand;
  int exponent;

  static Published of(double x, int least) {
    int exponent = 0;
    double significand = 2 * std::frexp(x, &exponent);
    --exponent;
    if (exponent < least) {
      significand = std::ldexp(significand, exponent - least);
      exponent = least;
    }
    return significand == 0 ? Published{0, -126} : Published{significand, exponent};
  }
};

float published_step(float acc, const std::array<double, 4>& sums, const std::array<double, 4>& a,
                     const std::array<double, 4>& b) {
  std::vector<Published> terms = {Published::of(acc, -126)};
  for (int g = 0; g < 4; ++g) {
    const Published x = Published::of(a[g], -6), y = Published::of(b[g], -6);
    terms.push_back({sums[g] * x.significand * y.significand, x.exponent + y.exponent});
  }
  int largest = terms[0].exponent;
  for (const Published& t : terms) largest = std::max(largest, t.exponent);
  double sum = 0;
  for (const Published& t : terms)
    sum += std::ldexp(std::trunc(std::ldexp(t.significand, 35 + t.exponent - largest)), -35);
  const Published r = Published::of(std::ldexp(sum, largest), -126);
  return static_cast<float>(std::ldexp(std::trunc(std::ldexp(r.significand, 23)), r.exponent - 23));
}

/// One row of operands of K = 64 steps, and the sum that matmul_truncating makes of them.
struct Sum {
  std::vector<std::uint8_t> a, b, sa, sb;

  explicit Sum(std::int64_t steps)
      : a(static_cast<std::size_t>(32 * steps), 0),
        b(a),
        sa(static_cast<std::size_t>(4 * steps), 0x38),
        sb(sa) {}
  float compute(BackendKind backend) const {
    HostDevice device;
    Stream stream(backend, device, 1);
    float c = 0;
    const auto row = [](const std::vector<std::uint8_t>& x) {
      return View<const std::uint8_t>(x.data(), std::int64_t{1}, std::ssize(x));
    };
    matmul_truncating(stream, {.a_codes = row(a),
                               .b_codes = row(b),
                               .a_scales = row(sa),
                               .b_scales = row(sb),
                               .c_MN = View<float>(&c, std::int64_t{1}, std::int64_t{1})});
    return c;
  }
};

double value(std::uint8_t code) {
  constexpr double kValues[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  return code < 8 ? kValues[code] : -kValues[code - 8];
}

float published_sum(const Sum& s) {
  float acc = 0;
  for (std::size_t step = 0; step < s.sa.size() / 4; ++step) {
    std::array<double, 4> sums{}, a{}, b{};
    for (std::size_t g = 0; g < 4; ++g) {
      a[g] = E4M3{s.sa[4 * step + g]}.value();
      b[g] = E4M3{s.sb[4 * step + g]}.value();
      for (std::size_t i = 0; i < 8; ++i) {
        const std::size_t at = 32 * step + 8 * g + i;
        sums[g] += value(s.a[at] & 15) * value(s.b[at] & 15) + value(s.a[at] >> 4) * value(s.b[at] >> 4);
      }
    }
    acc = published_step(acc, sums, a, b);
  }
  return acc;
}

class Truncating : public testing::TestWithParam<BackendKind> {};
INSTANTIATE_TEST_SUITE_P(Backends, Truncating, testing::Values(BackendKind::Ref, BackendKind::Cpu),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST_P(Truncating, IsThePublishedModelOnEveryKindOfScale) {
  std::mt19937 random(7);
  int inexact = 0;
  for (int trial = 0; trial < 2000; ++trial) {
    Sum s(1 + trial % 5);
    for (auto& x : s.a) x = static_cast<std::uint8_t>(random());
    for (auto& x : s.b) x = static_cast<std::uint8_t>(random());
    // All scales, those around 1, and zeros among large ones.
    const unsigned low = trial % 3 == 1 ? 0x30 : 0, count = trial % 3 == 1 ? 16 : 0x7F;
    for (auto* scales : {&s.sa, &s.sb})
      for (auto& x : *scales)
        x = trial % 3 == 2 && random() % 2 == 0 ? 0 : static_cast<std::uint8_t>(low + random() % count);
    const float sum = s.compute(GetParam());
    ASSERT_EQ(sum, published_sum(s)) << "trial " << trial;
    double exact = 0;
    for (std::size_t i = 0; i < s.a.size(); ++i) {
      const double scale = double{E4M3{s.sa[i / 8]}.value()} * E4M3{s.sb[i / 8]}.value();
      exact += scale * (value(s.a[i] & 15) * value(s.b[i] & 15) + value(s.a[i] >> 4) * value(s.b[i] >> 4));
    }
    inexact += exact != sum;
  }
  EXPECT_GT(inexact, 100);  // the model must show
}

TEST_P(Truncating, CutsTowardsZeroWhereRoundingWouldGoUp) {
  // 448 * 448 * (6 * 6 * 16 + ...) in the first step, then an addend of 0.75 ulp of it of either sign.
  Sum s(2);
  std::fill(s.a.begin(), s.a.begin() + 32, 0x77);
  std::fill(s.b.begin(), s.b.begin() + 32, 0x77);
  std::fill(s.sa.begin(), s.sa.begin() + 4, 0x7E);
  std::fill(s.sb.begin(), s.sb.begin() + 4, 0x7E);
  const float large = s.compute(GetParam());
  EXPECT_EQ(large, 448.0f * 448.0f * 36 * 64);
  const float ulp = std::nextafter(large, std::numeric_limits<float>::infinity()) - large;
  ASSERT_EQ(ulp, 32.0f);
  s.a[32] = s.b[32] = 0x06;  // 4 * 4 * 1.5 = 24
  s.sa[4] = 0x3C;
  EXPECT_EQ(s.compute(GetParam()), large);
  s.a[32] = 0x0E;  // -24
  EXPECT_EQ(s.compute(GetParam()), large - ulp);
}

TEST_P(Truncating, SmallTermsBesideAWideNominalExponentAreLost) {
  // Two groups cancel under scales of 448 (nominal exponent 16, the last place kept is 2^-19); a group under
  // the smallest scales is below it.
  Sum s(1);
  s.a[0] = 0x07;
  s.b[0] = 0x07;
  s.a[8] = 0x07;
  s.b[8] = 0x0F;
  s.sa[0] = s.sb[0] = s.sa[1] = s.sb[1] = 0x7E;
  s.a[16] = s.b[16] = 0x01;
  s.sa[2] = s.sb[2] = 0x01;  // 0.25 * 2^-18
  EXPECT_EQ(s.compute(GetParam()), 0.0f);
  s.sa[0] = s.sb[0] = s.sa[1] = s.sb[1] = 0x38;
  EXPECT_EQ(s.compute(GetParam()), std::ldexp(1.0f, -20));
}

TEST_P(Truncating, ANanScaleIsANan) {
  Sum s(2);
  s.sb[1] = 0x7F;
  EXPECT_TRUE(std::isnan(s.compute(GetParam())));
}

TEST(TruncatingStep, BeyondFp32) {
  GroupSum none[4] = {};
  EXPECT_EQ(truncating_step(1.5f, none), 1.5f);
  EXPECT_EQ(truncating_step(-1e-40f, none), -1e-40f);  // subnormal
  EXPECT_TRUE(std::isinf(truncating_step(std::numeric_limits<float>::infinity(), none)));
  GroupSum huge[4] = {{1 << 18, 126, false}, {}, {}, {}};
  EXPECT_TRUE(std::isinf(truncating_step(0, huge)));
  GroupSum tiny[4] = {{3, -141, false}, {}, {}, {}};  // 3 * 2^-149
  EXPECT_EQ(truncating_step(0, tiny), 3 * std::numeric_limits<float>::denorm_min());
}

TEST(TruncatingCheck, NamesWhatDoesNotFit) {
  std::vector<std::uint8_t> bytes(64);
  float c = 0;
  const View<const std::uint8_t> codes(bytes.data(), std::int64_t{1}, std::int64_t{32}),
      scales(bytes.data(), std::int64_t{1}, std::int64_t{4});
  MatMulTruncating g{.a_codes = codes, .b_codes = codes, .a_scales = scales, .b_scales = scales};
  g.c_MN = View<float>(&c, std::int64_t{1}, std::int64_t{1});
  EXPECT_NO_THROW(check(g));
  g.format = Format::Mxfp8E4M3;
  EXPECT_THROW(check(g), Error);
  g.format = Format::Mxfp4;  // two scales a row, not four
  EXPECT_THROW(check(g), Error);
}

}  // namespace
}  // namespace nibble
