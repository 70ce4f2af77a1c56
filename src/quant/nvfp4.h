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
///
/// Profiles: whose order of operations. a is the block's largest magnitude, G the tensor's, S = 2688 / G.
///   profile   block scale = E4M3 of              where that is 0, or a is       x becomes a code as
///   Te        a (S fl(1/6))                      0                              x (1 / (scale (1 / S)))
///   Te213     (a / 6) S                          0                              the same
///   Exact     a (S fl(1/6))                      0                              x 2688 / (scale G), rounded
///   once TorchAo   ((a / 6) / (G / 2688))             at least 2^-6                  x ((1 / (G / 2688)) /
///   scale) ModelOpt  (a / (6 (G / 2688)))               at least 2^-9; a = 0: 1        x / (scale (G /
///   2688)) Ct        S (a / 6)                          1/8                            x / (scale / S)
/// They differ where a quotient is within an ulp or two of a tie, which BF16 data meets often, and in blocks
/// far below the tensor's amax. Where G / 2688 is 0 the last three take 1: their sources divide by zero. All
/// decode alike. Exact is an oracle: it tells what the roundings before the last one cost. Sources: [TE],
/// [TORCHAO], [MODELOPT], [CT].
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
  /// `range` is 6 times the block scale of the block that holds it: 448, or 256 (quant/four_over_six.h).
  NIBBLE_HD static constexpr TensorScale from_amax(float amax, float range = nvfp4::kRange) {
    if (amax == 0.0f) return {amax, 1.0f, 1.0f};
    const float bounded = min_or_limit(range / amax, kFloatMax);
    const float encode = bounded == 0.0f ? 1.0f : bounded;
    return {amax, encode, 1.0f / encode};
  }
};

/// What the amax of a tensor, a row or a block is multiplied by before scales are made of it: 17/16 under
/// headroom, 17/16 * 0.93 under MS-EDEN (quant/eden.h).
NIBBLE_HD constexpr float amax_factor(const QuantSpec& spec) {
  return spec.eden_group != 0 ? 0.988125f : spec.headroom ? 1.0625f : 1.0f;
}
NIBBLE_HD constexpr float counted_amax(const QuantSpec& spec, float amax) { return amax * amax_factor(spec); }

/// 6 times the bound of the block scales.
NIBBLE_HD constexpr float range_of(int scale_bound) { return 6.0f * static_cast<float>(scale_bound); }

NIBBLE_HD constexpr TensorScale tensor_scale(const QuantSpec& spec, float amax) {
  return TensorScale::from_amax(counted_amax(spec, amax), range_of(spec.scale_bound));
}

namespace nvfp4 {
/// G / 2688 as TorchAo and ModelOpt form it, 1 where that is 0.
NIBBLE_HD constexpr float unit_of(const TensorScale& g) {
  const float unit = g.amax / kRange;
  return unit == 0.0f ? 1.0f : unit;
}
/// S as Ct forms it: 1 where it is not finite.
NIBBLE_HD constexpr float ct_scale(const TensorScale& g) {
  constexpr float kTiny = 1.17549435e-38f;
  const float scale = kRange / (g.amax > kTiny ? g.amax : kTiny);
  return is_finite(scale) ? scale : 1.0f;
}
NIBBLE_HD constexpr float at_least(float x, float limit) { return x > limit ? x : limit; }
}  // namespace nvfp4

/// The E4M3 scale of a block whose largest magnitude is `block_amax`. Under Te, Te213 and Exact it is 0 for a
/// zero block, and also where block_amax <= tensor amax * 2^-10 / 448; the codes of such a block are +-6 and
/// decode to 0.
NIBBLE_HD constexpr E4M3 block_scale(float block_amax, const TensorScale& g, Profile profile = Profile::Te) {
  switch (profile) {
    case Profile::Te213:
      return E4M3::nearest(min_or_limit((block_amax / 6.0f) * g.encode, kFloatMax));
    case Profile::TorchAo:
      return E4M3::nearest(nvfp4::at_least((block_amax / 6.0f) / nvfp4::unit_of(g), 0x1p-6f));
    case Profile::ModelOpt:
      if (block_amax == 0.0f) return E4M3::nearest(1.0f);
      return E4M3::nearest(nvfp4::at_least(block_amax / (6.0f * nvfp4::unit_of(g)), 0x1p-9f));
    case Profile::Ct: {
      const E4M3 scale = E4M3::nearest(min_or_limit(nvfp4::ct_scale(g) * (block_amax / 6.0f), kFloatMax));
      return scale.bits == 0 ? E4M3::nearest(0.125f) : scale;
    }
    default:
      return E4M3::nearest(min_or_limit(block_amax * (g.encode * nvfp4::kOneSixth), kFloatMax));
  }
}

