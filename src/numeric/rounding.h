// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/hd.h"

/// What the small floating-point formats share: sign and magnitude as integers, one rounding step.
/// Everything here is branch-free or nearly so, so that plain loops over it vectorise.
namespace nibble {

inline constexpr float kFloatMax = 3.4028234663852886e38f;  ///< largest finite FP32 value
inline constexpr std::uint32_t kInfinityBits = 0x7F800000u;

/// __builtin_bit_cast and not std::bit_cast: the library function is neither forced inline nor known
/// to every device compiler.
NIBBLE_HD constexpr std::uint32_t float_bits(float x) { return __builtin_bit_cast(std::uint32_t, x); }
NIBBLE_HD constexpr float bits_float(std::uint32_t u) { return __builtin_bit_cast(float, u); }

/// |x| as an integer. For non-NaN values the integers are ordered as the magnitudes are, an infinity is
/// above every finite value and a NaN above the infinity.
NIBBLE_HD constexpr std::uint32_t magnitude_bits(float x) { return float_bits(x) & 0x7FFFFFFFu; }
NIBBLE_HD constexpr float magnitude(float x) { return bits_float(magnitude_bits(x)); }
NIBBLE_HD constexpr bool is_nan(float x) { return magnitude_bits(x) > kInfinityBits; }
NIBBLE_HD constexpr bool is_finite(float x) { return magnitude_bits(x) < kInfinityBits; }

/// The smaller of two; `limit` when x is NaN, as fminf and the hardware minimum have it.
NIBBLE_HD constexpr float min_or_limit(float x, float limit) { return x < limit ? x : limit; }

/// A sign bit, exponent bits and `kMantissa` mantissa bits, with subnormals, in the low bits of an integer.
/// Instances: E2M1 <1, 1>, E4M3 <3, 7>, E5M2 <2, 15>.
template <int kMantissa, int kBias>
struct SmallFloat {
  static constexpr int kShift = 23 - kMantissa;
  /// Difference of the exponent biases, in units of the small format's last bit.
  static constexpr std::uint32_t kRebias = static_cast<std::uint32_t>(127 - kBias) << kMantissa;
  /// FP32 bits of the smallest normal value, 2^(1 - bias).
  static constexpr std::uint32_t kMinNormal = static_cast<std::uint32_t>(128 - kBias) << 23;
  /// FP32 bits of the smallest positive value, 2^(1 - bias - mantissa): the step of the subnormals.
  static constexpr std::uint32_t kStep = static_cast<std::uint32_t>(128 - kBias - kMantissa) << 23;

  /// Rounds the magnitude to nearest, ties to even, as if the exponent had no upper bound: the caller
  /// takes the minimum with its largest code. An infinity or a NaN gives a number above every code.
  NIBBLE_HD static constexpr std::uint32_t nearest(std::uint32_t magnitude) {
    const std::uint32_t odd = (magnitude >> kShift) & 1u;
    const std::uint32_t normal = ((magnitude + ((1u << (kShift - 1)) - 1u) + odd) >> kShift) - kRebias;
    // Adding 2^23 steps leaves the count of steps, correctly rounded, in the low bits of the sum.
    constexpr std::uint32_t kMagic = kStep + (23u << 23);
    const std::uint32_t subnormal = float_bits(bits_float(magnitude) + bits_float(kMagic)) - kMagic;
    return magnitude < kMinNormal ? subnormal : normal;
  }

  /// The FP32 value of a magnitude code; infinities and NaN of the format are the caller's business.
  NIBBLE_HD static constexpr float value(std::uint32_t code) {
    const float subnormal = static_cast<float>(static_cast<std::int32_t>(code)) * bits_float(kStep);
    // Selected by a mask: written as a choice, the compiler makes a branch of it and gives up vectorising.
    const std::uint32_t below = 0u - static_cast<std::uint32_t>(code < (1u << kMantissa));
    return bits_float((float_bits(subnormal) & below) | (((code + kRebias) << kShift) & ~below));
  }
};

NIBBLE_HD constexpr float with_sign(float magnitude, bool negative) {
  return bits_float(float_bits(magnitude) | (negative ? 0x80000000u : 0u));
}

}  // namespace nibble
