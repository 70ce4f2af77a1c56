// SPDX-License-Identifier: Apache-2.0
#include "layers/mlp.h"

#include "ops/elementwise/elementwise.h"

namespace nibble {

void Mlp::activate(Context& ctx, ConstRealView up, RealView hidden_TF) const {
  if (spec_.activation == Activation::SwiGlu)
    swiglu(ctx.stream, {.gate_up_T2F = up, .y_TF = hidden_TF});
  else
    squared_relu(ctx.stream, {.x_TF = up, .y_TF = hidden_TF});
}

void Mlp::forward(Context& ctx, ConstRealView x_TD, RealView y_TD) {
  const ArenaScope temporaries(ctx.stream.scratch());
  const std::int64_t tokens = x_TD.size(0);
  const RealView up = ctx.activations(tokens, up_.info().n);
  const RealView hidden_TF = ctx.recomputable(tokens, spec_.hidden);
  up_.forward(ctx, x_TD, up);
  activate(ctx, up, hidden_TF);
  down_.forward(ctx, hidden_TF, y_TD);
  saved_up_ = up;
  saved_hidden_TF_ = hidden_TF;
}

void Mlp::backward(Context& ctx, ConstRealView x_TD, ConstRealView dy_TD, RealView dx_TD) {
  const ArenaScope temporaries(ctx.arena);
  const std::int64_t tokens = dy_TD.size(0);
  const RealView dhidden_TF = ctx.activations(tokens, spec_.hidden);
  const RealView dup = ctx.activations(tokens, up_.info().n);
  ConstRealView hidden_TF = saved_hidden_TF_;
  if (ctx.recomputes()) {
    const RealView again_TF = ctx.activations(tokens, spec_.hidden);
    activate(ctx, saved_up_, again_TF);
    hidden_TF = again_TF;
  }
  down_.backward(ctx, hidden_TF, dy_TD, dhidden_TF);
  if (spec_.activation == Activation::SwiGlu)
    swiglu_backward(ctx.stream, {.gate_up_T2F = saved_up_, .dy_TF = dhidden_TF, .dgate_up_T2F = dup});
  else
    squared_relu_backward(ctx.stream, {.x_TF = saved_up_, .dy_TF = dhidden_TF, .dx_TF = dup});
  up_.backward(ctx, x_TD, dup, dx_TD);
}

}  // namespace nibble
