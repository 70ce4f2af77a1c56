// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/hd.h"
#include "numeric/e2m1.h"
#include "numeric/e4m3.h"
#include "numeric/rounding.h"
#include "quant/amax.h"
#include "quant/format.h"
#include "quant/rounders.h"

/// NVFP4: E2M1 codes, sixteen of them under an E4M3 scale, all under one FP32 scale.
///   value j = e2m1(code j) * e4m3(scale) * amax / 2688,   2688 = 448 * 6
/// Every operation is one FP32 operation rounded to nearest even, in the order written here: the order
/// decides ties and with them code bits. Goal: the bytes of Transformer Engine's default kernels. Non-goal:
/// its fast-math kernels. Sources: [NVFP4], [TE]. Golden bits: tests/golden/nvfp4_te.safetensors.
namespace nibble {

inline constexpr int kNvfp4Block = 16;

namespace nvfp4 {
inline constexpr float kRange = 2688.0f;                          ///< largest code times largest block scale
inline constexpr float kOneSixth = 1.0f / 6.0f;                   ///< 0x3E2AAAAB
inline constexpr float kInverseRange = 1.0f / 2688.0f;            ///< 0x39C30C31
inline constexpr float kInverseRangeSquared = 1.0f / 7225344.0f;  ///< 0x34149B93
}  // namespace nvfp4

/// The scale of a whole tensor. Encoding and decoding part ways at the edges on purpose: encoding falls back
/// to something finite, decoding keeps the true amax, so that an overflow stays visible in the GEMM's output.
struct TensorScale {
  float amax = 0;
  float encode = 1;  ///< min(2688 / amax, FLT_MAX); 1 where amax is 0 or infinite
  float decode =
      1;  ///< 1 / encode; a subnormal below amax = 7.9e-36, where decoded values come out too small

  /// `amax` is the largest magnitude of the tensor (quant/amax.h). A NaN that comes here gives FLT_MAX.
  NIBBLE_HD static constexpr TensorScale from_amax(float amax) {
    if (amax == 0.0f) return {amax, 1.0f, 1.0f};
    const float bounded = min_or_limit(nvfp4::kRange / amax, kFloatMax);
    const float encode = bounded == 0.0f ? 1.0f : bounded;
    return {amax, encode, 1.0f / encode};
  }
};

/// The E4M3 scale of a block whose largest magnitude is `block_amax`. It is 0 for a zero block, and also
/// where block_amax <= tensor amax * 2^-10 / 448; the codes of such a block are +-6 and decode to 0. The two
/// profiles differ only where the quotient is within an ulp of a tie.
NIBBLE_HD constexpr E4M3 block_scale(float block_amax, const TensorScale& g, Profile profile = Profile::Te) {
  const float t =
      profile == Profile::Te ? block_amax * (g.encode * nvfp4::kOneSixth) : (block_amax / 6.0f) * g.encode;
  return E4M3::nearest(min_or_limit(t, kFloatMax));
}

/// What a block's values are multiplied by before they become codes: 1 / (scale * decode), at most FLT_MAX.
/// The product is formed first. encode / scale would differ in the last bit, and with it in ties.
NIBBLE_HD constexpr float block_multiplier(E4M3 scale, const TensorScale& g) {
  return min_or_limit(1.0f / (scale.value() * g.decode), kFloatMax);
}

/// Sixteen values under one scale.
struct Nvfp4Block {
  std::uint8_t codes[8] = {};  ///< value 2i in the low half of byte i, value 2i + 1 in the high half
  E4M3 scale;                  ///< >= 0, never NaN for finite data
};

/// Codes of 16 neighbours along the reduction axis under a given multiplier: the part that square tiles
/// share.
template <class Round>
NIBBLE_HD constexpr void encode_codes(const float (&x)[16], float multiplier, Round round,
                                      std::uint8_t (&codes)[8]) {
  for (int j = 0; j < 16; j += 2) {
    codes[j / 2] = pack_codes(round(x[j] * multiplier, j), round(x[j + 1] * multiplier, j + 1));
  }
}

/// Quantises 16 neighbours along the GEMM's reduction axis (Tile::Row).
/// Error: with s = scale * amax / 2688, |decoded - x| <= s for NearestEven and < 2 s for the stochastic
/// rounders while the scale is a normal E4M3; below that the block may saturate or decode to zero.
template <class Round>
NIBBLE_HD constexpr Nvfp4Block encode_block(const float (&x)[16], const TensorScale& g, Profile profile,
                                            Round round) {
  float amax = 0;
  for (float v : x) amax = amax_dropping_nan(amax, v);
  Nvfp4Block block;
  block.scale = block_scale(amax, g, profile);
  encode_codes(x, block_multiplier(block.scale, g), round, block.codes);
  return block;
}

/// What one unit of a code is worth: (scale * amax) * fl(1/2688).
NIBBLE_HD constexpr float decode_factor(E4M3 scale, float amax) {
  return (scale.value() * amax) * nvfp4::kInverseRange;
}

/// The FP32 value of a code.
NIBBLE_HD constexpr float decode(E2M1 code, E4M3 scale, float amax) {
  return code.value() * decode_factor(scale, amax);
}

/// The factor of a GEMM whose operands are codes times block scales: amaxA * amaxB / 2688^2, in the order of
/// [TE]. The intermediate product can underflow below 1e-45 although the final value would not.
NIBBLE_HD constexpr float gemm_alpha(float amax_a, float amax_b) {
  return ((1.0f * amax_a) * amax_b) * nvfp4::kInverseRangeSquared;
}

}  // namespace nibble
