// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/op.h"

namespace nibble {

/// The product of two NVFP4 matrices as they are stored, on tensor cores that have FP4 (Blackwell) [NVFP4]:
///
///   c[m,n] = alpha * sum over k of (a[m,k] s_a[m,k/16]) (b[n,k] s_b[n,k/16])  (+ bias[n])  (+ beta * c[m,n])
///   alpha  = ((1 * a_amax) * b_amax) * fl(1 / 7225344)     in FP32 and in this order [TE]
///
/// codes    U8 [rows, K/2], element 2i in the low half of byte i; rows contiguous
/// scales   E4M3 in the 128 x 4 swizzle of quant/swizzle.h: swizzle_padded_rows(rows) *
///          swizzle_padded_columns(K/16) bytes, contiguous, padding zero
/// amax     one FP32 number a tensor, in the backend's memory: what Quantize writes as `scale`
///
/// M and N are multiples of 16, K of 32; addresses and row strides multiples of 16 bytes.
///
/// Error   |c - exact| <= max(one ulp of c's type, K 2^-24 |alpha| sum|a||b|) for ref and cpu; what a card
/// adds
///         in is stated by its maker alone
/// Throws  Error{Runtime} when shapes or alignment do not fit; on cuda when the card has no FP4 (native_gemm,
///         ops/gemm/native.h): then multiply the exact operands with matmul
struct MatMulFp4 {
  View<const std::uint8_t> a_codes, b_codes;
  View<const std::uint8_t> a_scales, b_scales;
  const float* a_amax = nullptr;
  const float* b_amax = nullptr;
  RealView c_MN;               ///< BF16 or FP32; FP32 when beta is 1
  float beta = 0;              ///< 0 or 1
  View<const float> bias_N{};  ///< optional; FP32, added after alpha, before the rounding to c
};

NIBBLE_OP(MatMulFp4, matmul_fp4)

}  // namespace nibble
