// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/op.h"

namespace nibble {

/// c[m,n] = alpha * sum over k of a[m,k] b[n,k]  (+ bias[n])  (+ beta * c[m,n])
///
/// alpha = ((1 * a_scale) * b_scale) * inverse_range, in FP32 and in this order [TE]: for two NVFP4 operands
/// the scales are the tensors' amax and inverse_range = fl(1 / (6*6*448*448)). A null scale counts as 1.
/// An operand with a scale a row (row-scaled NVFP4) has a_row_scale or b_row_scale beside it, whose value
/// takes the place of the tensor's: alpha = ((a_scale a_row[m]) (b_scale b_row[n])) inverse_range.
/// The operands are BF16 or FP32 (both the same), any strides as long as one is 1, so that a transposed
/// matrix is a view. Products are exact in FP32, accumulation is FP32 (the reference: double), alpha is
/// applied to the finished sum, then bias, then beta * c; the result is rounded once to c's type.
///
/// Error   |c - exact| <= max(one ulp of c's type, K 2^-24 alpha sum|a||b|)   (decisions: GEMM bound)
/// Throws  Error{Runtime} when shapes or types do not fit
/// (Called MatMul: `enum class Gemm` in recipe/recipe.h names the three GEMMs of a linear.)
struct MatMul {
  ConstRealView a_MK, b_NK;
  RealView c_MN;  ///< rows contiguous (stride(1) == 1); FP32 when beta is 1
  const float* a_scale = nullptr;
  const float* b_scale = nullptr;
  float inverse_range = 1;
  float beta = 0;                                      ///< 0 or 1: 1 accumulates into c (FP32 main gradients)
  View<const float> bias_N{};                          ///< optional
  View<const float> a_row_scale_M{}, b_row_scale_N{};  ///< optional
};

NIBBLE_OP(MatMul, matmul)

}  // namespace nibble
