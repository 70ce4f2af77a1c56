// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/simd.h"

#define NIBBLE_LOSS_KERNELS(level)                                                           \
  namespace level {                                                                          \
  /* e = exp(x - max x); returns the sum of e in 16 partial sums, and the maximum in *max */ \
  float exp_row(const float* x, float* e, float* max, std::int64_t n);                       \
  /* d = e * factor */                                                                       \
  void scaled_row(const float* e, float factor, float* d, std::int64_t n);                   \
  }

namespace nibble::cpu {
NIBBLE_FOR_EACH_SIMD(NIBBLE_LOSS_KERNELS)
}  // namespace nibble::cpu
