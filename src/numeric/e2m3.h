// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/hd.h"
#include "numeric/rounding.h"

namespace nibble {

/// FP6 with two exponent bits (bias 1) and three mantissa bits: largest value 7.5, smallest normal 1,
/// smallest subnormal 1/8. The sign is bit 5; there is no NaN and no infinity. One code a byte. Source:
/// [OCP-MX].
struct E2M3 {
  std::uint8_t bits = 0;

  static constexpr float kMax = 7.5f;
  static constexpr std::uint8_t kMaxBits = 0x1F;
  using Bits = SmallFloat<3, 1>;

  /// Nearest, ties to even, saturating at +-7.5 (infinities too). A NaN gives +7.5, as E2M1 has it.
  NIBBLE_HD static constexpr E2M3 nearest(float x) {
    const std::uint32_t code = Bits::nearest(magnitude_bits(x));
    const std::uint32_t saturated = code < kMaxBits ? code : kMaxBits;
    const std::uint32_t sign = is_nan(x) ? 0u : (float_bits(x) >> 26) & 0x20u;
    return {static_cast<std::uint8_t>(saturated | sign)};
  }
  NIBBLE_HD constexpr float value() const {
    return with_sign(Bits::value(bits & 0x1Fu), (bits & 0x20u) != 0);
  }
  NIBBLE_HD friend constexpr bool operator==(E2M3 a, E2M3 b) { return a.bits == b.bits; }
};

}  // namespace nibble
