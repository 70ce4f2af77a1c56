// SPDX-License-Identifier: Apache-2.0
#include "layers/attention.h"

#include <cmath>
#include <numbers>
#include <vector>

#include "ops/attention/attention.h"
#include "ops/attention/rope.h"
#include "ops/health/tensor_sums.h"

namespace nibble {
namespace {

/// Frequency i of head_dim / 2, stretched as Llama 3 does where asked.
double rope_frequency(const RopeSpec& spec, std::int64_t i, std::int64_t head_dim) {
  const double f = std::pow(spec.theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
  if (!spec.llama3) return f;
  const Llama3Rope& s = *spec.llama3;
  const double wavelength = 2 * std::numbers::pi / f,
               original = static_cast<double>(s.original_max_positions);
  if (wavelength > original / s.low_freq_factor) return f / s.factor;
  if (wavelength < original / s.high_freq_factor) return f;
  const double smooth =
      (original / wavelength - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
  return (1 - smooth) * f / s.factor + smooth * f;
}

}  // namespace

RopeTable::RopeTable(Device& device, const RopeSpec& spec, std::int64_t head_dim, std::int64_t positions)
    : layout_(Layout::contiguous(positions, head_dim / 2)) {
  const std::size_t bytes = static_cast<std::size_t>(layout_.numel()) * sizeof(float);
  std::vector<float> cos(layout_.numel()), sin(layout_.numel());
  for (std::int64_t i = 0; i < head_dim / 2; ++i) {
    const float f = static_cast<float>(rope_frequency(spec, i, head_dim));
    for (std::int64_t p = 0; p < positions; ++p) {
      const float angle = static_cast<float>(p) * f;  // FP32, as the checkpoints' own code computes it
      cos[p * (head_dim / 2) + i] = static_cast<float>(std::cos(static_cast<double>(angle)));
      sin[p * (head_dim / 2) + i] = static_cast<float>(std::sin(static_cast<double>(angle)));
    }
  }
  cos_ = Buffer(device, bytes);
  sin_ = Buffer(device, bytes);
  device.copy_from_host(cos_.data(), cos.data(), bytes);
  device.copy_from_host(sin_.data(), sin.data(), bytes);
}

template <class V>
AttentionLayer::Qkv<V> AttentionLayer::split(V fused) const {
  const std::int64_t d = spec_.head_dim, q = spec_.heads * d, kv = spec_.kv_heads * d;
  return {fused.cols(0, q).split_last(spec_.heads, d), fused.cols(q, kv).split_last(spec_.kv_heads, d),
          fused.cols(q + kv, kv).split_last(spec_.kv_heads, d)};
}

void AttentionLayer::turn(Context& ctx, RealView fused, bool inverse) const {
  if (!rope_) return;
  const std::int64_t heads = spec_.heads + spec_.kv_heads, d = spec_.head_dim;  // k lies behind q
  rope(ctx.stream, {.x_THD = fused.cols(0, heads * d).split_last(heads, d),
                    .cos_SF = rope_->cos_SF(),
                    .sin_SF = rope_->sin_SF(),
                    .seq_len = ctx.seq_len,
                    .inverse = inverse});
}

AttentionInFormats AttentionLayer::in_formats(const Context& ctx, ConstRealView fused) const {
  const std::int64_t q = spec_.heads * spec_.head_dim, kv = spec_.kv_heads * spec_.head_dim;
  return {.recipe = attention_of(ctx.recipe, qkv_.info().block, qkv_.info().blocks),
          .qkv = qkv_.info(),
          .q_TC = fused.cols(0, q),
          .k_TC = fused.cols(q, kv),
          .v_TC = fused.cols(q + kv, kv),
          .heads = spec_.heads,
          .kv_heads = spec_.kv_heads,
          .head_dim = spec_.head_dim};
}

/// The largest logit over at most kObservedQueries queries a sequence.
void AttentionLayer::observe_logits(Context& ctx, ConstRealView q_THD, ConstRealView k_TGD) const {
  if (ctx.observer == nullptr) return;
  const LinearInfo& qkv = qkv_.info();
  LogitSums* const out =
      ctx.observer->logits(qkv.name.substr(0, qkv.name.rfind('.')), static_cast<std::size_t>(qkv.position));
  if (out == nullptr) return;
  constexpr std::int64_t kObservedQueries = 128;
  measure_logits(ctx.stream, {.q_THD = q_THD,
                              .k_TGD = k_TGD,
                              .seq_len = ctx.seq_len,
                              .every = (ctx.seq_len + kObservedQueries - 1) / kObservedQueries,
                              .scale = 1 / std::sqrt(static_cast<float>(spec_.head_dim)),
                              .out = out});
}

void AttentionLayer::forward(Context& ctx, WithAmax x_TD, RealView y_TD) {
  const std::int64_t tokens = x_TD.size(0);
  const RealView qkv = ctx.activations(tokens, qkv_.info().n);
  const RealView mixed = ctx.activations(tokens, spec_.heads * spec_.head_dim);
  saved_lse_HT_ = ctx.arena.take<float>(spec_.heads, tokens);
  qkv_.forward(ctx, x_TD, qkv);
  turn(ctx, qkv, false);
  const Qkv<RealView> p = split(qkv);
  const AttentionInFormats formats = in_formats(ctx, qkv);
  if (formats.recipe.quantizes()) {
    attention_in_formats(ctx, formats, mixed, saved_lse_HT_);
  } else {
    attention(ctx.stream, {.q_THD = p.q_THD,
                           .k_TGD = p.k_TGD,
                           .v_TGD = p.v_TGD,
                           .out_THD = mixed.split_last(spec_.heads, spec_.head_dim),
                           .lse_HT = saved_lse_HT_,
                           .seq_len = ctx.seq_len,
                           .scale = 1 / std::sqrt(static_cast<float>(spec_.head_dim))});
  }
  observe_logits(ctx, p.q_THD, p.k_TGD);
  out_.forward(ctx, mixed, y_TD);
  saved_qkv_ = qkv;
  saved_mixed_ = mixed;
}

void AttentionLayer::backward(Context& ctx, WithAmax x_TD, WithAmax dy_TD, RealView dx_TD) {
  const ArenaScope temporaries(ctx.arena);
  const std::int64_t tokens = dy_TD.size(0), heads = spec_.heads, d = spec_.head_dim;
  const RealView dmixed = ctx.activations(tokens, heads * d);
  const RealView dqkv = ctx.activations(tokens, qkv_.info().n);
  out_.backward(ctx, saved_mixed_, dy_TD, dmixed);
  const AttentionInFormats formats = in_formats(ctx, saved_qkv_);
  if (formats.recipe.quantizes()) {
    const std::int64_t kv = spec_.kv_heads * d;
    attention_in_formats_backward(ctx, formats, saved_lse_HT_, dmixed, dqkv.cols(0, heads * d),
                                  dqkv.cols(heads * d, kv), dqkv.cols(heads * d + kv, kv));
  } else {
    unquantized_backward(ctx, dmixed, dqkv);
  }
  turn(ctx, dqkv, true);
  qkv_.backward(ctx, x_TD, dqkv, dx_TD);
}

void AttentionLayer::unquantized_backward(Context& ctx, ConstRealView dmixed, RealView dqkv) const {
  const std::int64_t heads = spec_.heads, d = spec_.head_dim;
  const Qkv<ConstRealView> p = split(saved_qkv_);
  const Qkv<RealView> dp = split(dqkv);
  attention_backward(ctx.stream, {.q_THD = p.q_THD,
                                  .k_TGD = p.k_TGD,
                                  .v_TGD = p.v_TGD,
                                  .out_THD = saved_mixed_.split_last(heads, d),
                                  .lse_HT = saved_lse_HT_,
                                  .dout_THD = dmixed.split_last(heads, d),
                                  .dq_THD = dp.q_THD,
                                  .dk_TGD = dp.k_TGD,
                                  .dv_TGD = dp.v_TGD,
                                  .seq_len = ctx.seq_len,
                                  .repeatable = ctx.repeatable,
                                  .scale = 1 / std::sqrt(static_cast<float>(d))});
}

}  // namespace nibble
