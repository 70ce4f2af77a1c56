// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/op.h"
#include "ops/step_record.h"

namespace nibble {

/// Between backward and update, where the global norm is known:
///   grad_scale = clip > 0 ? min(1, clip / (sqrt(grad_squares) + 1e-6)) : 1
///   halted |= loss_sum or grad_squares is not finite, or fault >= 0
struct GateUpdate {
  StepRecord* record = nullptr;
  float clip = 0;
};

/// Decoupled weight decay Adam on FP32 master weights and states, over flat buffers:
///   g = grad * grad_scale;  m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2
///   w -= lr * (mhat / (sqrt(vhat) + eps) + weight_decay * w),  mhat = m / (1 - b1^t), vhat = v / (1 - b2^t)
/// and, when asked, copy = w rounded to BF16. lr, grad_scale and the corrections come from the record; while
/// it is halted none of these is written.
///
/// When asked it also leaves what a quantiser of the copy would otherwise read it once more to find, of every
/// tensor in the flat buffer:
///   amaxes[s] = max |w[i] rounded to BF16| over the i of tensor s,
/// compared as bits, so that a NaN or an infinity comes through (quant/amax.h, NonFinite::Detect). A halted
/// step leaves that of the w that it found. The zeros between a tensor's end and the next one do no harm.
struct AdamW {
  View<float> w_N, m_N, v_N;
  View<const float> grad_N;
  RealView copy_N{};  ///< optional BF16 compute copy
  const StepRecord* record = nullptr;
  float beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f, weight_decay = 0;
  /// One flag for every kDecayGroup elements: whether weight_decay applies there. Empty: everywhere.
  View<const std::uint8_t> decays_G{};
  /// The group of kDecayGroup elements that each tensor begins with, strictly ascending from 0: it ends where
  /// the next one begins. And one number a tensor, overwritten. Both or neither.
  View<const std::int32_t> starts_S{};
  View<float> amaxes_S{};
};
inline constexpr std::int64_t kDecayGroup = 16;

/// *sum = sum of x^2, or of x: partial sums of fixed size added in order, in double.
struct SumSquares {
  View<const float> x_N;
  double* sum = nullptr;  ///< in the backend's memory
};
struct Sum {
  View<const float> x_N;
  double* sum = nullptr;  ///< in the backend's memory
};

NIBBLE_OP(GateUpdate, gate_update)
NIBBLE_OP(AdamW, adamw)
NIBBLE_OP(SumSquares, sum_squares)
NIBBLE_OP(Sum, sum)

}  // namespace nibble
