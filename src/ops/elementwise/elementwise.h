// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/op.h"

namespace nibble {

/// x[t,d] += y[t,d], rounded to x's type: the residual add.
struct Add {
  RealView x_TD;
  ConstRealView y_TD;
};

/// out = in in another type, rounded to nearest even.
struct Cast {
  ConstRealView in_TD;
  RealView out_TD;
};

/// y[t,f] = silu(g[t,f]) * u[t,f],  g = gate_up[:, :F], u = gate_up[:, F:],  silu(a) = a / (1 + exp(-a))
struct SwiGlu {
  ConstRealView gate_up_T2F;
  RealView y_TF;
  /// Optional, one number in the backend's memory: the largest |y| as it was stored. A NaN or an infinity in
  /// y comes out as one (quant/amax.h, NonFinite::Detect), so that a quantiser of y need not look again.
  float* amax = nullptr;
};
struct SwiGluBackward {
  ConstRealView gate_up_T2F, dy_TF;
  RealView dgate_up_T2F;  ///< overwritten
  float* amax = nullptr;  ///< optional: of dgate_up, both halves, as SwiGlu::amax
};

/// y = max(x, 0)^2. y may be x: backward reads y alone.
struct SquaredRelu {
  ConstRealView x_TF;
  RealView y_TF;
  float* amax = nullptr;  ///< optional, as SwiGlu::amax
};
/// dx = 2 sqrt(y) dy, the root rounded to y's type. Where x was of that type the root is max(x, 0) to the
/// last bit, as long as its square neither overflows nor falls below 2^-126: a square is rounded by at most
/// half an ulp, its root halves that error relative to the number, and no neighbour of x is as near.
struct SquaredReluBackward {
  ConstRealView y_TF, dy_TF;
  RealView dx_TF;         ///< overwritten; may be dy
  float* amax = nullptr;  ///< optional: of dx, as SwiGlu::amax
};

/// sum[n] += sum over t of x[t,n]: the gradient of a bias.
struct ColumnSum {
  ConstRealView x_TN;
  View<float> sum_N;
};

NIBBLE_OP(Add, add)
NIBBLE_OP(Cast, cast)
NIBBLE_OP(SwiGlu, swiglu)
NIBBLE_OP(SwiGluBackward, swiglu_backward)
NIBBLE_OP(SquaredRelu, squared_relu)
NIBBLE_OP(SquaredReluBackward, squared_relu_backward)
NIBBLE_OP(ColumnSum, column_sum)

}  // namespace nibble
