// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/hd.h"
#include "quant/nvfp4.h"

/// MS-EDEN: NVFP4 whose elements are rounded to nearest and whose block scales carry the correction that
/// makes the result unbiased over random rotations. The values are rotated already (quant/hadamard.h); with r
/// the values of a group of blocks in units of their codes and q(r) the codes,
///   base scale  = E4M3 of (counted block amax) (S_enc fl(1/6)), and 1 where that is 0
///   correction  = sum r^2 / sum r q(r), over the group, each sum in FP32 and in order; 1 where nothing is
///   left block scale = E4M3 of base scale * correction, rounded stochastically
/// The amax counts 17/16 * 0.93 fold: a block's maximum lies at 6.07 and is clipped to 6, which has the least
/// error. Bound 256 leaves room for corrections above 1. With groups of one block <x, q> is <x, x> but for
/// the rounding of the scale, which is unbiased. Larger groups, as one published emulation has them, weigh
/// their blocks alike whatever their scales, which leaves a small slope. Source: [QUARTET2]. Error of
/// Gaussian data, relative to its square: 9.31e-3 (groups of 16) and 9.74e-3 (128), where stochastic rounding
/// has 23.6e-3.
namespace nibble {

/// What a group's blocks add up to.
struct EdenSums {
  float squares = 0, products = 0;

  NIBBLE_HD constexpr float correction() const {
    const float quotient = squares / products;
    return products > 0.0f && is_finite(quotient) ? quotient : 1.0f;
  }
};

/// Codes of a block under its base scale; its share of the sums is added. `block_amax` is counted, and `g` of
/// the counted amax too.
NIBBLE_HD constexpr Nvfp4Block encode_eden_block(const float (&x)[16], float block_amax, const TensorScale& g,
                                                 EdenSums& sums) {
  Nvfp4Block block;
  block.scale = block_scale(block_amax, g);
  if (block.scale.bits == 0) block.scale = E4M3::nearest(1.0f);
  const float multiplier = block_multiplier(block.scale, g);
  encode_codes(x, multiplier, NearestEven{}, block.codes);
  for (int j = 0; j < 16; ++j) {
    const float r = x[j] * multiplier;
    sums.squares = sums.squares + r * r;
    sums.products = sums.products + r * unpack_code(block.codes, j).value();
  }
  return block;
}

/// A block's scale once its group is summed up; `random` is random_scale_bits24.
NIBBLE_HD constexpr E4M3 eden_scale(E4M3 base, const EdenSums& sums, std::uint32_t random) {
  return E4M3::stochastic_exact(base.value() * sums.correction(), random);
}

}  // namespace nibble
