// SPDX-License-Identifier: Apache-2.0
#include "quant/hadamard.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <set>
#include <string>

#include "numeric/random_key.h"
#include "quant/format.h"

namespace nibble {
namespace {

constexpr std::uint16_t kMask = QuantSpec{}.sign_mask;

double entry(int r, int c, std::uint16_t mask) {
  const int flips = std::popcount(static_cast<unsigned>(r & c)) + ((mask >> r) & 1);
  return flips % 2 ? -0.25 : 0.25;
}

void fill_bf16(float (&x)[16], std::uint64_t seed) {
  for (int j = 0; j < 16; ++j) {
    x[j] = bf16::nearest(static_cast<float>(initial_normal(seed, 2, static_cast<std::uint64_t>(j)))).value();
  }
}

TEST(Hadamard, TheSignsAreThoseOfTheSource) {
  const int signs[16] = {1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1};
  for (int i = 0; i < 16; ++i) EXPECT_EQ((kMask >> i) & 1, signs[i] < 0) << i;
}

TEST(Hadamard, RowsAreThoseOfTheMatrixAndOrthonormal) {
  float rows[16][16] = {};
  for (int r = 0; r < 16; ++r) {
    rows[r][r] = 1;
    rotate_block(rows[r], kMask);
    for (int c = 0; c < 16; ++c) EXPECT_EQ(rows[r][c], entry(r, c, kMask)) << r << " " << c;
  }
  for (int a = 0; a < 16; ++a) {
    for (int b = 0; b < 16; ++b) {
      float dot = 0;
      for (int c = 0; c < 16; ++c) dot += rows[a][c] * rows[b][c];
      EXPECT_EQ(dot, a == b ? 1.0f : 0.0f);
    }
  }
}

TEST(Hadamard, IsExactOnIntegers) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    float x[16];
    double expected[16] = {};
    for (int r = 0; r < 16; ++r) {
      x[r] = std::round(1000 * static_cast<float>(initial_normal(seed, 3, static_cast<std::uint64_t>(r))));
      for (int c = 0; c < 16; ++c) expected[c] += entry(r, c, kMask) * static_cast<double>(x[r]);
    }
    hadamard16(x, kMask);
    for (int c = 0; c < 16; ++c) ASSERT_EQ(static_cast<double>(x[c]), expected[c]);
  }
}

TEST(Hadamard, LeavesTheProductOfTwoRotatedOperandsAsItWas) {
  for (std::uint16_t mask : {kMask, std::uint16_t{0}}) {
    float x[16], y[16];
    fill_bf16(x, 1);
    fill_bf16(y, 2);
    double before = 0, after = 0;
    for (int j = 0; j < 16; ++j) before += static_cast<double>(x[j]) * static_cast<double>(y[j]);
    hadamard16(x, mask);
    hadamard16(y, mask);
    for (int j = 0; j < 16; ++j) after += static_cast<double>(x[j]) * static_cast<double>(y[j]);
    EXPECT_NEAR(before, after, 1e-5);
  }
}

constexpr RotationSigns kSigns[] = {RotationSigns::Fixed, RotationSigns::Redrawn, RotationSigns::None};
constexpr RandomKey kKey{.seed = 7, .step = 3, .layer = 2, .role = 4};

TEST(Hadamard, OfAnySizeHasOrthonormalRowsOfOneMagnitude) {
  for (int size = 2; size <= kLargestRotation; size *= 2) {
    for (const RotationSigns signs : kSigns) {
      const SignBits bits = rotation_signs(size, signs, kMask, kKey);
      for (int r = 0; r < size; ++r) {
        double row[kLargestRotation] = {};
        row[r] = 1;
        hadamard(row, size, bits);
        for (int c = 0; c < size; ++c) {
          const bool flipped = (std::popcount(static_cast<unsigned>(r & c)) % 2 == 1) != bits.negative(r);
          ASSERT_NEAR(row[c] * std::sqrt(size), flipped ? -1 : 1, 1e-6) << size << " " << r << " " << c;
        }
      }
    }
  }
}

TEST(Hadamard, OfSixteenUnderFixedSignsIsTheSameByBothNames) {
  float x[16], y[16];
  fill_bf16(x, 5);
  std::copy(x, x + 16, y);
  hadamard16(x, kMask);
  hadamard(y, 16, rotation_signs(16, RotationSigns::Fixed, kMask, {}));
  for (int j = 0; j < 16; ++j) EXPECT_EQ(x[j], y[j]);
}

TEST(RotationSigns, AreBalancedAndDifferFromOneDrawToTheNext) {
  std::set<std::string> seen;
  int negative = 0, all = 0;
  for (std::uint32_t step = 0; step < 200; ++step) {
    RandomKey key = kKey;
    key.step = step;
    const SignBits bits = rotation_signs(128, RotationSigns::Redrawn, kMask, key);
    std::string text;
    for (int i = 0; i < 128; ++i, ++all) {
      negative += bits.negative(i) ? 1 : 0;
      text += bits.negative(i) ? '-' : '+';
    }
    seen.insert(text);
    // The other operand of the GEMM, and any element of it.
    key.role = 5;
    key.first_element = 999;
    key.stuck_at_zero = true;
    const SignBits other = rotation_signs(128, RotationSigns::Redrawn, kMask, key);
    for (int i = 0; i < 128; ++i) ASSERT_EQ(bits.negative(i), other.negative(i));
  }
  EXPECT_EQ(seen.size(), 200u);
  EXPECT_NEAR(negative / static_cast<double>(all), 0.5, 0.02);
}

TEST(RotationSigns, AFlippedMaskFlipsHalfOfEverySixteenInAnySize) {
  for (int size : {16, 32, 128}) {
    for (const RotationSigns signs : kSigns) {
      const SignBits a = rotation_signs(size, signs, kMask, kKey),
                     b = rotation_signs(size, signs, kMask ^ 0x00FF, kKey);
      for (int i = 0; i < size; ++i) EXPECT_EQ(a.negative(i) != b.negative(i), i % 16 < 8) << size;
    }
  }
}

TEST(Hadamard, DifferentSignsOnTheTwoOperandsSpoilTheProduct) {
  float x[16], y[16];
  fill_bf16(x, 1);
  double before = 0, after = 0;
  for (int j = 0; j < 16; ++j) {
    y[j] = x[j];
    before += static_cast<double>(x[j]) * static_cast<double>(y[j]);
  }
  hadamard16(x, kMask);
  hadamard16(y, static_cast<std::uint16_t>(kMask ^ 0x00FF));
  for (int j = 0; j < 16; ++j) after += static_cast<double>(x[j]) * static_cast<double>(y[j]);
  EXPECT_GT(std::abs(before - after), 0.1 * before);
}

TEST(Hadamard, SpreadsAnOutlierOverItsBlockAndRoundsToBf16Once) {
  float x[16] = {};
  x[5] = 1000.0f;
  rotate_block(x, kMask);
  for (float v : x) EXPECT_EQ(std::abs(v), 250.0f);
  float y[16] = {1.0f, 0x1p-8f};  // a quarter of 1 + 2^-8 lies halfway between two BF16 values
  rotate_block(y, 0);
  EXPECT_EQ(y[0], 0.25f) << "ties go to even";
}

}  // namespace
}  // namespace nibble
