// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/hd.h"
#include "numeric/e4m3.h"
#include "numeric/e5m2.h"
#include "numeric/e8m0.h"
#include "quant/amax.h"

/// MXFP8: FP8 codes (E4M3 or E5M2), thirty-two of them under a power of two that is rounded up, so that
/// nothing is clipped. value j = fp8(code j) * 2^e. There is no tensor scale. Sources: [OCP-MX], [TE].
namespace nibble {

/// The smallest 2^e >= fl(block_amax * fl(1 / largest element)).
template <class Element>
NIBBLE_HD constexpr E8M0 mxfp8_scale(float block_amax) {
  constexpr float kInverseMax = 1.0f / Element::kMax;
  return E8M0::round_up(block_amax * kInverseMax);
}

template <class Element>
struct Mxfp8Block {
  Element codes[32] = {};
  E8M0 scale;
};

/// Error while x / 2^e is a normal value of the element: |decoded - x| <= |x| 2^-4 (E4M3), |x| 2^-3 (E5M2).
template <class Element>
NIBBLE_HD constexpr Mxfp8Block<Element> encode_mxfp8(const float (&x)[32]) {
  float amax = 0;
  for (float v : x) amax = amax_dropping_nan(amax, v);
  Mxfp8Block<Element> block;
  block.scale = mxfp8_scale<Element>(amax);
  const float multiplier = block.scale.inverse();
  for (int j = 0; j < 32; ++j) block.codes[j] = Element::nearest(x[j] * multiplier);
  return block;
}

NIBBLE_HD constexpr float decode(E4M3 code, E8M0 scale) { return code.value() * scale.value(); }
NIBBLE_HD constexpr float decode(E5M2 code, E8M0 scale) { return code.value() * scale.value(); }

}  // namespace nibble
