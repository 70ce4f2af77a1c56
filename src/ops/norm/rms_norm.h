// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/op.h"

namespace nibble {

/// y[t,d] = x[t,d] * rstd[t] * w[d],  rstd[t] = (mean over d of x[t,d]^2 + eps)^(-1/2)
/// FP32 inside, one rounding at the end.
struct RmsNorm {
  ConstRealView x_TD;
  View<const float> w_D;
  RealView y_TD;
  View<float> rstd_T;  ///< kept for the backward pass
  float eps = 1e-5f;   ///< in units of x^2
  /// Optional, one number in the backend's memory: the largest |y| as it was stored. A NaN or an infinity in
  /// y comes out as one (quant/amax.h, NonFinite::Detect), so that a quantiser of y need not look again.
  float* amax = nullptr;
};

/// The residual add and the norm that follows it, reading x and y once:
///   sum[t,d] = x[t,d] + y[t,d], rounded to sum's type;  normed = rms_norm(sum), from the rounded sum
struct AddRmsNorm {
  ConstRealView x_TD, y_TD;
  RealView sum_TD;  ///< may be the memory of x or of y, where the types agree
  View<const float> w_D;
  RealView normed_TD;
  View<float> rstd_T;
  float eps = 1e-5f;
  float* amax = nullptr;  ///< optional: of normed, as RmsNorm::amax
};

/// dx[t,d] += rstd (g - xhat mean_d(g xhat)),  g = dy w,  xhat = x rstd;   dw[d] += sum over t of dy xhat
/// The sum in dx is FP32, rounded once where dx is BF16.
struct RmsNormBackward {
  ConstRealView x_TD;
  View<const float> w_D, rstd_T;
  ConstRealView dy_TD;
  RealView dx_TD;    ///< += : the gradient of the residual stream, FP32 by default (ADR 8)
  View<float> dw_D;  ///< +=
  /// Optional, beside an FP32 dx: dx after the addition, rounded to this type. It is what the next sublayer's
  /// backward reads; without it, that reads dx.
  RealView dx_copy_TD{};
  float* amax = nullptr;  ///< optional: of what the next sublayer's backward reads, as RmsNorm::amax
};

/// The gated norm of Mamba-2, gate first: r = y * silu(z);  out = r * rstd * w, where rstd is over each of
/// `groups` equal parts of a row separately (Nemotron-H: one a group; the Mamba-2 family: groups = 1).
struct GatedRmsNorm {
  ConstRealView y_TD, z_TD;
  View<const float> w_D;
  RealView out_TD;
  View<float> rstd_TG;
  int groups = 1;
  float eps = 1e-5f;
  float* amax = nullptr;  ///< optional: of out, as RmsNorm::amax
};

struct GatedRmsNormBackward {
  ConstRealView y_TD, z_TD;
  View<const float> w_D, rstd_TG;
  ConstRealView dout_TD;
  RealView dy_TD, dz_TD;  ///< overwritten
  View<float> dw_D;       ///< +=
  int groups = 1;
};

NIBBLE_OP(RmsNorm, rms_norm)
NIBBLE_OP(AddRmsNorm, add_rms_norm)
NIBBLE_OP(RmsNormBackward, rms_norm_backward)
NIBBLE_OP(GatedRmsNorm, gated_rms_norm)
NIBBLE_OP(GatedRmsNormBackward, gated_rms_norm_backward)

}  // namespace nibble
