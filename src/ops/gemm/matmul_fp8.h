// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/op.h"
#include "quant/format.h"

namespace nibble {

/// The product of two FP8 matrices with one scale a tensor [FP8], on tensor cores that have FP8:
///
///   c[m,n] = alpha * sum over k of a[m,k] b[n,k]  (+ bias[n])  (+ beta * c[m,n]),   alpha = (1 * a_scale) *
///   b_scale
///
/// where a[m,k] is the value of a code. Both operands have the summed axis contiguous ("TN"), the only form
/// that Hopper multiplies: a transposed operand is a transposed copy of codes. Scales are what Quantize
/// writes as `scale` (1 / encode scale), in the backend's memory; null counts as 1.
///
/// M, N and K are multiples of 16; addresses and row strides multiples of 16 bytes, on cuda those of the
/// scales too.
///
/// Error   ref: a double sum, rounded to FP32. cpu: K 2^-24 |alpha| sum|a||b|. cuda: the tensor cores align
/// the
///         products of a step to the largest and drop what lies about 13 bits behind its leading one;
///         fast_accumulation treats the running sum so too, without it sums of a few steps are added in FP32.
///         No bound is published; sums of integers up to 2^12 are exact, and tests hold sums of up to 512
///         products of normal numbers to 1 % of their root mean square.
/// Throws  Error{Runtime} when shapes, formats or alignment do not fit, or both operands are E5M2; on cuda
///         when the card has no FP8 (native_gemm, ops/gemm/native.h)
struct MatMulFp8 {
  View<const std::uint8_t> a_MK, b_NK;
  Format a_format = Format::Fp8E4M3, b_format = Format::Fp8E4M3;  ///< or Fp8E5M2
  const float* a_scale = nullptr;
  const float* b_scale = nullptr;
  RealView c_MN;                   ///< BF16 or FP32; FP32 when beta is 1
  float beta = 0;                  ///< 0 or 1
  bool fast_accumulation = false;  ///< cuda: faster and coarser sums; for fprop at most
  View<const float> bias_N{};      ///< optional; FP32, added after alpha, before the rounding to c
};

NIBBLE_OP(MatMulFp8, matmul_fp8)

}  // namespace nibble
