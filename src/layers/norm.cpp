// SPDX-License-Identifier: Apache-2.0
#include "layers/norm.h"

#include "ops/norm/rms_norm.h"

namespace nibble {

void Norm::forward(Context& ctx, ConstRealView x_TD, RealView y_TD, float* amax) {
  saved_x_TD_ = x_TD;
  saved_rstd_T_ = ctx.arena.take<float>(x_TD.size(0));
  again(ctx, y_TD, amax);
}

void Norm::forward_of_sum(Context& ctx, ConstRealView x_TD, ConstRealView y_TD, RealView sum_TD,
                          RealView normed_TD, float* amax) {
  saved_x_TD_ = sum_TD;
  saved_rstd_T_ = ctx.arena.take<float>(x_TD.size(0));
  add_rms_norm(ctx.stream, {.x_TD = x_TD,
                            .y_TD = y_TD,
                            .sum_TD = sum_TD,
                            .w_D = weight_.master,
                            .normed_TD = normed_TD,
                            .rstd_T = saved_rstd_T_,
                            .eps = eps_,
                            .amax = amax});
}

void Norm::again(Context& ctx, RealView y_TD, float* amax) const {
  rms_norm(ctx.stream, {.x_TD = saved_x_TD_,
                        .w_D = weight_.master,
                        .y_TD = y_TD,
                        .rstd_T = saved_rstd_T_,
                        .eps = eps_,
                        .amax = amax});
}

void Norm::backward(Context& ctx, ConstRealView dy_TD, RealView dresidual_TD, RealView dresidual_copy_TD,
                    float* amax) {
  rms_norm_backward(ctx.stream, {.x_TD = saved_x_TD_,
                                 .w_D = weight_.master,
                                 .rstd_T = saved_rstd_T_,
                                 .dy_TD = dy_TD,
                                 .dx_TD = dresidual_TD,
                                 .dw_D = weight_.grad,
                                 .dx_copy_TD = dresidual_copy_TD,
                                 .amax = amax});
}

}  // namespace nibble
