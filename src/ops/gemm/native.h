// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backend/device.h"

namespace nibble {

/// What the tensor cores of a device multiply as it is stored. What is missing is emulated exactly: BF16
/// operands that hold code x block scale, one BF16 product (quant/operand.h).
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

/// All false on the host, where those ops decode.
NativeGemm native_gemm(Device& device);

inline bool fp8_native(Device& device) { return native_gemm(device).fp8; }
inline bool fp4_native(Device& device) { return native_gemm(device).fp4; }
inline bool mxfp8_native(Device& device) { return native_gemm(device).mxfp8; }

}  // namespace nibble
