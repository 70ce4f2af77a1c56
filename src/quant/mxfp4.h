// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/hd.h"
#include "numeric/e2m1.h"
#include "numeric/e8m0.h"
#include "quant/amax.h"
#include "quant/mx_scale.h"
#include "quant/rounders.h"

/// MXFP4: E2M1 codes, thirty-two of them under a power of two. value j = e2m1(code j) * 2^e. [OCP-MX]
namespace nibble {

inline constexpr int kMxBlock = 32;

/// What the values of a ThreeQuarters block are multiplied by before they are scaled, and what their decoded
/// values are worth: the factor of the whole tensor that its GEMM and its decoder apply.
inline constexpr float kThreeQuarters = 0.75f;
inline constexpr float kFourThirds = 4.0f / 3.0f;

NIBBLE_HD constexpr E8M0 mxfp4_scale(float block_amax, MxScaleRule rule = MxScaleRule::RoundUp) {
  return mx_scale<E2M1>(block_amax, rule);
}

/// What decoded values of a tensor are multiplied by under `rule`.
NIBBLE_HD constexpr float mxfp4_tensor_factor(MxScaleRule rule) {
  return rule == MxScaleRule::ThreeQuarters ? kFourThirds : 1.0f;
}

struct Mxfp4Block {
  std::uint8_t codes[16] = {};  ///< packed as in Nvfp4Block
  E8M0 scale;
};

/// Under ThreeQuarters the codes stand for 3/4 of the values: decode, then multiply by 4/3.
/// Error: |decoded - x| <= 2^e for NearestEven, < 2^(e+1) for the stochastic rounders (RoundUp rule).
template <class Round>
NIBBLE_HD constexpr Mxfp4Block encode_mxfp4(const float (&x)[32], Round round,
                                            MxScaleRule rule = MxScaleRule::RoundUp) {
  float amax = 0;
  for (float v : x) amax = amax_dropping_nan(amax, v);
  Mxfp4Block block;
  block.scale = mxfp4_scale(amax, rule);
  // One rounding beyond the exact power of two: 3 x is not exact in FP32 for every x.
  const float multiplier =
      block.scale.inverse() * (rule == MxScaleRule::ThreeQuarters ? kThreeQuarters : 1.0f);
  for (int j = 0; j < 32; j += 2) {
    block.codes[j / 2] = pack_codes(round(x[j] * multiplier, j), round(x[j + 1] * multiplier, j + 1));
  }
  return block;
}

NIBBLE_HD constexpr float decode(E2M1 code, E8M0 scale) { return code.value() * scale.value(); }

}  // namespace nibble
