// SPDX-License-Identifier: Apache-2.0
#include "ops/gemm/native.h"

#ifdef NIBBLE_WITH_CUDA
#include "backend/cuda/cuda_device.h"
#endif

namespace nibble {

NativeGemm native_gemm(Device& device) {
#ifdef NIBBLE_WITH_CUDA
  if (device.kind() == BackendKind::Cuda)
    return native_gemm(static_cast<CudaDevice&>(device).compute_capability());
#endif
  static_cast<void>(device);
  return {};
}

}  // namespace nibble
