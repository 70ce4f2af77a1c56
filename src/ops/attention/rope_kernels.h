// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/simd.h"

#define NIBBLE_ROPE_KERNELS(level)                                                                     \
  namespace level {                                                                                    \
  /* (x, y) = (x c - y s, y c + x s) with s = sin * sign */                                            \
  void rotate_pairs(float* x, float* y, const float* c, const float* sin, float sign, std::int64_t n); \
  }

namespace nibble::cpu {
NIBBLE_FOR_EACH_SIMD(NIBBLE_ROPE_KERNELS)
}  // namespace nibble::cpu
