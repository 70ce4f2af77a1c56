// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/simd.h"

/// One row, or one group of a row, of n features in FP32. Outputs overlap no input.
#define NIBBLE_NORM_KERNELS(level)                                                                         \
  namespace level {                                                                                        \
  /* y = x rstd w; returns rstd */                                                                         \
  float norm_row(const float* x, const float* w, float* y, std::int64_t n, float eps);                     \
  /* g += rstd (dy w - xhat mean(dy w xhat)), dw += dy xhat */                                             \
  void norm_row_backward(const float* x, const float* w, const float* dy, float rstd, float* g, float* dw, \
                         std::int64_t n);                                                                  \
  /* r = y silu(z) */                                                                                      \
  void gate_row(const float* y, const float* z, float* r, std::int64_t n);                                 \
  /* dy = dr silu(z), dz = dr y silu'(z) */                                                                \
  void gate_row_backward(const float* y, const float* z, const float* dr, float* dy, float* dz,            \
                         std::int64_t n);                                                                  \
  }

namespace nibble::cpu {
NIBBLE_FOR_EACH_SIMD(NIBBLE_NORM_KERNELS)
}  // namespace nibble::cpu
