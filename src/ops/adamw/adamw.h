// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/op.h"

namespace nibble {

/// Decoupled weight decay Adam on FP32 master weights and states, one flat piece at a time:
///   g = grad * grad_scale;  m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2
///   w -= lr * (mhat / (sqrt(vhat) + eps) + weight_decay * w),  mhat = m / (1 - b1^step), vhat = v / (1 -
///   b2^step)
/// and, when asked, copy = w rounded to BF16.
struct AdamW {
  View<float> w_N, m_N, v_N;
  View<const float> grad_N;
  RealView copy_N{};  ///< optional BF16 compute copy
  float lr = 0, beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f, weight_decay = 0;
  float grad_scale = 1;   ///< the clip factor
  std::int64_t step = 1;  ///< 1 for the first update
};

/// *sum = sum of x^2, partial sums of fixed size added in order in double.
struct SumSquares {
  View<const float> x_N;
  double* sum = nullptr;
};

NIBBLE_OP(AdamW, adamw)
NIBBLE_OP(SumSquares, sum_squares)

}  // namespace nibble
