// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/op.h"
#include "quant/format.h"

namespace nibble {

/// What quantisation did to one operand: sums that add over micro-batches and ranks, and what follows from
/// them.
struct QuantStats {
  std::int64_t count = 0;      ///< elements
  std::int64_t nonzero = 0;    ///< of them, not zero before
  std::int64_t flushed = 0;    ///< not zero before, decoded value zero after (values, not codes)
  std::int64_t saturated = 0;  ///< |element value| = the format's maximum
  std::int64_t blocks = 0, zero_blocks = 0;  ///< blocks; of them all zero before
  /// Block scales of blocks that are not all zero: at the format's maximum (448), below 2^-6 but not 0, and
  /// 0.
  std::int64_t scale_max = 0, scale_subnormal = 0, scale_zero = 0;
  /// The same blocks by floor(log2(scale)): bin e holds 2^(e-7), bin 0 everything below 2^-6. For E4M3 that
  /// is its exponent field; E8M0 scales outside the range are counted at its ends.
  std::int64_t scale_histogram[16] = {};
  double sum_x2 = 0, sum_e2 = 0;  ///< of x^2 and (q - x)^2
  double sum_abs = 0, sum_e = 0;  ///< of |x| and (q - x) * sign(x)... see bias()
  double sum_xq = 0, sum_q2 = 0;
  float amax = 0;

  void merge(const QuantStats& other);
  double flushed_share() const;    ///< flushed / nonzero
  double saturated_share() const;  ///< saturated / count
  double sqnr_db() const;          ///< 10 log10(sum_x2 / sum_e2)
  double bias()
      const;  ///< sum_e / sum_abs: negative = shrinks; 0 in the mean under exact SR without clipping
  double cosine() const;
};

/// Compares a matrix with its quantised form (as Quantize made it, `transpose` and rotation included).
/// sum_e adds (q - x) sign(x), so that a shrink towards zero shows as a negative bias.
///
/// What is compared is the DECODED value (as Dequantize has it), not the code: a block whose scale fell to
/// zero has codes of +-6 and values of 0, and counts as flushed. A square tile is one block.
///
///   x_RC    may be narrower than the result, whose rows a rotation pads to a multiple of its size: the
///   padding is
///           not counted. For a rotated operand it is what Rotate wrote.
///   codes   required, and `scales` with them where the format has block scales; BF16 and FP32 need `values`
///
/// Sums are in double; the two backends agree to the rounding of their order, the counts exactly, and neither
/// depends on the number of threads. Throws Error{Runtime} for shapes that do not fit.
struct MeasureQuant {
  ConstRealView
      x_RC;  ///< the operand before quantisation, in the result's layout: already rotated/transposed
  View<const bf16> values;                 ///< Quantize::values; read only where there are no codes
  View<const std::uint8_t> codes, scales;  ///< Quantize::codes, scales
  QuantSpec spec;
  const float* amax = nullptr;
  const float* scale = nullptr;
  QuantStats* out = nullptr;     ///< merged into
  View<const float> row_amax{};  ///< row-scaled NVFP4: Quantize::row_amax
};

NIBBLE_OP(MeasureQuant, measure_quant)

}  // namespace nibble
