// SPDX-License-Identifier: Apache-2.0
#include "layers/mlp.h"

#include "ops/elementwise/elementwise.h"

namespace nibble {

WithAmax Mlp::activate(Context& ctx, RealView up, Arena& arena) const {
  float* const amax = down_.room_for_amax_of_x(ctx, arena);
  if (in_place()) {
    squared_relu(ctx.stream, {.x_TF = up, .y_TF = up, .amax = amax});
    return {up, amax};
  }
  const RealView hidden_TF = arena.take_real(ctx.activation, up.size(0), spec_.hidden);
  swiglu(ctx.stream, {.gate_up_T2F = up, .y_TF = hidden_TF, .amax = amax});
  return {hidden_TF, amax};
}

void Mlp::forward(Context& ctx, WithAmax x_TD, RealView y_TD) {
  const ArenaScope temporaries(ctx.stream.scratch());
  const RealView up = ctx.activations(x_TD.size(0), up_.info().n);
  up_.forward(ctx, x_TD, up);
  saved_up_ = up;
  saved_hidden_TF_ = activate(ctx, up, in_place() ? ctx.arena : down_.arena_of_x(ctx));
  down_.forward(ctx, saved_hidden_TF_, y_TD);
}

void Mlp::backward(Context& ctx, WithAmax x_TD, WithAmax dy_TD, RealView dx_TD) {
  const ArenaScope temporaries(ctx.arena);
  const std::int64_t tokens = dy_TD.size(0);
  const RealView dhidden_TF = ctx.activations(tokens, spec_.hidden);
  const RealView dup = in_place() ? dhidden_TF : ctx.activations(tokens, up_.info().n);
  float* const dup_amax = up_.room_for_amax_of_dy(ctx, ctx.arena);
  const bool again = ctx.recomputes() && !in_place();
  const WithAmax hidden_TF = again ? activate(ctx, saved_up_, ctx.arena) : saved_hidden_TF_;
  down_.backward(ctx, hidden_TF, dy_TD, dhidden_TF);
  if (in_place())
    squared_relu_backward(ctx.stream,
                          {.y_TF = hidden_TF, .dy_TF = dhidden_TF, .dx_TF = dup, .amax = dup_amax});
  else
    swiglu_backward(ctx.stream,
                    {.gate_up_T2F = saved_up_, .dy_TF = dhidden_TF, .dgate_up_T2F = dup, .amax = dup_amax});
  up_.backward(ctx, x_TD, {dup, dup_amax}, dx_TD);
}

}  // namespace nibble
