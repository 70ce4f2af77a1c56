// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "layers/context.h"

namespace nibble {

/// RMSNorm of the residual stream. Never quantised; FP32 inside.
class Norm {
 public:
  Norm(Param weight, float eps) : weight_(weight), eps_(eps) {}

  /// Keeps a view of x_TD until backward.
  void forward(Context& ctx, ConstRealView x_TD, RealView y_TD);

  /// Adds into the FP32 gradient of the residual stream.
  void backward(Context& ctx, ConstRealView dy_TD, View<float> dresidual_TD);

 private:
  Param weight_;
  float eps_;
  ConstRealView saved_x_TD_;
  View<float> saved_rstd_T_;
};

}  // namespace nibble
