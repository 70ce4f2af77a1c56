// SPDX-License-Identifier: Apache-2.0
#include "layers/mamba2.h"

#include "ops/norm/rms_norm.h"
#include "ops/ssm/causal_conv.h"
#include "ops/ssm/ssd.h"

namespace nibble {

template <class V>
Mamba2::Projected<V> Mamba2::split_projected(V projected) const {
  const std::int64_t di = spec_.inner(), channels = spec_.conv_channels();
  return {projected.cols(0, di), projected.cols(di, channels), projected.cols(di + channels, spec_.heads)};
}

template <class V>
Mamba2::Convolved<V> Mamba2::split_convolved(V convolved) const {
  const std::int64_t di = spec_.inner(), gn = spec_.groups * spec_.state;
  return {convolved.cols(0, di).split_last(spec_.heads, spec_.head_dim),
          convolved.cols(di, gn).split_last(spec_.groups, spec_.state),
          convolved.cols(di + gn, gn).split_last(spec_.groups, spec_.state)};
}

void Mamba2::forward(Context& ctx, WithAmax x_TD, RealView y_TD) {
  const ArenaScope temporaries(ctx.stream.scratch());
  const std::int64_t tokens = x_TD.size(0), di = spec_.inner();
  const RealView projected = ctx.activations(tokens, in_.info().n);
  const RealView convolved = ctx.activations(tokens, spec_.conv_channels());
  const RealView scanned = ctx.activations(tokens, di);
  const std::int64_t chunks = tokens / ctx.seq_len * chunks_of(ctx.seq_len, spec_.chunk);
  saved_states_ = ctx.arena.take<float>(chunks, spec_.heads, spec_.head_dim, spec_.state);
  saved_rstd_TG_ = ctx.arena.take<float>(tokens, spec_.norm_groups);

  in_.forward(ctx, x_TD, projected);
  const Projected<RealView> p = split_projected(projected);
  causal_conv(ctx.stream, {.x_TC = p.xbc,
                           .w_CK = p_.conv_weight_CK.master,
                           .b_C = p_.conv_bias_C.master,
                           .y_TC = convolved,
                           .seq_len = ctx.seq_len});
  const Convolved<RealView> c = split_convolved(convolved);
  ssd(ctx.stream, {.x_THP = c.x_THP,
                   .b_TGN = c.b_TGN,
                   .c_TGN = c.c_TGN,
                   .dt_TH = p.dt_TH,
                   .a_log_H = p_.a_log_H.master,
                   .d_H = p_.d_H.master,
                   .dt_bias_H = p_.dt_bias_H.master,
                   .y_THP = scanned.split_last(spec_.heads, spec_.head_dim),
                   .states = saved_states_,
                   .seq_len = ctx.seq_len,
                   .chunk = spec_.chunk});
  saved_projected_ = projected;
  saved_convolved_ = convolved;
  saved_scanned_ = scanned;
  saved_gated_ = gate(ctx, out_.arena_of_x(ctx));
  out_.forward(ctx, saved_gated_, y_TD);
}

WithAmax Mamba2::gate(Context& ctx, Arena& arena) const {
  const RealView gated = arena.take_real(ctx.activation, saved_scanned_.size(0), spec_.inner());
  float* const amax = out_.room_for_amax_of_x(ctx, arena);
  gated_rms_norm(ctx.stream, {.y_TD = saved_scanned_,
                              .z_TD = split_projected(saved_projected_).z,
                              .w_D = p_.norm_weight.master,
                              .out_TD = gated,
                              .rstd_TG = saved_rstd_TG_,
                              .groups = static_cast<int>(spec_.norm_groups),
                              .eps = norm_eps_,
                              .amax = amax});
  return {gated, amax};
}

void Mamba2::backward(Context& ctx, WithAmax x_TD, WithAmax dy_TD, RealView dx_TD) {
  const ArenaScope temporaries(ctx.arena);
  const std::int64_t tokens = dy_TD.size(0), di = spec_.inner();
  const RealView dgated = ctx.activations(tokens, di);
  const RealView dscanned = ctx.activations(tokens, di);
  const RealView dconvolved = ctx.activations(tokens, spec_.conv_channels());
  const RealView dprojected = ctx.activations(tokens, in_.info().n);
  const Projected<ConstRealView> p = split_projected(saved_projected_);
  const Projected<RealView> dp = split_projected(dprojected);
  const Convolved<ConstRealView> c = split_convolved(saved_convolved_);
  const Convolved<RealView> dc = split_convolved(dconvolved);

  const WithAmax gated = ctx.recomputes() ? gate(ctx, ctx.arena) : saved_gated_;
  out_.backward(ctx, gated, dy_TD, dgated);
  gated_rms_norm_backward(ctx.stream, {.y_TD = saved_scanned_,
                                       .z_TD = p.z,
                                       .w_D = p_.norm_weight.master,
                                       .rstd_TG = saved_rstd_TG_,
                                       .dout_TD = dgated,
                                       .dy_TD = dscanned,
                                       .dz_TD = dp.z,
                                       .dw_D = p_.norm_weight.grad,
                                       .groups = static_cast<int>(spec_.norm_groups)});
  ssd_backward(ctx.stream, {.x_THP = c.x_THP,
                            .b_TGN = c.b_TGN,
                            .c_TGN = c.c_TGN,
                            .dt_TH = p.dt_TH,
                            .a_log_H = p_.a_log_H.master,
                            .d_H = p_.d_H.master,
                            .dt_bias_H = p_.dt_bias_H.master,
                            .states = saved_states_,
                            .dy_THP = dscanned.split_last(spec_.heads, spec_.head_dim),
                            .dx_THP = dc.x_THP,
                            .db_TGN = dc.b_TGN,
                            .dc_TGN = dc.c_TGN,
                            .ddt_TH = dp.dt_TH,
                            .da_log_H = p_.a_log_H.grad,
                            .dd_H = p_.d_H.grad,
                            .ddt_bias_H = p_.dt_bias_H.grad,
                            .seq_len = ctx.seq_len,
                            .chunk = spec_.chunk});
  causal_conv_backward(ctx.stream, {.x_TC = p.xbc,
                                    .w_CK = p_.conv_weight_CK.master,
                                    .b_C = p_.conv_bias_C.master,
                                    .dy_TC = dconvolved,
                                    .dx_TC = dp.xbc,
                                    .dw_CK = p_.conv_weight_CK.grad,
                                    .db_C = p_.conv_bias_C.grad,
                                    .seq_len = ctx.seq_len});
  in_.backward(ctx, x_TD, dprojected, dx_TD);
}

}  // namespace nibble
