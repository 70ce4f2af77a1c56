// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/hd.h"
#include "numeric/rounding.h"

namespace nibble {

/// FP8 with five exponent bits (bias 15) and two mantissa bits: largest finite value 57344, smallest normal
/// 2^-14, smallest subnormal 2^-16, infinity 0x7C, NaN 0x7D..0x7F. Source: [FP8], [OCP-MX].
struct E5M2 {
  std::uint8_t bits = 0;

  static constexpr float kMax = 57344.0f;
  static constexpr std::uint8_t kMaxBits = 0x7B;
  static constexpr std::uint8_t kInfinityCode = 0x7C;
  static constexpr std::uint8_t kNanBits = 0x7F;
  using Bits = SmallFloat<2, 15>;

  /// Nearest, ties to even, saturating at +-57344 (infinities too). A NaN gives 0x7F whatever its sign.
  NIBBLE_HD static constexpr E5M2 nearest(float x) { return convert(x, kMaxBits); }

  /// The same without saturation: |x| >= 61440 becomes an infinity.
  NIBBLE_HD static constexpr E5M2 nearest_unsaturated(float x) { return convert(x, kInfinityCode); }

  NIBBLE_HD constexpr bool nan() const { return (bits & 0x7Fu) > kInfinityCode; }
  NIBBLE_HD constexpr float value() const {
    const std::uint32_t code = bits & 0x7Fu;
    // The exponent of all ones reads as 2^16 here: setting FP32's own exponent makes the infinity of it, and
    // the mantissa bits that stay make the NaNs.
    const std::uint32_t magnitude =
        float_bits(Bits::value(code)) | (code >= kInfinityCode ? kInfinityBits : 0u);
    return with_sign(bits_float(magnitude), (bits & 0x80u) != 0);
  }
  NIBBLE_HD friend constexpr bool operator==(E5M2 a, E5M2 b) { return a.bits == b.bits; }

 private:
  NIBBLE_HD static constexpr E5M2 convert(float x, std::uint32_t largest) {
    const std::uint32_t code = Bits::nearest(magnitude_bits(x));
    const std::uint32_t bounded = code < largest ? code : largest;
    const std::uint32_t sign = (float_bits(x) >> 24) & 0x80u;
    return {static_cast<std::uint8_t>(is_nan(x) ? kNanBits : bounded | sign)};
  }
};

}  // namespace nibble
