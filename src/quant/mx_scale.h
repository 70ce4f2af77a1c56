// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/hd.h"
#include "numeric/e8m0.h"
#include "numeric/rounding.h"
#include "quant/format.h"

/// The power of two that a block of an MX format shares, by the rules in use. With amax the block's largest
/// magnitude, M the element's largest value and E its exponent (E2M1: 6, 2; E4M3: 448, 8; E5M2: 57344, 15;
/// E2M3: 7.5, 2; E3M2: 28, 4):
///   RoundUp        the smallest 2^e >= fl(amax * fl(1/M))    hardware, Transformer Engine   never clips
///   Floor          floor(log2 amax) - E                      OCP text, microxcaling         clips
///   Even           Floor of amax rounded to the element's mantissa, half up                 clips rarely
///   Ceil           ceil(log2 amax) - E                                                      never clips
///   Round          round(log2(amax / M))                                                    clips
///   ThreeQuarters  Floor; the values are multiplied by 3/4 besides (mxfp4.h)                never clips
/// All of it is done on exponent and mantissa bits: a floating-point logarithm is wrong just below powers of
/// two. The result is bounded to [2^-127, 2^127]; a NaN or an infinity gives E8M0's NaN (RoundUp: an infinity
/// gives 2^127, as the hardware has it). Sources: [OCP-MX], [TE], [TORCHAO], [QUARTET].
namespace nibble {

template <class Element>
struct MxRange {
  static constexpr std::uint32_t kMaxBits = float_bits(Element::kMax);
  static constexpr int kMaxExponent = static_cast<int>(kMaxBits >> 23) - 127;
  static constexpr std::uint64_t kMaxMantissa = (kMaxBits & 0x7FFFFFu) | 0x800000u;  ///< 24 bits
  static constexpr float kInverseMax = 1.0f / Element::kMax;
};

template <class Element>
NIBBLE_HD constexpr E8M0 mx_scale(float block_amax, MxScaleRule rule) {
  using Range = MxRange<Element>;
  if (rule == MxScaleRule::RoundUp) return E8M0::round_up(block_amax * Range::kInverseMax);
  if (!is_finite(block_amax)) return {E8M0::kNanBits};
  const std::uint32_t bits = float_bits(block_amax);
  const int exponent = static_cast<int>(bits >> 23) - Range::kMaxExponent;
  switch (rule) {
    case MxScaleRule::Even:
      return E8M0::bounded(static_cast<int>((bits + (1u << (Element::Bits::kShift - 1))) >> 23) -
                           Range::kMaxExponent);
    case MxScaleRule::Ceil:
      return E8M0::bounded(exponent + ((bits & 0x7FFFFFu) != 0 ? 1 : 0));
    case MxScaleRule::Round: {
      // With m, M the mantissas in [1, 2), log2(m / M) rounds to -1 below -1/2, that is where 2 m^2 < M^2,
      // and to 0 otherwise; equality is impossible, since the root of 2 is not a fraction.
      const std::uint64_t mantissa = (bits & 0x7FFFFFu) | 0x800000u;
      const bool below = 2 * mantissa * mantissa < Range::kMaxMantissa * Range::kMaxMantissa;
      return E8M0::bounded(exponent - (below ? 1 : 0));
    }
    default:
      return E8M0::bounded(exponent);
  }
}

}  // namespace nibble
