// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/health/tensor_sums.h"
#include "ops/op.h"
#include "quant/format.h"

namespace nibble {

/// What quantisation did to one operand: sums that add over micro-batches and ranks, and what follows from
/// them. Memory of zeros is an empty sum.
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
  /// Elements by their code: formats of four bits alone.
  std::int64_t code_histogram[16] = {};
  double sum_x2 = 0, sum_e2 = 0;  ///< of x^2 and (q - x)^2
  double sum_abs = 0, sum_e = 0;  ///< of |x| and (q - x) * sign(x)... see bias()
  double sum_xq = 0, sum_q2 = 0;
  double sum_x = 0;
  float amax = 0;
  float amin = 0;         ///< smallest magnitude that is not zero; 0: none
  float block_range = 0;  ///< largest of a block's largest / smallest non-zero magnitude; 0: no blocks
  /// Smallest and largest `scale` (Quantize::scale) of the tensors merged; 0: none.
  float scale_inv_min = 0, scale_inv_max = 0;

  NIBBLE_HD void merge(const QuantStats& o) {
    count += o.count;
    nonzero += o.nonzero;
    flushed += o.flushed;
    saturated += o.saturated;
    blocks += o.blocks;
    zero_blocks += o.zero_blocks;
    scale_max += o.scale_max;
    scale_subnormal += o.scale_subnormal;
    scale_zero += o.scale_zero;
    for (int b = 0; b < 16; ++b) scale_histogram[b] += o.scale_histogram[b];
    for (int c = 0; c < 16; ++c) code_histogram[c] += o.code_histogram[c];
    sum_x2 += o.sum_x2;
    sum_e2 += o.sum_e2;
    sum_abs += o.sum_abs;
    sum_e += o.sum_e;
    sum_xq += o.sum_xq;
    sum_q2 += o.sum_q2;
    sum_x += o.sum_x;
    amax = larger_magnitude(amax, o.amax);
    amin = smaller_magnitude(amin, o.amin);
    block_range = larger_magnitude(block_range, o.block_range);
    scale_inv_min = smaller_magnitude(scale_inv_min, o.scale_inv_min);
    scale_inv_max = larger_magnitude(scale_inv_max, o.scale_inv_max);
  }
  double flushed_share() const;    ///< flushed / nonzero
  double saturated_share() const;  ///< saturated / count
  double sqnr_db() const;          ///< 10 log10(sum_x2 / sum_e2)
  double bias()
      const;  ///< sum_e / sum_abs: negative = shrinks; 0 in the mean under exact SR without clipping
  double cosine() const;
  double crest() const;                ///< amax / rms
  double deviation() const;            ///< sqrt(E x^2 - (E x)^2)
  double dynamic_range() const;        ///< log2(amax / amin), octaves; 0 of nothing
  double block_dynamic_range() const;  ///< log2(block_range)
  double code_entropy() const;         ///< bits a code: 4 is the most; 0 where codes are not counted
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
  QuantStats* out = nullptr;     ///< merged into; in the backend's memory, so that nobody waits
  View<const float> row_amax{};  ///< row-scaled NVFP4: Quantize::row_amax
};

NIBBLE_OP(MeasureQuant, measure_quant)

/// The statistics of one measurement alone, waited for; `out` is ignored.
QuantStats measured_quant(Stream& stream, MeasureQuant m);

}  // namespace nibble
