// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/hd.h"
#include "numeric/e4m3.h"
#include "numeric/e5m2.h"
#include "numeric/rounding.h"

/// FP8 with one FP32 scale a tensor, computed from its current amax:
///   code = fp8(x * encode), value = fp8(code) * decode. No state between steps. Source: [TE], [FP8].
namespace nibble {

inline constexpr float kBf16Max = 3.3895313892515355e38f;  ///< 0x7F7F0000

struct Fp8Scale {
  float encode = 1;
  float decode = 1;

  /// encode = largest element / amax; 1 where amax is 0, infinite or NaN.
  ///   value_for_inf   what an infinite quotient becomes: the largest finite value of the INPUT's type
  ///                   (kBf16Max for BF16 tensors, kFloatMax for FP32 ones)
  ///   power_of_two    clears the mantissa: the scale is rounded down to a power of two
  template <class Element>
  NIBBLE_HD static constexpr Fp8Scale from_amax(float amax, float value_for_inf, bool power_of_two = false) {
    if (amax == 0.0f || !is_finite(amax)) return {};
    const float quotient = min_or_limit(Element::kMax / amax, value_for_inf);
    const float encode = power_of_two ? bits_float(float_bits(quotient) & kInfinityBits) : quotient;
    return {encode, 1.0f / encode};
  }
};

template <class Element>
NIBBLE_HD constexpr Element encode_fp8(float x, const Fp8Scale& scale) {
  return Element::nearest(x * scale.encode);
}

template <class Element>
NIBBLE_HD constexpr float decode_fp8(Element code, const Fp8Scale& scale) {
  return code.value() * scale.decode;
}

}  // namespace nibble
