// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "layers/context.h"

namespace nibble {

/// RMSNorm of the residual stream. Never quantised; FP32 inside. `amax` is where the amax of what is written
/// goes, for the linear that reads it (layers/with_amax.h); null: nobody asks.
class Norm {
 public:
  Norm(Param weight, float eps) : weight_(weight), eps_(eps) {}

  /// Keeps a view of x_TD, and the rows' scales, until backward.
  void forward(Context& ctx, ConstRealView x_TD, RealView y_TD, float* amax = nullptr);

  /// The same of sum_TD = x_TD + y_TD, the residual add before the norm. sum_TD may be one of the two.
  void forward_of_sum(Context& ctx, ConstRealView x_TD, ConstRealView y_TD, RealView sum_TD,
                      RealView normed_TD, float* amax = nullptr);

  /// What forward gave, computed again from what it kept.
  void again(Context& ctx, RealView y_TD, float* amax = nullptr) const;

  /// Adds into the gradient of the residual stream, and rounds an FP32 sum into dresidual_copy_TD where that
  /// is not empty. `amax` is that of the copy, without one of the sum.
  void backward(Context& ctx, ConstRealView dy_TD, RealView dresidual_TD, RealView dresidual_copy_TD,
                float* amax = nullptr);

 private:
  Param weight_;
  float eps_;
  ConstRealView saved_x_TD_;
  View<float> saved_rstd_T_;
};

}  // namespace nibble
