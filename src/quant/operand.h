// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/hd.h"
#include "numeric/bf16.h"
#include "numeric/e2m1.h"
#include "numeric/e2m3.h"
#include "numeric/e3m2.h"
#include "numeric/e4m3.h"
#include "numeric/e5m2.h"
#include "numeric/e8m0.h"

/// What an emulated GEMM multiplies: code x block scale, without the tensor scale, as BF16. A BF16 GEMM with
/// FP32 accumulation then reads the very numbers that tensor cores with native support would decode, and
/// differs from them only in how it accumulates; the tensor scales enter once, as the factor alpha.
///
/// Exactness. NVFP4: always (at most 6 significant bits, 2^-10 to 2688). MXFP4: always, but for values of
/// 2^128 and above, which are infinite in FP32 too. MXFP8, MXFP6: while the product is a multiple of 2^-133,
/// BF16's smallest step. FP8 with blocks of 128 under powers of two: likewise. FP8 with FP32 scales, a tensor
/// or a block: always; its operand is the element itself, and the scales are the product's business.
namespace nibble {

NIBBLE_HD constexpr bf16 exact_operand(E2M1 code, E4M3 scale) {
  return bf16::nearest(code.value() * scale.value());
}
NIBBLE_HD constexpr bf16 exact_operand(E2M1 code, E8M0 scale) {
  return bf16::nearest(code.value() * scale.value());
}
NIBBLE_HD constexpr bf16 exact_operand(E4M3 code, E8M0 scale) {
  return bf16::nearest(code.value() * scale.value());
}
NIBBLE_HD constexpr bf16 exact_operand(E5M2 code, E8M0 scale) {
  return bf16::nearest(code.value() * scale.value());
}
NIBBLE_HD constexpr bf16 exact_operand(E2M3 code, E8M0 scale) {
  return bf16::nearest(code.value() * scale.value());
}
NIBBLE_HD constexpr bf16 exact_operand(E3M2 code, E8M0 scale) {
  return bf16::nearest(code.value() * scale.value());
}
NIBBLE_HD constexpr bf16 exact_operand(E4M3 code) { return bf16::nearest(code.value()); }
NIBBLE_HD constexpr bf16 exact_operand(E5M2 code) { return bf16::nearest(code.value()); }

}  // namespace nibble
