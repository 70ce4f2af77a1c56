// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/simd.h"
#include "numeric/bf16.h"

/// Loops over one row that several ops share. Pointers do not overlap unless they are equal.
#define NIBBLE_ROWS_KERNELS(level)                                  \
  namespace level {                                                 \
  void widen(const bf16* x, float* out, std::int64_t n);            \
  void narrow(const float* x, bf16* out, std::int64_t n);           \
  /* acc += x, the first in double */                               \
  void add_to_double(double* acc, const float* x, std::int64_t n);  \
  /* x += y */                                                      \
  void add_to(float* x, const float* y, std::int64_t n);            \
  /* the largest magnitude_bits: a NaN above all numbers */         \
  std::uint32_t magnitude_bits_of(const float* x, std::int64_t n);  \
  /* sum of x[i] y[i] in 16 partial sums that are added pairwise */ \
  float dot(const float* x, const float* y, std::int64_t n);        \
  }

namespace nibble::cpu {
NIBBLE_FOR_EACH_SIMD(NIBBLE_ROWS_KERNELS)
}  // namespace nibble::cpu
