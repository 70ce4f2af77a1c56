// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/hd.h"
#include "numeric/rounding.h"

namespace nibble {

/// FP4: a sign, two exponent bits (bias 1), one mantissa bit. Codes 0..7 are 0, 0.5, 1, 1.5, 2, 3, 4, 6;
/// bit 3 is the sign. There is no NaN and no infinity: both must be found before the conversion.
/// Source: [OCP-MX]; oddities as the hardware has them [TE], [PTX].
struct E2M1 {
  std::uint8_t code = 0;  ///< in the low four bits; the others are 0

  static constexpr float kMax = 6.0f;
  using Bits = SmallFloat<1, 1>;

  /// Nearest, ties to the even code, saturating. -0 and small negatives give 0x8; infinities +-6;
  /// a NaN gives +6 whatever its sign.
  NIBBLE_HD static constexpr E2M1 nearest(float x) {
    return signed_code(Bits::nearest(magnitude_bits(x)), x);
  }

  /// Nearest, ties away from zero: what emulators that add a half and truncate compute. Odd inputs as
  /// nearest().
  NIBBLE_HD static constexpr E2M1 nearest_away(float x) {
    const std::uint32_t a = magnitude_bits(x);
    const std::uint32_t normal = ((a + (1u << (Bits::kShift - 1))) >> Bits::kShift) - Bits::kRebias;
    // Below 1 a step is 0.5: the count of half steps is exact, and half of it rounded up is the code.
    const auto halves = static_cast<std::uint32_t>(static_cast<std::int32_t>(below_one(a) * 4.0f));
    return signed_code(a < Bits::kMinNormal ? (halves + 1) >> 1 : normal, x);
  }

  /// Stochastic rounding with 8 random bits, as the hardware has them: with f the position between the
  /// two neighbours (0 <= f < 1), exactly floor(256 f) of the 256 values of `random` round up.
  /// So the expected value is below |x| by up to 1/256 of a step, 1/512 on average. Odd inputs as nearest().
  NIBBLE_HD static constexpr E2M1 stochastic(float x, std::uint8_t random) {
    const std::uint32_t a = magnitude_bits(x);
    // From 1 on, the eight bits below the kept mantissa bit are floor(256 f); below 1 a step is 0.5.
    const std::uint32_t normal =
        ((a + (static_cast<std::uint32_t>(random) << 14)) >> Bits::kShift) - Bits::kRebias;
    const auto units = static_cast<std::uint32_t>(static_cast<std::int32_t>(below_one(a) * 512.0f));
    return signed_code(a < Bits::kMinNormal ? (units + random) >> 8 : normal, x);
  }

  /// Stochastic rounding with `bits` random bits, 2 to 16, in the low bits of `random`: exactly
  /// floor(2^bits f) of their 2^bits values round up. With 8 it is stochastic().
  NIBBLE_HD static constexpr E2M1 stochastic_bits(float x, std::uint32_t random, int bits) {
    const std::uint32_t a = magnitude_bits(x);
    const std::uint32_t normal = ((a + (random << (Bits::kShift - bits))) >> Bits::kShift) - Bits::kRebias;
    const auto units =
        static_cast<std::uint32_t>(static_cast<std::int32_t>(below_one(a) * static_cast<float>(2 << bits)));
    return signed_code(a < Bits::kMinNormal ? (units + random) >> bits : normal, x);
  }

  /// Stochastic rounding with 24 random bits (the low bits of `random`): P(up) = f exactly for |x| >= 1 and
  /// for smaller values to within 2^-24 of a step.
  NIBBLE_HD static constexpr E2M1 stochastic_exact(float x, std::uint32_t random) {
    const std::uint32_t a = magnitude_bits(x);
    const std::uint32_t bits = random & 0xFFFFFFu;
    const std::uint32_t normal = ((a + (bits >> 2)) >> Bits::kShift) - Bits::kRebias;
    const auto units = static_cast<std::uint32_t>(static_cast<std::int32_t>(below_one(a) * 33554432.0f));
    return signed_code(a < Bits::kMinNormal ? (units + bits) >> 24 : normal, x);
  }

  NIBBLE_HD constexpr float value() const { return with_sign(Bits::value(code & 7u), (code & 8u) != 0); }
  NIBBLE_HD friend constexpr bool operator==(E2M1 a, E2M1 b) { return a.code == b.code; }

 private:
  /// The magnitude where it is below 1 and 0 elsewhere, so that the conversion to an integer is always
  /// defined.
  NIBBLE_HD static constexpr float below_one(std::uint32_t magnitude) {
    return bits_float(magnitude < Bits::kMinNormal ? magnitude : 0u);
  }
  NIBBLE_HD static constexpr E2M1 signed_code(std::uint32_t unbounded, float x) {
    const std::uint32_t saturated = unbounded < 7u ? unbounded : 7u;
    const std::uint32_t sign = is_nan(x) ? 0u : (float_bits(x) >> 28) & 8u;
    return {static_cast<std::uint8_t>(saturated | sign)};
  }
};

}  // namespace nibble
