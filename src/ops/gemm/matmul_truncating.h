// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/op.h"
#include "quant/format.h"

namespace nibble {

/// The product of two FP4 matrices as Blackwell's tensor cores add it, by the published model [MMA-SIM]:
///
///   acc = 0;  for each 64 of K in order: acc = cut(acc + four groups of 16 products)   (truncating_step.h)
///   c[m,n] = alpha * acc  (+ bias[n])  (+ beta * c[m,n]),   alpha and the rest as MatMul has them
///
/// Modelled: the groups, the alignment to the largest nominal exponent, the two cuts towards zero. Not
/// modelled: steps of 96 (a later variant), more than one accumulator along K. No Blackwell card has
/// confirmed it here; the model's authors have.
///
///   codes    [rows, ceil(K/2)] and scales [rows, ceil(K/block)], as Quantize writes them (not swizzled);
///            both NVFP4 or both MXFP4. What is missing in the last 64 counts as zero codes under a scale of
///            0.
///
/// Every backend gives the same bytes. Plain loops everywhere, for studies.
/// Throws  Error{Runtime} when shapes or formats do not fit
struct MatMulTruncating {
  Format format = Format::Nvfp4;  ///< or Mxfp4
  View<const std::uint8_t> a_codes, b_codes, a_scales, b_scales;
  RealView c_MN;  ///< rows contiguous; FP32 when beta is 1
  const float* a_scale = nullptr;
  const float* b_scale = nullptr;
  float inverse_range = 1;
  float beta = 0;  ///< 0 or 1
  View<const float> bias_N{};
  View<const float> a_row_scale_M{}, b_row_scale_N{};
};

NIBBLE_OP(MatMulTruncating, matmul_truncating)

}  // namespace nibble
