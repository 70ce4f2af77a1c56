// SPDX-License-Identifier: Apache-2.0
#include "ops/gemm/gemm_kernels.h"

namespace nibble::cpu::NIBBLE_SIMD {

void scale_row(const float* acc, float alpha, const float* bias, const float* old, float* out,
               std::int64_t n) {
  // ivdep: every element reads only its own place, so equal pointers are no obstacle.
  if (bias != nullptr && old != nullptr) {
#pragma GCC ivdep
    for (std::int64_t i = 0; i < n; ++i) out[i] = alpha * acc[i] + bias[i] + old[i];
  } else if (bias != nullptr) {
#pragma GCC ivdep
    for (std::int64_t i = 0; i < n; ++i) out[i] = alpha * acc[i] + bias[i];
  } else if (old != nullptr) {
#pragma GCC ivdep
    for (std::int64_t i = 0; i < n; ++i) out[i] = alpha * acc[i] + old[i];
  } else {
#pragma GCC ivdep
    for (std::int64_t i = 0; i < n; ++i) out[i] = alpha * acc[i];
  }
}

}  // namespace nibble::cpu::NIBBLE_SIMD
