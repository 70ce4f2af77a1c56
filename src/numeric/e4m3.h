// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/hd.h"
#include "numeric/rounding.h"

namespace nibble {

/// FP8 with four exponent bits (bias 7) and three mantissa bits, the finite variety: largest value 448,
/// smallest normal 2^-6, smallest subnormal 2^-9, no infinity, NaN is 0x7F and 0xFF. Source: [FP8], [OCP-MX].
struct E4M3 {
  std::uint8_t bits = 0;

  static constexpr float kMax = 448.0f;
  static constexpr std::uint8_t kMaxBits = 0x7E;
  static constexpr std::uint8_t kNanBits = 0x7F;
  using Bits = SmallFloat<3, 7>;

  /// Nearest, ties to even, saturating at +-448 (infinities too). A NaN gives 0x7F whatever its sign.
  NIBBLE_HD static constexpr E4M3 nearest(float x) {
    const std::uint32_t code = Bits::nearest(magnitude_bits(x));
    const std::uint32_t saturated = code < kMaxBits ? code : kMaxBits;
    return {static_cast<std::uint8_t>(is_nan(x) ? kNanBits : saturated | sign_bit(x))};
  }

  /// Stochastic rounding with 24 random bits (the low bits of `random`), saturating: with f the position
  /// between the two neighbours, P(up) = f to within 2^-20. A NaN gives 0x7F.
  NIBBLE_HD static constexpr E4M3 stochastic_exact(float x, std::uint32_t random) {
    const std::uint32_t a = magnitude_bits(x), bits = random & 0xFFFFFFu;
    const std::uint32_t normal = ((a + (bits >> 4)) >> Bits::kShift) - Bits::kRebias;
    // Below 2^-6 a step is 2^-9.
    const float below = bits_float(a < Bits::kMinNormal ? a : 0u);
    const auto units = static_cast<std::uint32_t>(static_cast<std::int32_t>(below * 0x1p33f));
    const std::uint32_t code = a < Bits::kMinNormal ? (units + bits) >> 24 : normal;
    const std::uint32_t saturated = code < kMaxBits ? code : kMaxBits;
    return {static_cast<std::uint8_t>(is_nan(x) ? kNanBits : saturated | sign_bit(x))};
  }

  /// nearest() without saturation: what rounds above 448 (|x| > 464) becomes NaN, with its sign kept.
  NIBBLE_HD static constexpr E4M3 nearest_unsaturated(float x) {
    const std::uint32_t code = Bits::nearest(magnitude_bits(x));
    const std::uint32_t overflowed = code <= kMaxBits ? code : kNanBits;
    return {static_cast<std::uint8_t>(is_nan(x) ? kNanBits : overflowed | sign_bit(x))};
  }

  NIBBLE_HD constexpr bool nan() const { return (bits & 0x7Fu) == kNanBits; }
  NIBBLE_HD constexpr float value() const {
    const std::uint32_t finite = float_bits(Bits::value(bits & 0x7Fu));
    return with_sign(bits_float(finite | (nan() ? 0x7FC00000u : 0u)), (bits & 0x80u) != 0);
  }
  NIBBLE_HD friend constexpr bool operator==(E4M3 a, E4M3 b) { return a.bits == b.bits; }

 private:
  NIBBLE_HD static constexpr std::uint32_t sign_bit(float x) { return (float_bits(x) >> 24) & 0x80u; }
};

}  // namespace nibble
