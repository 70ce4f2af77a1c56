// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/hd.h"
#include "numeric/rounding.h"

namespace nibble {

/// FP6 with three exponent bits (bias 3) and two mantissa bits: largest value 28, smallest normal 1/4,
/// smallest subnormal 1/16. The sign is bit 5; there is no NaN and no infinity. One code a byte. Source:
/// [OCP-MX].
struct E3M2 {
  std::uint8_t bits = 0;

  static constexpr float kMax = 28.0f;
  static constexpr std::uint8_t kMaxBits = 0x1F;
  using Bits = SmallFloat<2, 3>;

  /// Nearest, ties to even, saturating at +-28 (infinities too). A NaN gives +28, as E2M1 has it.
  NIBBLE_HD static constexpr E3M2 nearest(float x) {
    const std::uint32_t code = Bits::nearest(magnitude_bits(x));
    const std::uint32_t saturated = code < kMaxBits ? code : kMaxBits;
    const std::uint32_t sign = is_nan(x) ? 0u : (float_bits(x) >> 26) & 0x20u;
    return {static_cast<std::uint8_t>(saturated | sign)};
  }
  NIBBLE_HD constexpr float value() const {
    return with_sign(Bits::value(bits & 0x1Fu), (bits & 0x20u) != 0);
  }
  NIBBLE_HD friend constexpr bool operator==(E3M2 a, E3M2 b) { return a.bits == b.bits; }
};

}  // namespace nibble
