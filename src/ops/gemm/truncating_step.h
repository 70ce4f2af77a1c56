// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/hd.h"
#include "numeric/e4m3.h"
#include "numeric/e8m0.h"
#include "numeric/rounding.h"

/// How Blackwell's FP4 tensor cores add, after the published model [MMA-SIM]. One step takes the accumulator
/// and four groups of 16 products; a group's sum is exact. Everything is aligned to the largest exponent, cut
/// off 35 bits behind the point, added, and the sum is cut to FP32. The exponent of a group is that of its
/// two scales, whatever its sum: the alignment is nominal. All of it in integers, so every backend gives the
/// same bits.
namespace nibble {

inline constexpr int kTruncatingStep = 64;   ///< products a step
inline constexpr int kTruncatingGroup = 16;  ///< of them under one pair of scales
inline constexpr int kTruncatingBits = 35;

/// A scale as significand / 8 times 2^exponent, subnormal ones not normalised; E4M3's sign is not looked at.
struct ScaleParts {
  std::int32_t significand = 0;  ///< 8 to 15, or less where subnormal
  std::int32_t exponent = -126;  ///< of zero: as the model has it
  bool nan = false;
};

NIBBLE_HD ScaleParts parts_of(E4M3 scale) {
  const std::int32_t biased = scale.bits >> 3 & 15, mantissa = scale.bits & 7;
  if ((scale.bits & 0x7F) == 0x7F) return {0, 0, true};
  if (biased == 0) return {mantissa, mantissa == 0 ? -126 : -6, false};
  return {8 + mantissa, biased - 7, false};
}
NIBBLE_HD ScaleParts parts_of(E8M0 scale) {
  if (scale.bits == 255) return {0, 0, true};
  return {8, static_cast<std::int32_t>(scale.bits) - 127, false};
}

/// The sum of one group: products is 4 times the exact sum of its code values' products, at most 16 * 144.
struct GroupSum {
  std::int64_t number = 0;  ///< in units of 2^(exponent - 8)
  std::int32_t exponent = -252;
  bool nan = false;
};
NIBBLE_HD GroupSum group_sum(std::int32_t products, const ScaleParts& a, const ScaleParts& b) {
  return {std::int64_t{products} * a.significand * b.significand, a.exponent + b.exponent, a.nan || b.nan};
}

/// x * 2^shift, cut towards zero.
NIBBLE_HD std::int64_t shifted(std::int64_t x, int shift) {
  if (shift >= 0) return x * (std::int64_t{1} << shift);
  if (shift < -62) return 0;
  return x < 0 ? -(-x >> -shift) : x >> -shift;
}

/// sum * 2^(exponent - 35), cut to FP32; what is beyond FP32 becomes infinite.
NIBBLE_HD float cut_to_float(std::int64_t sum, int exponent) {
  if (sum == 0) return 0.0f;
  const std::uint32_t sign = sum < 0 ? 0x80000000u : 0u;
  std::uint64_t x = static_cast<std::uint64_t>(sum < 0 ? -sum : sum);
  int e = exponent - kTruncatingBits + 23;  // of the value when x is a significand of 24 bits
  while (x >= (std::uint64_t{1} << 24)) {
    x >>= 1;
    ++e;
  }
  while (x < (std::uint64_t{1} << 23) && e > -126) {
    x <<= 1;
    --e;
  }
  while (e < -126) {
    x >>= 1;
    ++e;
  }
  if (e > 127) return bits_float(sign | 0x7F800000u);
  const bool normal = x >= (std::uint64_t{1} << 23);
  const std::uint32_t biased = normal ? static_cast<std::uint32_t>(e + 127) : 0u;
  return bits_float(sign | biased << 23 | (static_cast<std::uint32_t>(x) & 0x7FFFFFu));
}

/// The accumulator after one step. A NaN or an infinity in it stays.
NIBBLE_HD float truncating_step(float acc, const GroupSum (&groups)[4]) {
  const std::uint32_t bits = float_bits(acc), biased = bits >> 23 & 255u;
  for (const GroupSum& g : groups)
    if (g.nan) return bits_float(0x7FFFFFFFu);
  if (biased == 255) return acc;
  std::int64_t significand = (bits & 0x7FFFFFu) | (biased != 0 ? 0x800000u : 0u);
  if ((bits >> 31) != 0) significand = -significand;
  const int exponent = biased != 0 ? static_cast<int>(biased) - 127 : -126;
  int largest = exponent;
  for (const GroupSum& g : groups) largest = g.exponent > largest ? g.exponent : largest;
  std::int64_t sum = shifted(significand, kTruncatingBits - 23 + exponent - largest);
  for (const GroupSum& g : groups) sum += shifted(g.number, kTruncatingBits - 8 + g.exponent - largest);
  return cut_to_float(sum, largest);
}

}  // namespace nibble