/// What a block's values are multiplied by before they become codes: 1 / (scale * decode), at most FLT_MAX.
/// The product is formed first. encode / scale would differ in the last bit, and with it in ties.
NIBBLE_HD constexpr float block_multiplier(E4M3 scale, const TensorScale& g) {
  return min_or_limit(1.0f / (scale.value() * g.decode), kFloatMax);
}

namespace nvfp4 {
/// x 2688 / (scale G) rounded once to 24 bits so that no value becomes a tie which is none: cut off, with the
/// last bit set where something was cut. E2M1's ties have three bits, and the quotient in FP64 is itself on
/// the right side of each: numerator and denominator have 29 and 28 bits, so a quotient that is not a tie is
/// at least 2^-33 of it away.
NIBBLE_HD constexpr float exact_quotient(float x, E4M3 scale, const TensorScale& g) {
  const double amax = g.amax > 0.0f && is_finite(g.amax) ? static_cast<double>(g.amax) : 2688.0;
  const double unit = static_cast<double>(scale.value()) * amax;
  if (unit == 0.0) return x * kFloatMax;
  const double q = static_cast<double>(magnitude(x)) * 2688.0 / unit;
  if (!(q < 16.0)) return x < 0.0f ? -16.0f : 16.0f;  // saturates, and a NaN gives +6
  const float near = static_cast<float>(q);
  const float cut = static_cast<double>(near) > q ? bits_float(float_bits(near) - 1u) : near;
  const bool inexact = static_cast<double>(cut) != q;
  return with_sign(bits_float(float_bits(cut) | (inexact ? 1u : 0u)), (float_bits(x) >> 31) != 0);
}

/// x in units of a code, for the profiles that divide. 0 stays what it is where the divisor underflowed.
NIBBLE_HD constexpr float divided(float x, E4M3 scale, const TensorScale& g, Profile profile) {
  if (profile == Profile::Exact) return exact_quotient(x, scale, g);
  const float divisor =
      profile == Profile::ModelOpt ? scale.value() * unit_of(g) : scale.value() / ct_scale(g);
  return x == 0.0f ? x : x / divisor;
}
}  // namespace nvfp4

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

/// The same under a given scale, in the arithmetic of any profile.
template <class Round>
NIBBLE_HD constexpr void encode_codes(const float (&x)[16], E4M3 scale, const TensorScale& g, Profile profile,
                                      Round round, std::uint8_t (&codes)[8]) {
  switch (profile) {
    case Profile::Te:
    case Profile::Te213:
      return encode_codes(x, block_multiplier(scale, g), round, codes);
    case Profile::TorchAo:
      return encode_codes(x, min_or_limit((1.0f / nvfp4::unit_of(g)) / scale.value(), kFloatMax), round,
                          codes);
    default:
      for (int j = 0; j < 16; j += 2) {
        codes[j / 2] = pack_codes(round(nvfp4::divided(x[j], scale, g, profile), j),
                                  round(nvfp4::divided(x[j + 1], scale, g, profile), j + 1));
      }
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
  encode_codes(x, block.scale, g, profile, round, block.codes);
  return block;
}

/// What one unit of a code is worth: (scale * amax) * fl(1/2688). With another range its inverse is given.
NIBBLE_HD constexpr float decode_factor(E4M3 scale, float amax, float inverse_range = nvfp4::kInverseRange) {
  return (scale.value() * amax) * inverse_range;
}

/// The FP32 value of a code.
NIBBLE_HD constexpr float decode(E2M1 code, E4M3 scale, float amax,
                                 float inverse_range = nvfp4::kInverseRange) {
  return code.value() * decode_factor(scale, amax, inverse_range);
}

/// The factor of a GEMM whose operands are codes times block scales: amaxA * amaxB / 2688^2, in the order of
/// [TE]. The intermediate product can underflow below 1e-45 although the final value would not.
NIBBLE_HD constexpr float gemm_alpha(float amax_a, float amax_b) {
  return ((1.0f * amax_a) * amax_b) * nvfp4::kInverseRangeSquared;
}

}  // namespace nibble
