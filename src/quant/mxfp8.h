// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/hd.h"
#include "numeric/e2m3.h"
#include "numeric/e3m2.h"
#include "numeric/e4m3.h"
#include "numeric/e5m2.h"
#include "numeric/e8m0.h"
#include "quant/amax.h"
#include "quant/mx_scale.h"

/// MXFP8 and MXFP6: codes of a small float (E4M3 or E5M2; E2M3 or E3M2), thirty-two of them under a power of
/// two: rounded up by default, so that nothing is clipped. value j = float(code j) * 2^e. There is no tensor
/// scale. Sources: [OCP-MX], [TE].
namespace nibble {

/// By default the smallest 2^e >= fl(block_amax * fl(1 / largest element)).
template <class Element>
NIBBLE_HD constexpr E8M0 mxfp8_scale(float block_amax, MxScaleRule rule = MxScaleRule::RoundUp) {
  return mx_scale<Element>(block_amax, rule);
}

template <class Element>
struct Mxfp8Block {
  Element codes[32] = {};
  E8M0 scale;
};

/// Error while x / 2^e is a normal value of the element and not clipped (RoundUp, Ceil: never):
/// |decoded - x| <= |x| 2^-4 (E4M3, E2M3), |x| 2^-3 (E5M2, E3M2).
template <class Element>
NIBBLE_HD constexpr Mxfp8Block<Element> encode_mxfp8(const float (&x)[32],
                                                     MxScaleRule rule = MxScaleRule::RoundUp) {
  float amax = 0;
  for (float v : x) amax = amax_dropping_nan(amax, v);
  Mxfp8Block<Element> block;
  block.scale = mxfp8_scale<Element>(amax, rule);
  const float multiplier = block.scale.inverse();
  for (int j = 0; j < 32; ++j) block.codes[j] = Element::nearest(x[j] * multiplier);
  return block;
}

NIBBLE_HD constexpr float decode(E4M3 code, E8M0 scale) { return code.value() * scale.value(); }
NIBBLE_HD constexpr float decode(E5M2 code, E8M0 scale) { return code.value() * scale.value(); }
NIBBLE_HD constexpr float decode(E2M3 code, E8M0 scale) { return code.value() * scale.value(); }
NIBBLE_HD constexpr float decode(E3M2 code, E8M0 scale) { return code.value() * scale.value(); }

}  // namespace nibble
