// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/hd.h"
#include "numeric/e2m1.h"
#include "numeric/e8m0.h"
#include "quant/amax.h"
#include "quant/rounders.h"

/// MXFP4: E2M1 codes, thirty-two of them under a power of two. value j = e2m1(code j) * 2^e. [OCP-MX]
namespace nibble {

inline constexpr int kMxBlock = 32;

/// How the shared exponent follows from the block's largest magnitude.
enum class MxScaleRule : std::uint8_t {
  RoundUp,  ///< the smallest 2^e >= amax / 6: no value of the block is clipped. The default.
  Floor,    ///< floor(log2 amax) - 2, the rule of the OCP text: values above 6 * 2^e are clipped to it
};

NIBBLE_HD constexpr E8M0 mxfp4_scale(float block_amax, MxScaleRule rule = MxScaleRule::RoundUp) {
  constexpr float kOneSixth = 1.0f / 6.0f;
  return rule == MxScaleRule::RoundUp ? E8M0::round_up(block_amax * kOneSixth)
                                      : E8M0::floor_log2(block_amax, 2);
}

struct Mxfp4Block {
  std::uint8_t codes[16] = {};  ///< packed as in Nvfp4Block
  E8M0 scale;
};

/// Error: |decoded - x| <= 2^e for NearestEven, < 2^(e+1) for the stochastic rounders (RoundUp rule).
template <class Round>
NIBBLE_HD constexpr Mxfp4Block encode_mxfp4(const float (&x)[32], Round round,
                                            MxScaleRule rule = MxScaleRule::RoundUp) {
  float amax = 0;
  for (float v : x) amax = amax_dropping_nan(amax, v);
  Mxfp4Block block;
  block.scale = mxfp4_scale(amax, rule);
  const float multiplier = block.scale.inverse();
  for (int j = 0; j < 32; j += 2) {
    block.codes[j / 2] = pack_codes(round(x[j] * multiplier, j), round(x[j + 1] * multiplier, j + 1));
  }
  return block;
}

NIBBLE_HD constexpr float decode(E2M1 code, E8M0 scale) { return code.value() * scale.value(); }

}  // namespace nibble
