// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/hd.h"
#include "numeric/rounding.h"

namespace nibble {

/// A power of two as its exponent byte: value 2^(bits - 127), from 2^-127 (0x00) to 2^127 (0xFE); 0xFF is
/// NaN. There is no zero, no sign and no infinity. Source: [OCP-MX].
struct E8M0 {
  std::uint8_t bits = 0;

  static constexpr std::uint8_t kNanBits = 0xFF;

  /// The smallest power of two that is at least x >= 0, as the hardware's upward conversion: values up to
  /// 2^-127, zero included, give 0x00; values above 2^127 and the infinity 0xFE; NaN gives 0xFF. [TE] [PTX]
  NIBBLE_HD static constexpr E8M0 round_up(float x) {
    const std::uint32_t u = float_bits(x);
    const std::uint32_t exponent = (u >> 23) & 0xFFu;
    const std::uint32_t mantissa = u & 0x7FFFFFu;
    // A subnormal x of 2^-127 (mantissa 0x400000) or less already fits under the smallest scale.
    const bool up = mantissa > (exponent == 0 ? 0x400000u : 0u);
    const std::uint32_t rounded = exponent + (up ? 1u : 0u);
    const std::uint32_t bounded = rounded < 0xFEu ? rounded : 0xFEu;
    return {static_cast<std::uint8_t>(is_nan(x) ? kNanBits : bounded)};
  }

  /// 2^(floor(log2 x) - max_exponent), the shared exponent of the OCP text, by exponent bits: a
  /// floating-point logarithm is wrong just below a power of two. Bounded to the format; NaN and infinity
  /// give 0xFF. [OCP-MX]
  NIBBLE_HD static constexpr E8M0 floor_log2(float x, int max_exponent) {
    const int exponent = static_cast<int>((float_bits(x) >> 23) & 0xFFu) - max_exponent;
    const std::uint8_t bounded = exponent < 0 ? std::uint8_t{0} : static_cast<std::uint8_t>(exponent);
    return {is_finite(x) ? bounded : kNanBits};
  }

  /// 2^(exponent - 127), bounded to the format.
  NIBBLE_HD static constexpr E8M0 bounded(int exponent) {
    const int low = exponent < 0 ? 0 : exponent;
    return {static_cast<std::uint8_t>(low > 0xFE ? 0xFE : low)};
  }

  NIBBLE_HD constexpr bool nan() const { return bits == kNanBits; }

  /// 0x00 is the FP32 subnormal 2^-127, which must not be flushed to zero.
  NIBBLE_HD constexpr float value() const {
    const std::uint32_t normal = static_cast<std::uint32_t>(bits) << 23;
    return bits_float(nan() ? 0x7FC00000u : bits == 0 ? 0x00400000u : normal);
  }

  /// 1 / value(), exact: the multiplier that brings a value to the range of its code.
  NIBBLE_HD constexpr float inverse() const {
    return E8M0{static_cast<std::uint8_t>(nan() ? kNanBits : 254u - bits)}.value();
  }
  NIBBLE_HD friend constexpr bool operator==(E8M0 a, E8M0 b) { return a.bits == b.bits; }
};

}  // namespace nibble
