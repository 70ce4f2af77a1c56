// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/simd.h"

namespace nibble::cpu {

/// What is the same for every element of a step.
struct AdamWStep {
  float lr, beta1, beta2, one_minus_beta1, one_minus_beta2, eps, weight_decay, grad_scale;
  float inverse_correction1, inverse_correction2;  ///< 1 / (1 - beta^step)
};

#define NIBBLE_ADAMW_KERNELS(level)                                                                    \
  namespace level {                                                                                    \
  void adamw_row(const AdamWStep& s, const float* grad, float* w, float* m, float* v, std::int64_t n); \
  /* sum of x^2 in eight partial sums in double */                                                     \
  double sum_squares_row(const float* x, std::int64_t n);                                              \
  double sum_row(const float* x, std::int64_t n);                                                      \
  }

NIBBLE_FOR_EACH_SIMD(NIBBLE_ADAMW_KERNELS)

}  // namespace nibble::cpu
