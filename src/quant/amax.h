// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/hd.h"
#include "numeric/rounding.h"
#include "quant/format.h"

/// The largest magnitude, by the two rules for NaN. Both give the same result in any order of the elements,
/// so a reduction may be split as one likes. Start from 0.
namespace nibble {

/// A NaN, once met, stays: the caller sees that the data is not finite. This is NonFinite::Detect.
NIBBLE_HD constexpr float amax_keeping_nan(float amax, float x) {
  const std::uint32_t a = magnitude_bits(amax), b = magnitude_bits(x);
  return bits_float(a < b ? b : a);
}

/// A NaN is dropped, as the hardware's maximum drops it. This is NonFinite::AsTe, and what block scales use
/// in either case: under Detect no NaN gets that far.
NIBBLE_HD constexpr float amax_dropping_nan(float amax, float x) {
  const float a = magnitude(x);
  return amax < a ? a : amax;
}

NIBBLE_HD constexpr float amax_step(float amax, float x, NonFinite policy) {
  return policy == NonFinite::Detect ? amax_keeping_nan(amax, x) : amax_dropping_nan(amax, x);
}

}  // namespace nibble
