// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/simd.h"

/// to[i] += a * x[i] in FP64: with plain loops around it the sums of the reference, in its order.
#define NIBBLE_QUANTIZED_ATTENTION_KERNELS(level)                        \
  namespace level {                                                      \
  void add_scaled(double* to, double a, const float* x, std::int64_t n); \
  }

namespace nibble::cpu {
NIBBLE_FOR_EACH_SIMD(NIBBLE_QUANTIZED_ATTENTION_KERNELS)
}  // namespace nibble::cpu
