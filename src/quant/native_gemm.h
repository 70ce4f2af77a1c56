// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace nibble {

/// What tensor cores multiply as it is stored. What is missing is emulated exactly: BF16 operands that hold
/// code x block scale, one BF16 product (quant/operand.h).
struct NativeGemm {
  bool fp8 = false;    ///< matmul_fp8
  bool fp4 = false;    ///< matmul_fp4
  bool mxfp8 = false;  ///< matmul_mxfp8
  friend bool operator==(const NativeGemm&, const NativeGemm&) = default;
};

/// By compute capability: 89 is Ada, 90 Hopper, 100 and 103 data-centre Blackwell, 120 GeForce Blackwell.
constexpr NativeGemm native_gemm(int compute_capability) {
  return {
      .fp8 = compute_capability >= 89, .fp4 = compute_capability >= 100, .mxfp8 = compute_capability >= 100};
}

/// What both have.
constexpr NativeGemm common(const NativeGemm& a, const NativeGemm& b) {
  return {.fp8 = a.fp8 && b.fp8, .fp4 = a.fp4 && b.fp4, .mxfp8 = a.mxfp8 && b.mxfp8};
}

}  // namespace nibble
