// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/hd.h"
#include "quant/format.h"
#include "quant/nvfp4.h"

/// Four over six: a block of NVFP4 may map its largest magnitude to 4 instead of 6, under a scale half as
/// large again, and takes whichever decodes with the smaller error. Mapping to 6 leaves a gap between 4 and
/// 6 where a block's second largest values fall; mapping to 4 has no such gap and a coarser step elsewhere.
///
///   base      = (block_amax / 6) * S_enc           the division, in any profile
///   six, four = E4M3(base), E4M3(base * 1.5)       saturating at 448
///   error     = sum over the block, in FP32 and in order, of |d| or d * d,
///               d = ((code * scale) * amax) / (6 * bound) - x
/// Four only where its error is strictly smaller. With bound 448 the tensor's largest block cannot choose
/// four: 1.5 * 448 saturates. Hence bound 256. A square tile adds its rows' errors as a tree (i with i + 8,
/// then + 4, + 2, + 1). Under stochastic rounding, of rows alone, the errors are those of the codes drawn.
/// The candidates must draw apart, so four takes for element j the random number of element (j + 8) mod 16.
/// The choice then biases the result, which is why gradients do not use it. Sources: [FOUROVERSIX], [TE].
namespace nibble {

struct CandidateScales {
  E4M3 six, four;
};

NIBBLE_HD constexpr CandidateScales candidate_scales(float block_amax, const TensorScale& g) {
  const float base = (block_amax / 6.0f) * g.encode;
  return {E4M3::nearest(min_or_limit(base, kFloatMax)), E4M3::nearest(min_or_limit(base * 1.5f, kFloatMax))};
}

/// The error of a row of a block, from 0.
NIBBLE_HD constexpr float coding_error(const float (&x)[16], const std::uint8_t (&codes)[8], E4M3 scale,
                                       float amax, float range, FourOverSix measure) {
  float sum = 0;
  for (int j = 0; j < 16; ++j) {
    const float d = ((unpack_code(codes, j).value() * scale.value()) * amax) / range - x[j];
    sum = sum + (measure == FourOverSix::Mae ? magnitude(d) : d * d);
  }
  return sum;
}

/// The sum of a square tile's sixteen row errors.
NIBBLE_HD constexpr float sum_of_rows(float (&error)[16]) {
  for (int distance = 8; distance > 0; distance /= 2) {
    for (int i = 0; i < distance; ++i) error[i] = error[i] + error[i + distance];
  }
  return error[0];
}

/// Rounds under the random numbers of the other half of the block.
template <class Round>
struct OtherHalf {
  Round round;
  NIBBLE_HD constexpr E2M1 operator()(float x, int j) const { return round(x, (j + 8) % 16); }
};

/// A row-wise block. `g` was made with `range` = 6 * bound.
template <class Round>
NIBBLE_HD constexpr Nvfp4Block encode_four_over_six(const float (&x)[16], float block_amax,
                                                    const TensorScale& g, float range, FourOverSix measure,
                                                    Round round) {
  const CandidateScales scales = candidate_scales(block_amax, g);
  Nvfp4Block six{.scale = scales.six}, four{.scale = scales.four};
  encode_codes(x, block_multiplier(six.scale, g), round, six.codes);
  encode_codes(x, block_multiplier(four.scale, g), OtherHalf<Round>{round}, four.codes);
  const float six_error = coding_error(x, six.codes, six.scale, g.amax, range, measure);
  const float four_error = coding_error(x, four.codes, four.scale, g.amax, range, measure);
  return four_error < six_error ? four : six;
}

}  // namespace nibble
