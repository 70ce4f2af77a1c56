// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/hd.h"
#include "numeric/rounding.h"

namespace nibble {

/// BF16: the upper half of an FP32 number (8 exponent bits, 7 + 1 significand bits). Range as FP32.
struct bf16 {
  std::uint16_t bits = 0;

  /// Rounds to nearest, ties to even; NaN becomes the quiet NaN 0x7FC0 with the sign kept;
  /// overflow rounds to infinity; subnormals are kept.
  NIBBLE_HD static constexpr bf16 nearest(float x) {
    const std::uint32_t u = float_bits(x);
    const std::uint32_t rounded = (u + 0x7FFFu + ((u >> 16) & 1u)) >> 16;
    const std::uint32_t quiet = ((u >> 16) & 0x8000u) | 0x7FC0u;
    return {static_cast<std::uint16_t>((u & 0x7FFFFFFFu) > 0x7F800000u ? quiet : rounded)};
  }
  NIBBLE_HD constexpr float value() const { return bits_float(static_cast<std::uint32_t>(bits) << 16); }
  NIBBLE_HD friend constexpr bool operator==(bf16 a, bf16 b) { return a.bits == b.bits; }
};

NIBBLE_HD constexpr float to_float(bf16 x) { return x.value(); }
NIBBLE_HD constexpr float to_float(float x) { return x; }
template <class T>
NIBBLE_HD constexpr T from_float(float x);
template <>
NIBBLE_HD constexpr bf16 from_float<bf16>(float x) {
  return bf16::nearest(x);
}
template <>
NIBBLE_HD constexpr float from_float<float>(float x) {
  return x;
}

}  // namespace nibble
