// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backend/device.h"
#include "quant/native_gemm.h"

namespace nibble {

/// What the tensor cores of the device multiply as it is stored: all false on the host, where those ops
/// decode.
NativeGemm native_gemm(Device& device);

inline bool fp8_native(Device& device) { return native_gemm(device).fp8; }
inline bool fp4_native(Device& device) { return native_gemm(device).fp4; }
inline bool mxfp8_native(Device& device) { return native_gemm(device).mxfp8; }

}  // namespace nibble
