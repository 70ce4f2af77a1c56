// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/simd.h"

/// out = alpha * acc (+ bias) (+ old), each step rounded to FP32; bias and old may be null, acc and old may
/// be out itself.
#define NIBBLE_GEMM_KERNELS(level)                                                               \
  namespace level {                                                                              \
  void scale_row(const float* acc, float alpha, const float* bias, const float* old, float* out, \
                 std::int64_t n);                                                                \
  }

namespace nibble::cpu {
NIBBLE_FOR_EACH_SIMD(NIBBLE_GEMM_KERNELS)
}  // namespace nibble::cpu
