// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/op.h"
#include "quant/format.h"

namespace nibble {

/// The product of two MXFP8 matrices as they are stored, on tensor cores that have it (Blackwell) [OCP-MX]:
///
///   c[m,n] = sum over k of (a[m,k] s_a[m,k/32]) (b[n,k] s_b[n,k/32])  (+ bias[n])  (+ beta * c[m,n])
///
/// codes    U8 [rows, K], rows contiguous
/// scales   E8M0 in the 128 x 4 swizzle of quant/swizzle.h: swizzle_padded_rows(rows) *
///          swizzle_padded_columns(K/32) bytes, contiguous, padding zero
///
/// M and N are multiples of 16, K of 32; addresses and row strides multiples of 16 bytes.
///
/// Error   as matmul_fp4, where every code times scale is a normal BF16 number
/// Throws  Error{Runtime} when shapes, formats or alignment do not fit, or both operands are E5M2; on cuda
///         when the card has no MXFP8 (native_gemm, ops/gemm/native.h)
struct MatMulMxfp8 {
  View<const std::uint8_t> a_codes, b_codes;
  View<const std::uint8_t> a_scales, b_scales;
  Format a_format = Format::Mxfp8E4M3, b_format = Format::Mxfp8E4M3;  ///< or Mxfp8E5M2
  RealView c_MN;                                                      ///< BF16 or FP32; FP32 when beta is 1
  float beta = 0;                                                     ///< 0 or 1
  View<const float> bias_N{};  ///< optional; FP32, added after alpha, before the rounding to c
};

NIBBLE_OP(MatMulMxfp8, matmul_mxfp8)

}  // namespace nibble
