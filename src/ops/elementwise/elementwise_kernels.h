// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/simd.h"

/// One row of n features in FP32. Outputs overlap no input, but for squared_relu's, which may be one.
/// `is_bf16`: y has been rounded to BF16, and its root is.
#define NIBBLE_ELEMENTWISE_KERNELS(level)                                                                   \
  namespace level {                                                                                         \
  void swiglu_row(const float* g, const float* u, float* y, std::int64_t n);                                \
  void swiglu_row_backward(const float* g, const float* u, const float* dy, float* dg, float* du,           \
                           std::int64_t n);                                                                 \
  void squared_relu_row(const float* x, float* y, std::int64_t n);                                          \
  void squared_relu_row_backward(const float* y, bool is_bf16, const float* dy, float* dx, std::int64_t n); \
  }

namespace nibble::cpu {
NIBBLE_FOR_EACH_SIMD(NIBBLE_ELEMENTWISE_KERNELS)
}  // namespace nibble::cpu
