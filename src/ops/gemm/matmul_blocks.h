// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "numeric/bf16.h"
#include "ops/op.h"

namespace nibble {

/// Summed elements under one pair of scales.
inline constexpr std::int64_t kScaledBlock = 128;

/// A product of elements under FP32 scales each 128 of the summed axis (FP8 blocks with FP32 scales
/// [DEEPSEEK]):
///
///   c[m,n] = factor * sum over blocks in order of (a_scale[m,i] b_scale[n,i]) * (sum over the block of
///   a[m,k] b[n,k])
///            (+ bias[n])  (+ beta * c[m,n])
///
/// The block's sum is one FP32 number (ref: a double sum, rounded); scaling it, the product of the scales and
/// every addition round to FP32 once, as kernels do that promote each 128 products from the tensor cores.
/// Elements are BF16, which holds E4M3 exactly; strides as in MatMul, so either axis may be contiguous. The
/// last block may be short.
///
/// Memory  cpu and cuda: 8 M N bytes of scratch
/// Error   |c - exact| <= max(one ulp of c's type, (128 + blocks) 2^-24 sum of |scales||a||b|)
/// Throws  Error{Runtime} when shapes do not fit
struct MatMulBlocks {
  View<const bf16> a_MK, b_NK;
  View<const float> a_scale_MI, b_scale_NI;  ///< I = ceil(K / 128); rows contiguous
  RealView c_MN;                             ///< rows contiguous; FP32 when beta is 1
  float factor = 1;
  float beta = 0;  ///< 0 or 1
  View<const float> bias_N{};
};

NIBBLE_OP(MatMulBlocks, matmul_blocks)

}  // namespace nibble
